"""Tokens, signed-in browsers, and the leading program with the facts that it publishes."""

from sqlalchemy import BigInteger, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.control.models.tokens import IssuedToken, Role
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord


class TokenRecord(IssuedToken, QueueRecord, table=True):
    """A bearer token's hash, and the rights of its owner."""

    __tablename__ = "token"
    __table_args__ = (
        CheckConstraint("role <> 'user' OR \"group\" IS NOT NULL", "user_has_group"),
        CheckConstraint("NOT manager OR role = 'user'", "manager_is_user"),
    )
    hash: str = Field(primary_key=True)
    id: str = Field(index=True)
    role: Role = Field(sa_type=Enum(Role, name="role", **BY_VALUE))
    name: str = Field(index=True)


class WebSessionRecord(QueueRecord, table=True):
    """A browser that is signed in to the web page, or, before that, the code with which it can sign in."""

    __tablename__ = "web_session"
    __table_args__ = (CheckConstraint("role IN ('user', 'admin')", "people_only"),)
    hash: str = Field(primary_key=True)  # The hash of the code or, after the sign-in, of the session's own secret.
    # The id of the token behind it, or "" if munge authenticated the user. In that case, each request is checked again.
    token: str
    role: str
    name: str
    group: str | None = None
    manager: bool
    opened_s: float | None = None  # None for a code that has not been used yet.
    expires_s: float = Field(index=True)


class StopRecord(QueueRecord, table=True):
    """A stop that an admin has requested. The table has at most one row, and none while agents can run."""

    __tablename__ = "stop"
    __table_args__ = (CheckConstraint("id = 1", "only_one"),)
    id: int = Field(default=1, primary_key=True)
    by: str
    at_s: float


class LeaderRecord(QueueRecord, table=True):
    """The control program that leads. The table has at most one row."""

    __tablename__ = "leader"
    __table_args__ = (CheckConstraint("id = 1", "only_one"),)
    id: int = Field(primary_key=True)
    holder: str
    until_s: float  # By the database's clock.
    epoch: int = Field(sa_type=BigInteger)  # Higher than the epoch of every earlier leader; see `leader`.


class ControlViewRecord(QueueRecord, table=True):
    """The facts that the leader's loops publish. The table has at most one row."""

    __tablename__ = "control_view"
    __table_args__ = (CheckConstraint("id = 1", "only_one"),)
    id: int = Field(default=1, primary_key=True)
    written_s: float
    packed: bytes
