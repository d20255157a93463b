"""Agents that control has submitted."""

from enum import StrEnum
from typing import Any

from sqlalchemy import JSON, CheckConstraint, Enum, Index, text
from sqlmodel import Field

from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord, Text


class Phase(StrEnum):
    """The phase of an agent's life."""

    SUBMITTED = "submitted"
    LIVE = "live"
    SILENT = "silent"
    ENDED = "ended"


class AgentRecord(QueueRecord, table=True):
    """One agent that control has submitted."""

    __tablename__ = "agent"
    __table_args__ = (
        CheckConstraint("(registered_s IS NULL) = (node IS NULL)", "node_iff_registered"),
        CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", "lease_iff_registered"),
        CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", "submitted_unregistered"),
        CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", "live_registered"),
        CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", "end_iff_ended"),
        Index("agent_here", "phase", sqlite_where=text("phase <> 'ended'"), postgresql_where=text("phase <> 'ended'")),
    )
    name: str = Field(primary_key=True)
    phase: Phase = Field(sa_type=Enum(Phase, name="phase", **BY_VALUE))
    scheduler_id: str | None = None
    end_s: float
    submitted_s: float
    registered_s: float | None = None
    lease_until_s: float | None = None
    ended_s: float | None = None
    node: str | None = None
    facts: Any = Field(default=None, sa_type=JSON, nullable=True)
    vacate: bool
    reason: str = Field(sa_type=Text)
    kind: int | None = Field(
        default=None, foreign_key="kind.id"
    )  # The kind of its node, by the facts that the agent registered with.
