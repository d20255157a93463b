"""What is being moved: nodes that are drained, and jobs that go from one agent to another."""

from enum import StrEnum
from typing import Any, cast

from sqlalchemy import CheckConstraint, ForeignKeyConstraint, Table, Text
from sqlmodel import JSON, Field, SQLModel

from gleaner.control.queue.columns import BIG, BIG_ID, words


class DrainTask(StrEnum):
    """What an admin has asked for."""

    DRAIN = "drain"
    DRY_RUN = "dry run"
    """Say what a drain would do."""
    RESUME = "resume"


class DrainPhase(StrEnum):
    """How far it is. Each is written down before what it names is done, so that a killed control goes on there."""

    ASKED = "asked"
    MARKING = "marking"
    """The nodes are being marked, and their jobs looked at."""
    EMPTYING = "emptying"
    SETTING_BACK = "setting back"
    EMPTY = "empty"
    """Done: nothing runs there any more."""
    LOOKED = "looked"
    """Done: a dry run."""
    REFUSED = "refused"
    """Nothing was done, or it was undone."""
    RESUMED = "resumed"
    STOPPED = "stopped"
    """Somebody else has set a node back meanwhile."""


OVER = (DrainPhase.EMPTY, DrainPhase.LOOKED, DrainPhase.REFUSED, DrainPhase.RESUMED, DrainPhase.STOPPED)


class Drain(SQLModel, table=True):
    """One thing that an admin asked to be done to nodes."""

    __table_args__ = (
        CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))", "end_iff_over"
        ),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    task: DrainTask = Field(sa_type=words(DrainTask, "task"))
    phase: DrainPhase = Field(sa_type=words(DrainPhase, "phase"))
    nodes: list[str] = Field(sa_type=JSON)
    by: str
    spanning: str
    leaves_others: bool
    asked_s: float
    ended_s: float | None
    said: str = Field(sa_type=Text)
    """One line for people: why it waits or was refused, or how it ended."""
    jobs: list[dict[str, Any]] = Field(sa_type=JSON)
    """The scheduler's jobs that were found there; see `drains.DrainedJob`."""


class Migration(SQLModel, table=True):
    """A job that is told to leave its node, until it runs elsewhere."""

    __table_args__ = (ForeignKeyConstraint(["job"], ["job.id"]),)

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    """The one that is to be saved. If another one runs, the job has moved."""
    from_node: str
    to_node: str | None
    not_on: str
    """As in a lane: where it may not go on when it is saved."""
    by: str
    asked_s: float


def _table(model: type[SQLModel]) -> Table:
    return cast(Table, cast(Any, model).__table__)


DRAIN = _table(Drain)
MIGRATION = _table(Migration)
