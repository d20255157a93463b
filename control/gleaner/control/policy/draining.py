"""How nodes are emptied: what is done to each job that runs there, and what stands in the way. Pure.

Rodríguez-Pascual et al., 2019, section 3.3.1 (`smigrate`): the nodes are marked first, so that nothing new starts while
their jobs are looked at. Unlike there, a job whose owner has declared nothing stands in nobody's way: it is never
touched, and the node is empty when it has ended.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a job on a node is to us."""

    AGENT = "agent"
    CHECKPOINTABLE = "checkpointable"
    PREEMPTIBLE = "preemptible"
    OTHER = "other"
    """Its owner has not declared that anything may be done to it."""


class Spanning(StrEnum):
    """What becomes of a job that also runs on nodes that are not drained."""

    WAIT = "wait"
    REQUEUE = "requeue"
    REFUSE = "refuse"


class Deed(StrEnum):
    """What is done to a job so that it leaves."""

    SEND_HOME = "send home"
    """An agent saves its jobs and ends."""
    SAVE = "save"
    """It is asked to save itself, and requeues itself."""
    REQUEUE = "requeue"
    WAIT = "wait"
    """Nothing: it ends by itself."""


@dataclass(frozen=True, slots=True)
class Occupant:
    """One job of the scheduler's that has a part of a node. `cannot`: why it cannot be saved or requeued; or empty."""

    job: str
    user: str
    kind: Kind
    nodes: tuple[str, ...]
    cannot: str = ""

    @property
    def name(self) -> str:
        """For people."""
        return f"agent {self.job}" if self.kind is Kind.AGENT else f"{self.user}'s job {self.job}"


_DEEDS = {
    Kind.AGENT: Deed.SEND_HOME,
    Kind.CHECKPOINTABLE: Deed.SAVE,
    Kind.PREEMPTIBLE: Deed.REQUEUE,
    Kind.OTHER: Deed.WAIT,
}


def deed(occupant: Occupant, drained: Collection[str], spanning: Spanning) -> Deed:
    """What is done to it."""
    if _spans(occupant, drained) and spanning is not Spanning.REQUEUE:
        return Deed.WAIT
    return _DEEDS[occupant.kind]


def obstacles(occupants: Iterable[Occupant], drained: Collection[str], spanning: Spanning) -> tuple[str, ...]:
    """Why the nodes cannot be drained, a few words for each job in the way; empty if they can.

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
