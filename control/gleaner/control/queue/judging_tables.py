"""Whom failures are put down to, which nodes are doubted for them, and which jobs pause after one."""

from enum import StrEnum

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Index
from sqlmodel import Field, SQLModel

from gleaner.control.policy.judging import Verdict
from gleaner.control.queue.columns import BIG, table, words


class Blame(StrEnum):
    """Whom a failure is put down to."""

    OPEN = "open"
    """It does not cost the job a retry yet: one node's word is not enough."""
    JOB = "job"
    """It has cost the job a retry."""
    NODE = "node"
    """It costs the job nothing, for good."""


class Failure(SQLModel, table=True):
    """A workload that exited with an error."""

    __table_args__ = (
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        Index("failure_on_node", "node", "at_s"),
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    node: str
    at_s: float
    is_quick: bool
    """It ended so soon that the node may be to blame. See `policy.judging`."""
    blame: Blame = Field(sa_type=words(Blame, "blame"))


class Doubt(SQLModel, table=True):
    """A node on which different jobs have failed quickly in a row. A job that runs well there removes the row."""

    __table_args__ = (CheckConstraint("jobs >= 1 AND probes >= 0 AND times_bad >= 0", "counts"),)

    node: str = Field(primary_key=True)
    jobs: int
    """How many in a row."""
    probes: int
    """How many of them were handed out as probes, since the node was doubted."""
    since_s: float
    """When the first of them was claimed: a job that was claimed earlier and ends well says nothing."""
    last_s: float
    """When the last of them failed."""
    verdict: Verdict = Field(sa_type=words(Verdict, "verdict"))
    doubted_s: float | None
    """Since when, unless it is trusted. What was claimed later is a probe."""
    probe_s: float
    """From then on one more job is handed out, unless the node is trusted."""
    times_bad: int
    """How often the node was found bad in this row of failures."""
    avoided_until_s: float | None


class Pause(SQLModel, table=True):
    """A waiting job that must not go everywhere for a while. It counts only while `attempt` is the job's latest."""

    __table_args__ = (ForeignKeyConstraint(["job"], ["job.id"]), Index("pause_ends", "wakes_s"))

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    wakes_s: float
    not_on: str
    """Where it may not go then, for `LONGEST_ELSEWHERE_S`. Empty: anywhere."""


FAILURE = table(Failure)
DOUBT = table(Doubt)
PAUSE = table(Pause)
