"""Draining: the action for each job on the nodes, and the obstacles. The module is pure.

As in Rodríguez-Pascual et al., 2019, section 3.3.1 (`smigrate`), the nodes are marked first, so that nothing new starts
while their jobs are examined. Unlike in that paper, a job that its owner has not declared to be preemptible is not an
obstacle. Such a job is left alone, and its node is empty when the job has ended.
"""

from collections.abc import Sequence
from enum import StrEnum


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
    """No action, because the job will end on its own."""


def deed(alone: Deed, *, spans: bool, spanning: Spanning) -> Deed:
    """Return the action for a job. `spans` is True if the job also runs on nodes that are not drained, and `alone` is
    the action to take if it does not."""
    return Deed.WAIT if spans and spanning is not Spanning.REQUEUE else alone


def obstacle(job: str, alone: Deed, *, elsewhere: Sequence[str], cannot: str, spanning: Spanning) -> str:
    """Return, in a few words, the reason why a job keeps its nodes from being drained, or "" if it does not.

    `job` is its name in the message. `elsewhere` are the job's nodes that are not drained. `cannot` is the reason why
    it cannot be saved or requeued, or "".

    >>> obstacle("alice's job 7", Deed.REQUEUE, elsewhere=("n2",), cannot="", spanning=Spanning.REFUSE)
    "alice's job 7 also runs on n2 (see --spanning)"
    """
    if alone is Deed.WAIT:
        return ""
    if elsewhere and spanning is Spanning.REFUSE:
        return f"{job} also runs on {', '.join(elsewhere)} (see --spanning)"
    is_touched = deed(alone, spans=bool(elsewhere), spanning=spanning) is not Deed.WAIT
    return f"{job}: {cannot}" if cannot and is_touched else ""
