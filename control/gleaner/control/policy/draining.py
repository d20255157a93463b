"""The draining of nodes: the action for each job there, and the obstacles. Pure.

Rodríguez-Pascual et al., 2019, section 3.3.1 (`smigrate`): the nodes are marked first, so that nothing new starts while
their jobs are looked at. Unlike in that paper, a job whose owner has declared nothing is no obstacle. Such a job is
never touched, and its node is empty when the job has ended.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The kind of a job on a node."""

    AGENT = "agent"
    CHECKPOINTABLE = "checkpointable"
    PREEMPTIBLE = "preemptible"
    OTHER = "other"
    """Its owner has not declared the job preemptible or checkpointable."""


class Spanning(StrEnum):
    """The treatment of a job that also runs on nodes that are not drained."""

    WAIT = "wait"
    REQUEUE = "requeue"
    REFUSE = "refuse"


class Deed(StrEnum):
    """The action that removes a job from its node."""

    VACATE = "vacate"
    """An agent saves its jobs and ends."""
    SAVE = "save"
    """The job is asked to save its state, and requeues itself."""
    REQUEUE = "requeue"
    WAIT = "wait"
    """No action: the job ends by itself."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """One job of the scheduler that holds a part of a node.

    `cannot` is the reason that the job cannot be saved or requeued, or empty.
    """

    job: str
    user: str
    kind: Kind
    nodes: tuple[str, ...]
    cannot: str = ""

    @property
    def name(self) -> str:
        """The name of the job in messages."""
        return f"agent {self.job}" if self.kind is Kind.AGENT else f"{self.user}'s job {self.job}"


_DEEDS = {
    Kind.AGENT: Deed.VACATE,
    Kind.CHECKPOINTABLE: Deed.SAVE,
    Kind.PREEMPTIBLE: Deed.REQUEUE,
    Kind.OTHER: Deed.WAIT,
}


def deed(occupant: Occupant, drained: Collection[str], spanning: Spanning) -> Deed:
    """Return the action for this job."""
    if _spans(occupant, drained) and spanning is not Spanning.REQUEUE:
        return Deed.WAIT
    return _DEEDS[occupant.kind]


def obstacles(occupants: Iterable[Occupant], drained: Collection[str], spanning: Spanning) -> tuple[str, ...]:
    """Return the reasons that the nodes cannot be drained, a few words a job; empty if they can be.

    >>> obstacles([Occupant("7", "alice", Kind.PREEMPTIBLE, ("n1", "n2"))], {"n1"}, Spanning.REFUSE)
    ("alice's job 7 also runs on n2 (see --spanning)",)
    """
    found: list[str] = []
    for each in occupants:
        if each.kind is Kind.OTHER:
            continue
        if _spans(each, drained) and spanning is Spanning.REFUSE:
            elsewhere = ", ".join(node for node in each.nodes if node not in drained)
            found.append(f"{each.name} also runs on {elsewhere} (see --spanning)")
        elif each.cannot and deed(each, drained, spanning) is not Deed.WAIT:
            found.append(f"{each.name}: {each.cannot}")
    return tuple(found)


def _spans(occupant: Occupant, drained: Collection[str]) -> bool:
    return any(node not in drained for node in occupant.nodes)
