"""The cluster's scheduler, reduced to what Gleaner needs of it, and the values that go in and out."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NewType, Protocol

SchedulerId = NewType("SchedulerId", str)
"""The scheduler's own name of one of our agents, for example a Slurm job id."""

AGENT_PREFIX = "gleaner-"
"""How the name of each of our agents begins, so that nothing else of the same account is taken for one."""


class GatewayError(Exception):
    """The scheduler was asked in vain. If it is none of the two below, it said what we cannot read."""


class GatewayRefused(GatewayError):
    """The scheduler refuses, and will refuse again: do not ask the same once more. Nothing was done."""


class GatewayUnavailable(GatewayError):
    """The scheduler does not answer now: ask again later."""


class AgentPhase(StrEnum):
    """Where one of our agents stands, as the scheduler sees it. One that it no longer names is gone."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class Node:
    """One node. `idle`: all of it is free now and usable; `planned`: free, but kept for a waiting regular job."""

    name: str
    cpus: int
    memory_mib: int
    idle: bool
    planned: bool = False
    state: str = ""
    """The scheduler's own words, for people."""


@dataclass(frozen=True, slots=True)
class QueuedAgent:
    """One of our agents that the scheduler knows. `end_s` is when the scheduler will end it."""

    id: SchedulerId
    name: str
    phase: AgentPhase
    submitted_s: float
    node: str | None = None
    start_s: float | None = None
    end_s: float | None = None


@dataclass(frozen=True, slots=True)
class ClusterView:
    """The cluster at one instant, from one bulk question."""

    read_s: float
    nodes: tuple[Node, ...]
    agents: tuple[QueuedAgent, ...]
    regular_nodes: frozenset[str] = frozenset()
    """Names of the nodes that regular jobs use now."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """One agent to be started on one whole node. Its name is unique for ever."""

    name: str
    end_s: float
    """The shared end. The scheduler may be given up to a minute more; the agent lowers it when it starts."""
    latest_start_s: float
    """A start after this is of no use."""
    token_file: Path
    avoid: tuple[str, ...] = ()
    """Nodes on which it must not start."""


class Gateway(Protocol):
    """A cluster's scheduler. Every method may raise `GatewayUnavailable`; none waits for an agent to start."""

    def look(self, now_s: float) -> ClusterView:
        """All nodes and all agents of ours, in one bulk question. Not cached: the caller asks rarely."""
        ...

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """Ask for one agent. If an agent of that name is already there (an earlier answer was lost), it is that one.

        Nodes to be avoided that the scheduler does not know (any more) are left out. Raises `GatewayRefused` if the
        scheduler says no for good.
        """
        ...

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """End these agents, waiting or running. One that has ended already is no error."""
        ...
