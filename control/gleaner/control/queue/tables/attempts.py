"""Attempts at jobs, their checkpoints, events, logs and deliveries, and the jobs that pause or migrate."""

from enum import StrEnum

from sqlalchemy import JSON, BigInteger, CheckConstraint, Enum, ForeignKeyConstraint, Index, PrimaryKeyConstraint
from sqlmodel import Field

from gleaner.agent.messages import Checkpoint, ReturnReason, Stream
from gleaner.control.models.jobs import AttemptRow, Ending, EventRow
from gleaner.control.models.outputs import DeliveryPhase, DeliveryRow
from gleaner.control.policy.returns import Blame
from gleaner.control.queue.tables.column_types import (
    BIG_ID,
    BY_VALUE,
    CHURNED,
    Names,
    QueueRecord,
    StorableText,
    partial_index,
)


class AttemptRecord(AttemptRow, QueueRecord, table=True):
    """One claim of one job by one agent."""

    __tablename__ = "attempt"
    __table_args__ = (
        PrimaryKeyConstraint("job", "attempt"),  # queries select all attempts of a job
        CheckConstraint("(ended_s IS NULL) = (ending IS NULL)", "end_iff_ended"),
        CheckConstraint("(exit_code IS NOT NULL) = (COALESCE(ending, '') IN ('failed', 'succeeded'))", "exit_iff_own"),
        CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", "from_whole"),
        CheckConstraint("from_attempt < attempt", "from_earlier"),
        CheckConstraint("attempt >= 1 AND log_from >= 0", "counts"),
        partial_index("attempt_live", "job", unique=True, where="ending IS NULL"),
        Index("attempt_of_agent", "agent"),
        Index("attempt_ended", "ended_s"),
        partial_index("attempt_failed", "node", "claimed_s", where="blame IS NOT NULL"),
        CHURNED,
    )
    job: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="job.id")
    attempt: int = Field(primary_key=True)
    agent: str = Field(foreign_key="agent.name")
    ending: Ending | None = Field(default=None, sa_type=Enum(Ending, name="ending", **BY_VALUE))
    exit_code: int | None = None
    # The reason for which an attempt was returned. `detail` begins with it.
    why: ReturnReason | None = Field(default=None, sa_type=Enum(ReturnReason, name="why", **BY_VALUE | {"length": 24}))
    detail: str = Field(sa_type=StorableText)
    # The number of the first line that this attempt writes. Lines of earlier attempts are superseded from there on.
    log_from: int = Field(sa_type=BigInteger)
    # The part of `compute_s` that counts against the job's limit, up to the latest checkpoint or the job's own end.
    counted_s: float = 0.0
    # None if the attempt has not failed, or failed for a reason that is unrelated to its node (see `policy.returns`).
    blame: Blame | None = Field(default=None, sa_type=Enum(Blame, name="blame", **BY_VALUE))


class Standing(StrEnum):
    """The current validity of a checkpoint."""

    NAMED = "named"
    """Kept, and not known to be damaged."""
    BROKEN = "broken"
    """Set aside. No attempt continues from it, but it is kept until the job is Complete."""
    DROPPED = "dropped"
    """No longer needed, because there are newer ones or the job started again from the beginning."""


class CheckpointRecord(Checkpoint, QueueRecord, table=True):
    """One published checkpoint."""

    __tablename__ = "checkpoint"
    __table_args__ = (
        PrimaryKeyConstraint("job", "attempt", "number"),  # queries select all checkpoints of a job
        CheckConstraint("size_bytes >= 0 AND log_lines >= 0", "counts"),
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
    )
    job: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    size_bytes: int = Field(sa_type=BigInteger)
    log_lines: int = Field(sa_type=BigInteger)
    open_lines: dict[Stream, str] = Field(default={}, sa_type=JSON)
    published_s: float
    standing: Standing = Field(sa_type=Enum(Standing, name="standing", **BY_VALUE))
    # The kind of the node that saved it, if known.
    kind: int | None = Field(default=None, foreign_key="kind.id")


class EventRecord(EventRow, QueueRecord, table=True):
    """An event in a job's life. Every transition adds one in its own transaction."""

    __tablename__ = "event"
    __table_args__ = (Index("event_of_job", "job", "id"),)
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    # There is no foreign key, because the job's row is known to exist. It is locked or was made in the same
    # transaction, and is never deleted. Checking each key of a campaign of 100,000 jobs would take PostgreSQL a third
    # of a second.
    job: int = Field(sa_type=BigInteger)
    attempt: int | None = None
    detail: str = Field(sa_type=StorableText)


class LogLineRecord(QueueRecord, table=True):
    """One line that an attempt wrote. `number` counts the lines of the job's whole life."""

    __tablename__ = "log"
    __table_args__ = (ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),)
    job: int = Field(primary_key=True, sa_type=BigInteger)
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BigInteger)
    line: str = Field(sa_type=StorableText)


class LogStateRecord(QueueRecord, table=True):
    """The size of a job's log, and its removed beginning: all lines of attempts before `attempt`, and those of this
    attempt before `number`."""

    __tablename__ = "logged"
    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"),)
    job: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="job.id")
    size_bytes: int = Field(default=0, sa_type=BigInteger)  # The length in UTF-8, plus `logs.LINE_BYTES` for each line.
    attempt: int = 0
    number: int = Field(default=0, sa_type=BigInteger)
    lines: int = Field(default=0, sa_type=BigInteger)  # The number of removed lines, including superseded ones.


class PauseRecord(QueueRecord, table=True):
    """A waiting job that avoids all or some nodes for a while. The row is valid only while `attempt` is the latest."""

    __tablename__ = "pause"
    __table_args__ = (Index("pause_ends", "wakes_s"),)
    job: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="job.id")
    attempt: int
    wakes_s: float
    # The nodes that the job must avoid for `LONGEST_ELSEWHERE_S` seconds after the pause.
    not_on: tuple[str, ...] = Field(default=(), sa_type=Names)


class MigrationRecord(QueueRecord, table=True):
    """A job that is to migrate and does not run elsewhere yet."""

    __tablename__ = "migration"
    job: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="job.id")
    attempt: int  # The attempt that is to be saved. When another attempt runs, the job has migrated.
    from_node: str
    to_node: str | None = None
    by: str
    asked_s: float


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
    due_s: float  # The time from which an agent can take the delivery, or take it over.
    problem: str = Field(sa_type=StorableText)
    files: int | None = Field(default=None, sa_type=BigInteger)
    size_bytes: int | None = Field(default=None, sa_type=BigInteger)
