"""Decisions of the policies, control's actions on owners' jobs, and requests of admins to drain nodes."""

from sqlalchemy import JSON, BigInteger, CheckConstraint, Enum, Index
from sqlmodel import Field

from gleaner.control.models.decisions import DecisionKind
from gleaner.control.models.drains import DrainedJob, DrainPhase, DrainRow, DrainTask
from gleaner.control.policy.draining import Spanning
from gleaner.control.queue.tables.column_types import BIG_ID, BY_VALUE, QueueRecord, StorableText


class DecisionRecord(QueueRecord, table=True):
    """One answer of a policy. It is never changed."""

    __tablename__ = "decision"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    at_s: float
    kind: DecisionKind = Field(sa_type=Enum(DecisionKind, name="kind", **BY_VALUE))
    policy: str  # The name of the pure function; see `policy.replay`.
    acted: bool  # False for a dry run, in which the decision was not carried out.
    packed: bytes  # All facts on which the decision was based, and the answer; see `decisions.pack`.
    size_bytes: int = Field(sa_type=BigInteger)  # The approximate size in the database, with its subjects.


class SubjectRecord(QueueRecord, table=True):
    """A job that a decision is about."""

    __tablename__ = "subject"
    __table_args__ = (Index("decision_about", "subject", "decision"),)
    decision: int = Field(primary_key=True, sa_type=BigInteger, foreign_key="decision.id")
    subject: str = Field(primary_key=True)  # `job 7` of our queue, or `slurm 4711`.
    group: str | None = None  # The group that is allowed to see it. Set only for jobs that the queue does not know.


class ActedRecord(QueueRecord, table=True):
    """An owner's job that control has released and that has not started, or that control has preempted and that has not
    ended."""

    __tablename__ = "acted"
    job: str = Field(primary_key=True)
    released_s: float | None = None
    at_top: bool
    told_s: float | None = None


class ToldRecord(QueueRecord, table=True):
    """One preemption of an owner's job. The hourly limit of saves counts these rows."""

    __tablename__ = "told"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: str
    at_s: float = Field(index=True)


class DrainRecord(DrainRow, QueueRecord, table=True):
    """One request by an admin that concerns some nodes."""

    __tablename__ = "drain"
    __table_args__ = (
        CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))", "end_iff_over"
        ),
    )
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    task: DrainTask = Field(sa_type=Enum(DrainTask, name="task", **BY_VALUE))
    phase: DrainPhase = Field(sa_type=Enum(DrainPhase, name="phase", **BY_VALUE))
    nodes: tuple[str, ...] = Field(sa_type=JSON)
    spanning: Spanning = Field(sa_type=Enum(Spanning, name="spanning", **BY_VALUE))
    said: str = Field(sa_type=StorableText)
    jobs: tuple[DrainedJob, ...] = Field(sa_type=JSON)
