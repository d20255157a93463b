"""The cluster's scheduler, reduced to what Gleaner needs of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from gleaner.control.slurm.snapshot import SlurmJob, Snapshot

SchedulerId = NewType("SchedulerId", str)
"""The scheduler's own name of one of our agents, for example a Slurm job id."""

AGENT_PREFIX = "gleaner-"
"""The beginning of each agent's name, so that no other job of the same user is taken for an agent."""


class ClusterError(Exception):
    """A question or request to the scheduler failed. Unless it is one of the two below, the answer cannot be read."""


class ClusterRefused(ClusterError):
    """The scheduler refuses, and will refuse again: do not repeat the request. Nothing was done."""


class ClusterUnavailable(ClusterError):
    """The scheduler does not answer now: ask again later."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """The request for one agent on one whole node. The agent's name is unique for ever."""

    name: str
    end_s: float
    """The shared end. The scheduler's limit may be up to a minute later; the agent lowers that limit when it starts."""
    latest_start_s: float
    """The latest start that is of any use."""
    token_file: Path
    exclude: tuple[str, ...] = ()
    """Nodes on which it must not start."""


class Cluster(Protocol):
    """A cluster's scheduler. Every method may raise `ClusterUnavailable` or `ClusterError`; none waits for a start.

    One thread at a time may submit and withdraw; any thread may read and ask at any time.
    """

    def read(self, now_s: float) -> Snapshot:
        """Return the nodes of our partitions and their jobs that have not ended, from one bulk question. Not cached.

        Of the agents' partition, the jobs are our own. With entitlements, our partitions are the owners', too, with
        everybody's jobs there.
        """
        ...

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """Return those of these nodes that the scheduler knows, and everybody's jobs there. Not cached."""
        ...

    def read_job(self, job: str) -> SlurmJob | None:
        """Return anybody's job; None if the scheduler does not know it, or has forgotten it. Not cached."""
        ...

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        """Return everybody's jobs that have a part of these nodes, or had one minutes ago. Not cached."""
        ...

    def check_owners(self, owners: Sequence[str]) -> None:
        """Check that these owners' entitlements can be enforced.

        Raises `ClusterError` if the scheduler does not know one of the owners, or does not hold its users to their
        accounts.
        """
        ...

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """Submit one agent, and return its id. An agent of that name that is already there is not submitted again.

        It may be there because an earlier answer was lost. Nodes to be excluded that the scheduler does not know, or
        knows no more, are left out. Raises `ClusterRefused` if the scheduler refuses for good.
        """
        ...

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """End these agents, waiting or running. An agent that has ended already is no error."""
        ...

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """Tell these agents (scheduler ids) to save all they have, and let the scheduler end them at `gone_s`.

        That needs no rights beyond those of the agents' user. Raises `ClusterError` if one has ended already.
        """
        ...
