"""Requests of admins to drain nodes."""

from sqlalchemy import JSON, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.control.models.drains import DrainedJob, DrainPhase, DrainRow, DrainTask
from gleaner.control.policy.draining import Spanning
from gleaner.control.queue.tables.column_types import BIG_ID, BY_VALUE, QueueRecord, StorableText


class DrainRecord(DrainRow, QueueRecord, table=True):
    """One request by an admin concerning some nodes."""

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
