"""The owners' own jobs and the nodes under them, as governing sees them: values, and who gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from gleaner.control.policy.governing_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room


class OwnedPhase(StrEnum):
    """Where a job stands. `ENDING`: its processes are being ended; it holds its nodes still."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """One job of a governed partition. `held` says whether it is, `ours` whether by our mark."""

    id: str
    account: str
    partition: str
    phase: OwnedPhase
    job_class: JobClass
    wish: Wish
    submitted_s: float
    priority: int
    held: bool
    ours: bool
    is_ready: bool
    """False: it waits for something else than room, whatever we do: another job, its turn in an array, a limit."""
    at_limit: bool = False
    """Of that, a limit on its owner: others of its account may be kept by the same one."""
    begins_later: bool = False
    """Its begin time has not come: it is not to be released before."""
    said: str = ""
    """What we have written on it."""
    since_s: float | None = None
    holds: Mapping[str, Room] | None = None


@dataclass(frozen=True, slots=True)
class OwnedNode:
    """One node of a governed partition that can be used: all of it, and what of it is idle."""

    name: str
    size: Room
    free: Room
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OwnersView:
    """Governed partitions at one instant, from one bulk question."""

    read_s: float
    nodes: tuple[OwnedNode, ...]
    jobs: tuple[OwnedJob, ...]


class OwnersCluster(Protocol):
    """A cluster whose owners can be governed. Raises `GatewayUnavailable` or `GatewayError`."""

    def check(self, owners: Sequence[str]) -> None:
        """See that these can be governed. `GatewayError`: the scheduler does not know one, or does not keep to them."""
        ...

    def look(self, now_s: float) -> OwnersView:
        """All jobs of the governed partitions that have not ended, our agents, and their nodes. Not cached."""
        ...

    def send_home(self, agents: Sequence[str], *, gone_s: float) -> None:
        """Let these agents of ours (scheduler ids) save all they have, and be gone by then: the scheduler sees to it.

        As their owner, without any rights beyond that. `GatewayError` if one has ended already.
        """
        ...
