"""What was decided, about whom, and from what: so that it can be explained, and decided once more offline."""

from enum import StrEnum

from sqlalchemy import ForeignKeyConstraint, Index
from sqlmodel import Field, SQLModel

from gleaner.control.queue.columns import BIG, BIG_ID, table, words


class DecisionKind(StrEnum):
    """What a decision does to the jobs that it is about."""

    START = "start"
    VICTIM = "victim"
    """It gives back what it holds."""
    HOLD = "hold"
    MIGRATE = "migrate"


class Decision(SQLModel, table=True):
    """One answer of a policy. Never changed."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    at_s: float
    kind: DecisionKind = Field(sa_type=words(DecisionKind, "kind"))
    policy: str
    """The name of the pure function, see `policy.replaying`."""
    acted: bool
    """False: a dry run, nothing was done."""
    packed: bytes
    """All that it was decided from, and the answer; see `decisions.packed`."""
    size_bytes: int = Field(sa_type=BIG)
    """What it takes in the database, about, with its subjects."""


class Subject(SQLModel, table=True):
    """A job that a decision is about."""

    __table_args__ = (
        ForeignKeyConstraint(["decision"], ["decision.id"]),
        Index("decision_about", "subject", "decision"),
    )

    decision: int = Field(primary_key=True, sa_type=BIG)
    subject: str = Field(primary_key=True)
    """`job 7` of our queue, or `slurm 4711`."""
    group: str | None
    """Who may see it, where the queue does not know: the group of a job of the scheduler's."""


DECISION = table(Decision)
SUBJECT = table(Subject)
