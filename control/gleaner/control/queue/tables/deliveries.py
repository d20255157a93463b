"""Results on their way to their targets."""

from sqlalchemy import BigInteger, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.control.models.outputs import DeliveryPhase, DeliveryRow
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord, StorableText, partial_index


class DeliveryRecord(DeliveryRow, QueueRecord, table=True):
    """The result of a job that has succeeded, to be copied to the target that the job names."""

    __tablename__ = "delivery"
    __table_args__ = (
        CheckConstraint("tries >= 0 AND failures >= 0 AND attempt >= 1", "counts"),
        CheckConstraint("(ended_s IS NOT NULL) = (phase IN ('delivered', 'failed'))", "end_iff_ended"),
        CheckConstraint("(files IS NOT NULL) = (phase = 'delivered')", "files_iff_delivered"),
        CheckConstraint("(files IS NULL) = (size_bytes IS NULL)", "size_whole"),
        CheckConstraint("phase = 'waiting' OR agent IS NULL", "agent_only_while_waiting"),
        partial_index("delivery_open", "due_s", where="phase = 'waiting'"),
    )
    job: int = Field(
        primary_key=True, sa_type=BigInteger, foreign_key="job.id", sa_column_kwargs={"autoincrement": False}
    )
    attempt: int  # The attempt that produced the result.
    phase: DeliveryPhase = Field(sa_type=Enum(DeliveryPhase, name="delivery_phase", **BY_VALUE))
    failures: int
    due_s: float  # The time from which an agent, or another agent, can take it.
    problem: str = Field(sa_type=StorableText)
    files: int | None = Field(default=None, sa_type=BigInteger)
    size_bytes: int | None = Field(default=None, sa_type=BigInteger)
