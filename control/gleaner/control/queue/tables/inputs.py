"""Inputs that groups have stored, and the secrets with which agents fetch others."""

from sqlalchemy import BigInteger, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.agent.transfer.credentials import CredentialKind
from gleaner.control.models.inputs import InputRow
from gleaner.control.models.secrets import SecretRow
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord


class InputRecord(InputRow, QueueRecord, table=True):
    """A file or folder in the storage that jobs of the group read."""

    __tablename__ = "input"
    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"),)
    group: str = Field(primary_key=True)
    content: str = Field(primary_key=True)
    digest: str  # The digest of its archive's manifest in the storage.
    size_bytes: int = Field(sa_type=BigInteger)


class SecretRecord(SecretRow, QueueRecord, table=True):
    """A credential that the group stores for its jobs."""

    __tablename__ = "secret"
    group: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    kind: CredentialKind = Field(sa_type=Enum(CredentialKind, name="kind", **BY_VALUE))
    sealed: bytes  # The credential, encrypted with control's key; see `secret_key`.
