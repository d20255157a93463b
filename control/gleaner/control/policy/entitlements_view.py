"""The input and the answer of `policy.entitlements`: a view of the cluster, and decisions on owners' jobs.

Both are plain values that can be written as JSON, so that a decision is stored and replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.resources import Resources
from gleaner.control.policy.subjects import slurm_subject

AGENTS = "gleaner's agents"
"""The owner of our agents in a view."""


@dataclass(frozen=True, slots=True)
class EntitlementRules:
    """The rules that the admin has set; see `settings.EntitlementSettings`."""

    quantum_s: float
    quantum_protects: bool
    saves_left: int
    """The number of owners' jobs that may still be preempted within this hour."""


@dataclass(frozen=True, slots=True)
class Wish:
    """The request of a job: equal pieces. `apart`: each piece on its own node; `whole`: and alone on that node."""

    pieces: int
    piece: Resources
    apart: bool = True
    whole: bool = False
    nodes: tuple[str, ...] | None = None
    """The nodes that the job may use. None: all."""
    all_cpus: int | None = None
    """The CPUs of the request, where equal pieces are more than that. None: those of the pieces."""

    @property
    def cpus(self) -> int:
        """The CPUs of all parts together."""
        return self.pieces * self.piece.cpus if self.all_cpus is None else self.all_cpus


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One job that Gleaner holds, or has released (`released`) and that has not started."""

    job: str
    owner: str
    job_class: JobClass
    wish: Wish
    released: bool = False
    ready: bool = True
    """False: the scheduler may let the job wait for another job or at a limit, whatever is idle."""
    kept_back: bool = False
    """The job was released, and then its owner held it. Such a job counts against the entitlement before all others,
    since its owner can release it at any time."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One running job; `holds` is its part of each node.

    `leaving`: the job was told to vacate its nodes and still has time. `stays`: it was told, and did not; it is not
    asked again. `priority`: a higher one is better. `cost_s`: the time to save the job, as far as is known.
    """

    job: str
    owner: str
    job_class: JobClass
    since_s: float
    holds: Mapping[str, Resources]
    priority: int = 0
    cost_s: float = 0.0
    leaving: bool = False
    stays: bool = False

    @property
    def cpus(self) -> int:
        """The CPUs of all parts together."""
        return sum(room.cpus for room in self.holds.values())


@dataclass(frozen=True, slots=True)
class EntitlementView:
    """The input of a decision. `waiting` is in the order of submission; `free` is what is idle on each usable node."""

    now_s: float
    rules: EntitlementRules
    entitled_cpus: Mapping[str, int]
    size: Mapping[str, Resources]
    """The resources of each usable node."""
    free: Mapping[str, Resources]
    waiting: tuple[WaitingJob, ...]
    running: tuple[RunningJob, ...]


class Verdict(StrEnum):
    """The decision on a waiting job, in one word."""

    START = "start"
    """Release the job: there is room for it, idle or held by agents only. Its victims, if any, are such agents."""
    CLAIM = "claim"
    """Release the job at the top of the queue: its owner is entitled to it. Victims, if any, make room for it."""
    HOLD = "hold"
    """Hold the job, or hold it again."""


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision on one waiting job, with its reason."""

    job: str
    verdict: Verdict
    victims: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class EntitlementsStatus:
    """The state of entitlements at the last look. `problem` is one line, empty if there is none."""

    view: EntitlementView | None = None
    decisions: tuple[Decision, ...] = ()
    problem: str = ""


_VIEWS = TypeAdapter(EntitlementView)
_DECISIONS = TypeAdapter(tuple[Decision, ...])


def as_input(view: EntitlementView) -> dict[str, Any]:
    """Return the view as plain JSON."""
    given: dict[str, Any] = _VIEWS.dump_python(view, mode="json")
    return given


def as_answer(decisions: tuple[Decision, ...]) -> dict[str, Any]:
    """Return the decisions as plain JSON, with a sentence for each job that they concern."""
    because = {slurm_subject(decision.job): decision.why for decision in decisions}
    for decision in decisions:
        why = f"it is preempted for job {decision.job}: {decision.why}"
        because |= {slurm_subject(victim): why for victim in decision.victims}
    return {"decisions": _DECISIONS.dump_python(decisions, mode="json"), "because": because}


def view_of(given: Mapping[str, Any]) -> EntitlementView:
    """Return the view from its JSON."""
    return _VIEWS.validate_python(given)


def entitlements(percent: Mapping[str, float], cpus: int) -> dict[str, int]:
    """Return the CPUs of so many to which each owner is entitled, rounded down (line 22 of OMFS's listing).

    >>> entitlements({"physics": 50, "chemistry": 33.3}, 18)
    {'physics': 9, 'chemistry': 5}
    """
    return {owner: int(share * cpus / 100 + 1e-9) for owner, share in percent.items()}
