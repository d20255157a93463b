"""Tokens: requests for them, and their rows."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from gleaner.agent.job_spec import NUMBER, Flag, Name, Shape
from gleaner.control.models.base import Reply


class Role(StrEnum):
    """The rights of a token."""

    USER = "user"
    AGENT = "agent"
    ADMIN = "admin"
    METRICS = "metrics"
    """The token can only read `/metrics`."""


class TokenFilter(Shape):
    """The selection of tokens to list."""

    all: bool = False
    """True to include tokens that have ended."""


class TokenRequest(Shape):
    """A request for a new token. (Agents receive theirs from control itself.)"""

    role: Annotated[str, StringConstraints(pattern="^(user|admin|metrics)$")]
    name: Name
    group: Name | None = None
    manager: Flag = False
    """True for a user who is allowed to change all jobs of the group, and not only those that the user has
    submitted."""
    days: Annotated[int, Field(ge=1, le=36_500), NUMBER] | None = None
    """The days after which the token expires, or None if it does not expire."""


class TokenIssued(Reply):
    """A new token with its secret, which is shown only once. Only its hash is stored."""

    token: str
    id: str = ""
    expires_s: float | None = None


class IssuedToken(Reply):
    """A token without its secret."""

    id: str
    """The id that lists show. It is the beginning of the hash and reveals nothing about the secret."""
    role: Role
    name: str
    group: str | None
    manager: bool
    """True if the owner is allowed to change all jobs of the group."""
    issued_s: float
    expires_s: float | None
    """The time at which the token expires, or None if it does not expire."""
    revoked_s: float | None


class TokenRow(IssuedToken):
    """A token in a list, or a browser's session, which its owner and admins can end like a token."""

    session_of: str = ""
    """The id of the token that opened the session, or `munge` if munge authenticated the user, or "" if the row is a
    token."""


class WebCode(Reply):
    """A code that signs a browser in to the web page. It can be used once, within a minute."""

    code: str
    expires_s: float
