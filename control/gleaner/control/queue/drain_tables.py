"""The nodes that are being drained, or that were."""

from enum import StrEnum
from typing import Any

from sqlalchemy import CheckConstraint, Text
from sqlmodel import JSON, Field, SQLModel

from gleaner.control.queue.columns import BIG_ID, table, words


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


DRAIN = table(Drain)
