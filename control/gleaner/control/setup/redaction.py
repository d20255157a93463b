"""Take secrets out of texts that leave the site: passwords, tokens, keys and credentials. Pure.

Rather too much is taken out than too little: what looks like random letters goes, too.
"""

import re
from collections.abc import Collection
from urllib.parse import unquote, urlsplit

HIDDEN = "***"
_SHORTEST = 4
"""A known secret that is shorter is no secret, and its letters stand everywhere."""

_PRIVATE_KEY = re.compile(
    r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)", re.DOTALL
)
_AUTHORISATION = re.compile(r"(?i)(\b(?:proxy-)?authorization[\"']?\s*[:=]\s*).*")
_BEARER = re.compile(r"(?i)(\b(?:bearer|basic)\s+)[^\s\"',;]+")
_MUNGE = re.compile(r"MUNGE:[A-Za-z0-9+/=]*:?")
_SECRET_KEY = re.compile(
    r"""(?ix)
    ( [\w.-]*
      (?: passw(?:or)?d | passphrase | \b pass \b | \b pwd \b | secret | token | credential
        | api_?key | private_?key | _key \b | \b key \b )
      [\w.-]* ["']? \s* [=:] \s* )
    ( \[ [^\]]* \]? | "(?:[^"\\]|\\.)*" | '[^']*' | [^\s,;&}\]]+ )
    """
)
_PATH = re.compile(r"""["']?(?:~|)(?:/[\w.@-]{1,31})+["']?""")
_BASE64_LINE = re.compile(r"(?m)^[A-Za-z0-9+/=]{40,}$")
_LONG = re.compile(r"(sha256:[0-9a-f]{64}\b)|[A-Za-z0-9+_=-]{32,}")


def without_password(url: str) -> str:
    """Return the URL with its password, wherever it stands, replaced by `***`.

    >>> without_password("postgresql+psycopg://gleaner:secret@db/gleaner?password=secret")
    'postgresql+psycopg://gleaner:***@db/gleaner?password=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|secret|token)=)[^&]*", r"\1***", masked)


def password_of(url: str) -> str:
    """Return the password in a URL, as its program gets it; empty if there is none.

    >>> password_of("postgresql+psycopg://gleaner:s%40cret@db/gleaner")
    's@cret'
    """
    try:
        return unquote(urlsplit(url).password or "")
    except ValueError:
        return ""


def without_secrets(text: str, known: Collection[str] = ()) -> str:
    r"""Return the text without secrets. `known` are secrets of this machine, which go wherever they stand.

    >>> without_secrets('url = "postgresql://gleaner:hunter2@db/q"')
    'url = "postgresql://gleaner:***@db/q"'
    >>> without_secrets('key = "/etc/gleaner/tls/key.pem"')
    'key = "/etc/gleaner/tls/key.pem"'
    >>> without_secrets("api_key: hunter2, Authorization: Bearer abc\nnext")
    'api_key: ***, Authorization: ***\nnext'
    """
    for secret in sorted(known, key=len, reverse=True):
        if len(secret) >= _SHORTEST:
            text = text.replace(secret, HIDDEN)
    text = _PRIVATE_KEY.sub(HIDDEN, text)
    text = _MUNGE.sub(HIDDEN, text)
    text = "\n".join(without_password(line) for line in text.split("\n"))
    text = _AUTHORISATION.sub(rf"\1{HIDDEN}", text)
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _SECRET_KEY.sub(_keep_path, text)
    text = _BASE64_LINE.sub(HIDDEN, text)
    return _LONG.sub(_keep_digest, text)


def _keep_path(match: "re.Match[str]") -> str:
    name = match[1].rstrip(" \t\n=:\"'").lower()
    is_path = name.endswith(("key", "file", "path", "folder", "socket")) and _PATH.fullmatch(match[2])
    return match[0] if is_path else match[1] + HIDDEN


def _keep_digest(match: "re.Match[str]") -> str:
    text = match[0]
    is_random = any(letter.isdigit() for letter in text) and any(letter.isalpha() for letter in text)
    return text if match[1] or not is_random else HIDDEN
