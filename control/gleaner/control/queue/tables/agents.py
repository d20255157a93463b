"""Agents that control has submitted."""

from typing import Any

from sqlalchemy import JSON, CheckConstraint, Enum
from sqlmodel import Field

from gleaner.control.models.agents import KnownAgent, Phase
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord, StorableText, partial_index


class AgentRecord(KnownAgent, QueueRecord, table=True):
    """One agent, with the facts that control needs about it."""

    __tablename__ = "agent"
    __table_args__ = (
        CheckConstraint("(registered_s IS NULL) = (node IS NULL)", "node_iff_registered"),
        CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", "lease_iff_registered"),
        CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", "submitted_unregistered"),
        CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", "live_registered"),
        CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", "end_iff_ended"),
        partial_index("agent_here", "phase", where="phase <> 'ended'"),
    )
    name: str = Field(primary_key=True)
    phase: Phase = Field(sa_type=Enum(Phase, name="phase", **BY_VALUE))
    lease_until_s: float | None = None
    facts: Any = Field(default=None, sa_type=JSON, nullable=True)
    vacate: bool = False
    reason: str = Field(default="", sa_type=StorableText)
    # The kind of its node, from the facts that the agent reported at its registration.
    kind: int | None = Field(default=None, foreign_key="kind.id")
