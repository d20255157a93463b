"""Images and inputs that groups have stored, the reserved space for uploads, and the secrets for other inputs."""

from sqlalchemy import BigInteger, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.agent.transfer.credentials import CredentialKind
from gleaner.control.models.inputs import InputRow
from gleaner.control.models.secrets import SecretRow
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord


class ImageRecord(QueueRecord, table=True):
    """An image in the storage, shared by all groups that have pushed it. It stays while a name or a job needs it."""

    __tablename__ = "stored_image"
    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"),)
    image_id: str = Field(primary_key=True)
    digest: str  # The digest of its archive's manifest in the storage.
    architecture: str
    size_bytes: int = Field(sa_type=BigInteger)


class ImageNameRecord(QueueRecord, table=True):
    """A group's name for an image. Another image that is pushed under this name replaces `image_id`."""

    __tablename__ = "image"
    group: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    image_id: str = Field(foreign_key="stored_image.image_id")
    pushed_s: float
    pusher: str


class UploadRecord(QueueRecord, table=True):
    """Reserved space in the storage for an image or input that a group uploads, or the key of one that is being
    removed."""

    __tablename__ = "upload"
    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"),)
    kind: str = Field(primary_key=True)
    group: str = Field(primary_key=True)
    content: str = Field(primary_key=True)
    size_bytes: int = Field(sa_type=BigInteger)
    used_s: float  # The latest time at which a part arrived.


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
