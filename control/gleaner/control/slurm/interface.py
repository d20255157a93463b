"""The cluster's scheduler, reduced to the functions that Gleaner needs."""

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NewType, Protocol

from gleaner.control.slurm.snapshot import SlurmJob, Snapshot

SchedulerId = NewType("SchedulerId", str)
"""The scheduler's id of one of our agents, for example a Slurm job id."""

AGENT_PREFIX = "gleaner-"
"""The beginning of each agent's name, which distinguishes agents from other jobs of the same user."""


class ClusterError(Exception):
    """A query or request to the scheduler failed.

    If it is neither of the subclasses below, the answer was unreadable.
    """


class ClusterRefused(ClusterError):
    """The scheduler refuses the request, and would refuse it again. It has changed nothing."""


class ClusterUnavailable(ClusterError):
    """The scheduler does not answer now. The caller can ask again later."""


@dataclass(frozen=True, slots=True)
class AgentRequest:
    """The request for one agent on one whole node. The agent's name is never reused."""

    name: str
    end_s: float
    """The shared end. The scheduler's time limit can end up to a minute later, and the agent lowers that limit when it
    starts."""
    latest_start_s: float
    """The latest time at which a start is still useful."""
    token_file: Path
    exclude: tuple[str, ...] = ()
    """Nodes on which the agent must not start."""


class Cluster(Protocol):
    """A cluster's scheduler. Every method can raise `ClusterUnavailable` or `ClusterError`, and none waits for a job's
    start.

    Only one thread at a time can submit and withdraw. Any thread can read and query at any time.
    """

    def read(self, now_s: float) -> Snapshot:
        """Return the nodes of our partitions and the jobs there that have not ended, from one bulk query.

        The result is not cached.

        In the agents' partition, only the jobs of our user are read. With entitlements, the owners' partitions are
        included, with the jobs of all users there.
        """
        ...

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        """Return the given nodes that the scheduler knows, and the jobs of all users there.

        The result is not cached.
        """
        ...

    def read_job(self, job: str) -> SlurmJob | None:
        """Return the job, whichever user owns it, or None if the scheduler does not know it or has forgotten it.

        The result is not cached.
        """
        ...

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        """Return the jobs of all users that use these nodes, or used them a few minutes ago. The result is not
        cached."""
        ...

    def check_owners(self, owners: Sequence[str]) -> None:
        """Check that these owners' entitlements can be enforced.

        Raises `ClusterError` if the scheduler does not know one of the owners, or does not restrict users to their
        accounts.
        """
        ...

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        """Submit one agent under a name that was never used before, and return its id.

        If the answer is lost, the agent is looked up. After any `ClusterError` except `ClusterRefused`, the scheduler
        might have accepted the agent. Raises `ClusterRefused` if the scheduler would refuse the agent every time.
        """
        ...

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        """End these agents, whether they wait or run. It is not an error if an agent has already ended."""
        ...

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        """Tell these agents (scheduler ids) to save all their work, and let the scheduler end them at `gone_s`.

        This needs no rights beyond those of the agents' user. Raises `ClusterError` if one of them has already ended.
        """
        ...


class SnapshotCache:
    """The last snapshot of a cluster. The loops of one control program share it, so that they need only one query.

    Several threads can use it, and none waits for another thread's query.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._lock = threading.Lock()
        self._last: Snapshot | None = None
        self._changes = 0

    def fresh(self, now_s: float) -> Snapshot:
        """Take a snapshot now, and keep it for the other loops. Raises `ClusterError`."""
        with self._lock:
            changes = self._changes
        snapshot = self._cluster.read(now_s)
        with self._lock:
            if changes == self._changes:
                self._last = snapshot
        return snapshot

    def shared(self, now_s: float, *, used: Snapshot | None, at_most_s: float) -> Snapshot:
        """Return the last snapshot, or take a new one. Raises `ClusterError`.

        A snapshot that the caller has already `used`, or that is older than `at_most_s`, is not returned.
        """
        with self._lock:
            last = self._last
        if last is None or last is used or not 0 <= now_s - last.read_s <= at_most_s:
            return self.fresh(now_s)
        return last

    def outdate(self) -> None:
        """Discard the last snapshot, and any that is being taken, because the cluster has just been changed.

        Otherwise an agent that was submitted after the query began would seem to have ended.
        """
        with self._lock:
            self._changes += 1
            self._last = None
