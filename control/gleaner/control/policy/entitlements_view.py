"""The input and the answer of `policy.entitlements`: a view of the cluster, and decisions on owners' jobs.

Both are plain values that can be written as JSON, so that a decision can be stored and replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any

from pydantic import TypeAdapter

from gleaner.control.policy.resources import Resources

AGENTS = "gleaner's agents"
"""The owner of our agents in a view."""


class JobClass(IntEnum):
    """The class of a job, as its owner declares it (OMFS, section II). The numbers are the same as in traces."""

    NON_PREEMPTIBLE = 0
    """The job runs to its end."""
    PREEMPTIBLE = 1
    """The job can be killed, and then starts from the beginning."""
    CHECKPOINTABLE = 2
    """The job can be saved, and then continues from its checkpoint."""


@dataclass(frozen=True, slots=True)
class EntitlementRules:
    """The rules that the admin has set; see `settings.EntitlementSettings`."""

    quantum_s: float
    quantum_protects: bool
    saves_left: int
    """The number of owners' jobs that can still be preempted in this hour."""


@dataclass(frozen=True, slots=True)
class Wish:
    """A job's request, in equal pieces.

    With `apart`, each piece needs its own node. With `whole`, it is also alone on that node.
    """

    pieces: int
    piece: Resources
    apart: bool = True
    whole: bool = False
    nodes: tuple[str, ...] | None = None
    """The nodes that the job can use, or None for all nodes."""
    all_cpus: int | None = None
    """The requested CPUs if they are fewer than those of the equal pieces, otherwise None."""

    @property
    def cpus(self) -> int:
        """Return the CPUs of all pieces together."""
        return self.pieces * self.piece.cpus if self.all_cpus is None else self.all_cpus


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that Gleaner holds, or that it has released (`released`) and that has not started yet."""

    job: str
    owner: str
    job_class: JobClass
    wish: Wish
    released: bool = False
    ready: bool = True
    """False if the scheduler might make the job wait for another job or because of a limit, even if nodes are idle."""
    kept_back: bool = False
    """True if the job's owner held it after its release. Such a job is the first to count against the entitlement,
    because its owner can release it at any time."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One running job. `holds` is its part of each node.

    `leaving` means that the job was asked to vacate its nodes and still has time. `stays` means that it did not leave,
    and is not asked again. A higher `priority` is better. `cost_s` is the time to save the job, as far as it is known.
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
        """Return the CPUs of all parts together."""
        return sum(room.cpus for room in self.holds.values())


@dataclass(frozen=True, slots=True)
class EntitlementView:
    """The input of a decision. `waiting` is in the order of submission.

    `free` contains the idle resources of each usable node.
    """

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
    """Release the job. There is room for it, which is idle or held by agents only. Its victims can only be such
    agents."""
    CLAIM = "claim"
    """Release the job at the top of the queue, because its owner is entitled to it. Other jobs can be preempted for
    it."""
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
    """The state of entitlements in the last snapshot. `problem` is one line, or "" if there is none."""

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
    because = {f"slurm {decision.job}": decision.why for decision in decisions}
    for decision in decisions:
        why = f"it is preempted for job {decision.job}: {decision.why}"
        because |= {f"slurm {victim}": why for victim in decision.victims}
    return {"decisions": _DECISIONS.dump_python(decisions, mode="json"), "because": because}


def view_of(given: Mapping[str, Any]) -> EntitlementView:
    """Return the view from its JSON."""
    return _VIEWS.validate_python(given)


def entitlements(percent: Mapping[str, float], cpus: int) -> dict[str, int]:
    """Return each owner's part of these CPUs, rounded down (line 22 of OMFS's listing).

    >>> entitlements({"physics": 50, "chemistry": 33.3}, 18)
    {'physics': 9, 'chemistry': 5}
    """
    return {owner: int(share * cpus / 100 + 1e-9) for owner, share in percent.items()}
