"""Decisions of the policies, and control's actions on owners' jobs."""

from sqlalchemy import BigInteger, Enum, Index
from sqlmodel import Field

from gleaner.control.models.decisions import DecisionKind
from gleaner.control.queue.tables.column_types import BIG_ID, BY_VALUE, QueueRecord


class DecisionRecord(QueueRecord, table=True):
    """One answer of a policy. Never changed."""

    __tablename__ = "decision"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    at_s: float
    kind: DecisionKind = Field(sa_type=Enum(DecisionKind, name="kind", **BY_VALUE))
    policy: str  # The name of the pure function; see `policy.replay`.
    acted: bool  # False for a dry run: nothing was done.
    packed: bytes  # All that it was decided from, and the answer; see `decisions.pack`.
    size_bytes: int = Field(sa_type=BigInteger)  # About what it takes in the database, with its subjects.


class SubjectRecord(QueueRecord, table=True):
    """A job that a decision is about."""

    __tablename__ = "subject"
    __table_args__ = (Index("decision_about", "subject", "decision"),)
    decision: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="decision.id")
    subject: str = Field(primary_key=True)  # `job 7` of our queue, or `slurm 4711`.
    group: str | None = None  # The group that may see it, where the queue does not know: that of a job of Slurm's.


class ActedRecord(QueueRecord, table=True):
    """An owner's job on which control has acted: it is released and has not started, or preempted and has not ended."""

    __tablename__ = "acted"
    job: str = Field(primary_key=True)
    released_s: float | None = None
    at_top: bool
    told_s: float | None = None


class ToldRecord(QueueRecord, table=True):
    """One preemption of an owner's job. A ceiling of saves an hour counts these rows."""

    __tablename__ = "told"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: str
    at_s: float = Field(index=True)
