"""Requests of admins to drain nodes."""

from typing import Any

from sqlalchemy import JSON, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.control.models.drains import DrainPhase, DrainTask
from gleaner.control.queue.tables.column_types import BIG_ID, BY_VALUE, Stored, Text


class Drain(Stored, table=True):
    """One request of an admin for some nodes."""

    __tablename__ = "drain"
    __table_args__ = (
        CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))", "end_iff_over"
        ),
    )
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    task: DrainTask = Field(sa_type=Enum(DrainTask, name="task", **BY_VALUE))
    phase: DrainPhase = Field(sa_type=Enum(DrainPhase, name="phase", **BY_VALUE))
    nodes: Any = Field(sa_type=JSON)
    by: str
    spanning: str
    leaves_others: bool
    asked_s: float
    ended_s: float | None = None
    said: str = Field(sa_type=Text)  # One line for people: why it waits or was refused, or how it ended.
    jobs: Any = Field(sa_type=JSON)  # The jobs of Slurm's that were found there; see `drains.DrainedJob`.
