"""What is on given nodes of the cluster, whoever's it is: values, and who gives them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from gleaner.control.policy.job_class import JobClass


@dataclass(frozen=True, slots=True)
class NodeFound:
    """How a node stands. `is_ours`: the reason given for that is our mark."""

    name: str
    reason: str
    is_drained: bool
    is_ours: bool
    is_used: bool
    """Whether any job has a part of it, also one that we are not shown."""


@dataclass(frozen=True, slots=True)
class JobFound:
    """One job that has a part of a node."""

    id: str
    user: str
    partition: str
    job_class: JobClass
    nodes: tuple[str, ...]
    is_ending: bool
    """Its processes are being ended already."""
    until_s: float | None
    can_requeue: bool
    submitted_s: float | None = None
    """When it was submitted, or put back into the queue: what tells it from another one of its number."""


@dataclass(frozen=True, slots=True)
class OnNodes:
    """Some nodes, those of them that the scheduler knows, and all jobs there."""

    nodes: Mapping[str, NodeFound]
    jobs: tuple[JobFound, ...]

    def told(self, name: str) -> str:
        """A node with the reason that is given for its state, for people."""
        node = self.nodes.get(name)
        if node is None:
            return f"{name} (the scheduler does not know it)"
        return f"{name} ({node.reason or 'no reason given'})" if node.is_drained else f"{name} (not drained)"


class NodesCluster(Protocol):
    """A cluster whose nodes can be drained. Raises `GatewayUnavailable` or `GatewayError`."""

    def look(self, nodes: Sequence[str]) -> OnNodes:
        """These nodes, and what is there. Not cached."""
        ...

    def waits_held(self, job: str) -> bool | None:
        """Whether a job waits and is held; None if it has ended, or is still on its nodes or waits for nobody."""
        ...

    def send_home(self, agents: Sequence[str], *, gone_s: float) -> None:
        """See `OwnersCluster.send_home`."""
        ...
