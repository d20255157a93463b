"""The form of credentials for servers, and the URLs for which each can be used. Pure. No message contains a
credential."""

from base64 import b64encode
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import quote

from gleaner.agent.common import allowed_urls

LONGEST = 8192
"""The greatest length of a credential. A token with many claims has several thousand characters."""
_SHORTEST_HIDDEN = 4


class CredentialKind(StrEnum):
    """The form of a credential, which follows from the URL's scheme and the credential itself."""

    KEYS = "S3 keys"
    """The access key and the secret key of S3, separated by a colon."""
    PASSWORD = "password"  # noqa: S105  # the word
    """A user and a password, separated by a colon."""
    TOKEN = "token"  # noqa: S105  # the word
    """A bearer token."""


@dataclass(frozen=True, slots=True)
class Credential:
    """A credential, and the URL below which it can be used."""

    url: str
    value: str = field(repr=False)

    def is_for(self, url: str) -> bool:
        """Return True if the credential can be sent to a server with a request for this URL.

        >>> mine = Credential("https://host/private/", "word")
        >>> [mine.is_for(f"https://{rest}") for rest in ("host/private/a", "host/public/a", "evil/private/a")]
        [True, False, False]
        """
        return allowed_urls.location(url).is_within(allowed_urls.location(self.url))

    def hidden_in(self, line: str) -> str:
        """Return the line with the credential hidden, since a server might have sent it back in an address.

        >>> Credential("https://host/", "me:pass-word").hidden_in("me:pass-word, bWU6cGFzcy13b3Jk and pass-word")
        '…, … and …'
        >>> Credential("https://host/", "me:pass/word").hidden_in("https://host/pass%2Fword")
        'https://host/…'
        """
        encoded = b64encode(self.value.encode()).decode()
        plain = (self.value, encoded, self.value.partition(":")[2])
        words = sorted({*plain, *(quote(word, safe="") for word in plain)}, key=len, reverse=True)
        for word in words:
            line = line.replace(word, "…") if len(word) >= _SHORTEST_HIDDEN else line
        return line


EXPECTED = {
    "s3": "ACCESS_KEY:SECRET_KEY",
    "https": "a bearer token, or USER:PASSWORD",
    "roots": "a bearer token",
}
"""The form of a credential, for messages, by the scheme of its URL."""


def url_fault(url: str) -> str:
    """Return one line that explains why URLs below this one can have no credential; "" if they can.

    >>> url_fault("https://data.example.org/private/"), url_fault("s3://bucket/")
    ('', '')
    >>> url_fault("file:///data/")
    'a secret is for a URL that begins with s3:// or https:// or roots://'
    >>> url_fault("root://eos.example.org//eos/")
    'a token is shown to an XRootD server only over TLS: write roots://'
    """
    if url.startswith("root://"):
        return "a token is shown to an XRootD server only over TLS: write roots://"
    begins = tuple(f"{each}://" for each in EXPECTED)
    if not url.startswith(begins):
        return f"a secret is for a URL that begins with {' or '.join(begins)}"
    try:
        where = allowed_urls.location(url)
    except ValueError as error:
        return str(error)
    if "*" in where.host:
        return "a secret is for one host: write no * in it"
    return "a secret is for all that is below its URL: write no ? in it" if "?" in url else ""


def kind(url: str, value: str) -> CredentialKind:
    """Return the kind of the credential. Raises `ValueError`, which names the expected form and not the value.

    >>> kind("https://host/", "eyJhbGciOi"), kind("https://host/", "me:word")
    (<CredentialKind.TOKEN: 'token'>, <CredentialKind.PASSWORD: 'password'>)
    >>> kind("s3://bucket/", "AKIAIOSFODNN7EXAMPLE")
    Traceback (most recent call last):
    ...
    ValueError: a secret for s3:// must be ACCESS_KEY:SECRET_KEY, in one line of plain letters without blanks
    """
    scheme = allowed_urls.location(url).scheme
    before, colon, after = value.partition(":")
    is_password = scheme == "https" and bool(colon)
    is_plain = value.isascii() and value.isprintable() and (is_password or " " not in value)
    has_parts = bool(before and after) if scheme == "s3" or is_password else bool(value) and not colon
    if not is_plain or not has_parts or len(value) > LONGEST:
        at_most = f", at most {LONGEST}" if len(value) > LONGEST else ""
        expected = f"{EXPECTED[scheme]}, in one line of plain letters without blanks{at_most}"
        raise ValueError(f"a secret for {scheme}:// must be {expected}")
    if scheme == "s3":
        return CredentialKind.KEYS
    return CredentialKind.PASSWORD if is_password else CredentialKind.TOKEN
