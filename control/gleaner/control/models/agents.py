"""Agents, as users and admins see them."""

from enum import StrEnum

from gleaner.control.models.base import Reply


class Phase(StrEnum):
    """The phase of an agent's life."""

    SUBMITTED = "submitted"
    LIVE = "live"
    SILENT = "silent"
    ENDED = "ended"


class KnownAgent(Reply):
    """One agent that control has submitted."""

    name: str
    node: str | None
    phase: Phase
    scheduler_id: str | None
    end_s: float
    """The shared end for which the agent was submitted."""
    submitted_s: float
    registered_s: float | None
    ended_s: float | None
    """The time at which the agent ended, as it reported."""
    reason: str


class AgentRow(KnownAgent):
    """An agent, and the jobs that run on it."""

    jobs: tuple[int, ...]
