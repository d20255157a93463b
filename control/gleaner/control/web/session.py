"""The cookie of a browser's session, and the value that only the forms of this session contain."""

import hmac
from collections.abc import Mapping

from starlette.requests import cookie_parser
from starlette.responses import Response

from gleaner.control.api.access import LONGEST_TOKEN

COOKIE = "gleaner_session"
COOKIE_PATH = "/web"
"""The path of the cookie. The browser sends it only to pages, and never to the API."""


def session_of(headers: Mapping[str, str]) -> str:
    """Return the secret of the session that the browser sends, or "" if it sends none."""
    secret = cookie_parser(headers.get("cookie", "")).get(COOKIE, "")
    return secret if len(secret) <= LONGEST_TOKEN else ""


def form_token(secret: str) -> str:
    """Return the value that the forms of a session contain. Only a reader of our pages can know it."""
    return hmac.digest(secret.encode("utf-8", "replace"), b"form", "sha256").hex()[:32]


def set_session(answer: Response, secret: str, *, is_encrypted: bool) -> None:
    """Make the browser keep the secret of its session until the browser is closed. Scripts cannot read the secret."""
    answer.set_cookie(COOKIE, secret, path=COOKIE_PATH, httponly=True, samesite="strict", secure=is_encrypted)


def forget_session(answer: Response) -> None:
    """Make the browser forget its session."""
    answer.delete_cookie(COOKIE, path=COOKIE_PATH, httponly=True, samesite="strict")
