"""Images that groups have pushed, and the reserved space for uploads."""

from sqlalchemy import BigInteger, CheckConstraint
from sqlmodel import Field

from gleaner.control.queue.tables.column_types import QueueRecord


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
