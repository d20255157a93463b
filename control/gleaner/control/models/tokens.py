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
    """Reads `/metrics`, and nothing else."""


class TokenFilter(Shape):
    """The choice of tokens to list."""

    all: bool = False
    """Also those that have ended."""


class TokenRequest(Shape):
    """A new token (agents get theirs from control itself)."""

    role: Annotated[str, StringConstraints(pattern="^(user|admin|metrics)$")]
    name: Name
    group: Name | None = None
    manager: Flag = False
    """A user who may change all jobs of the group, and not only the own ones."""
    days: Annotated[int, Field(ge=1, le=36_500), NUMBER] | None = None
    """The days after which the token ends; None if it does not end by itself."""


class TokenIssued(Reply):
    """The secret, shown once; only its hash is stored."""

    token: str
    id: str = ""
    expires_s: float | None = None


class IssuedToken(Reply):
    """A token without its secret."""

    id: str
    """For people: the beginning of its hash, which tells nothing of the secret."""
    role: Role
    name: str
    group: str | None
    manager: bool
    """True if its owner may change all jobs of the group."""
    issued_s: float
    expires_s: float | None
    """None: it does not end by itself."""
    revoked_s: float | None


class TokenRow(IssuedToken):
    """A token in a list; or a browser's session, which its owner and admins can end like a token."""

    session_of: str = ""
    """Of a session: the token behind it, or `munge`. Empty: it is a token."""
