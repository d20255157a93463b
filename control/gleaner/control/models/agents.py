"""Agents, as users and admins see them."""

from gleaner.control.models.base import Reply


class AgentRow(Reply):
    """One agent that control knows."""

    name: str
    node: str | None
    phase: str
    """submitted, live, silent, ended."""
    scheduler_id: str | None
    end_s: float
    """The shared end that the agent was submitted for."""
    submitted_s: float
    registered_s: float | None
    ended_s: float | None
    """The time at which the agent was done, by its own report."""
    jobs: tuple[int, ...]
    reason: str
