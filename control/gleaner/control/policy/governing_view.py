"""What is decided about the owners' jobs: what may be known of the cluster, and what is ruled. Plain values.

`policy.governing` decides; both sides can be written as JSON, so that a decision is stored and replayed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from pydantic import TypeAdapter

from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room
from gleaner.control.policy.subjects import slurm_subject

AGENTS = "gleaner's agents"
"""The owner of our agents in a view."""


@dataclass(frozen=True, slots=True)
class GovernRules:
    """What the admin has set; see `settings.GoverningSettings`."""

    quantum_s: float
    quantum_protects: bool
    saves_left: int
    """So many more of the owners' jobs may be vacated within this hour."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a job asks for: so many equal pieces. `apart`: each on a node of its own; `whole`: and alone there."""

    pieces: int
    piece: Room
    apart: bool = True
    whole: bool = False
    nodes: tuple[str, ...] | None = None
    """The nodes that it may use; None: all."""
    all_cpus: int | None = None
    """What it asks for in all, where equal pieces are more than that; None: what the pieces are."""

    @property
    def cpus(self) -> int:
        """All together."""
        return self.pieces * self.piece.cpus if self.all_cpus is None else self.all_cpus


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """One job that we hold, or that we have released and that has not started (`released`)."""

    job: str
    owner: str
    job_class: JobClass
    wish: Wish
    released: bool = False
    ready: bool = True
    """False: the scheduler may let it wait, whatever is idle: for another job, at a limit."""
    kept_back: bool = False
    """It was released, and its owner holds it, until it lets it go without asking us: it counts first of all."""


@dataclass(frozen=True, slots=True)
class RunningJob:
    """One job on the nodes; `holds` says what it has of each.

    `leaving`: it was told to go and has time left for that. `stays`: it was told, and did not go: ask it no more.
    `priority`: more is better. `cost_s`: what saving it takes, as far as is known.
    """

    job: str
    owner: str
    job_class: JobClass
    since_s: float
    holds: Mapping[str, Room]
    priority: int = 0
    cost_s: float = 0.0
    leaving: bool = False
    stays: bool = False

    @property
    def cpus(self) -> int:
        """All together."""
        return sum(room.cpus for room in self.holds.values())


@dataclass(frozen=True, slots=True)
class GovernView:
    """All that may be known. `waiting` is in the order of submission; `free` is what is idle on each usable node."""

    now_s: float
    rules: GovernRules
    entitled_cpus: Mapping[str, int]
    size: Mapping[str, Room]
    """What each usable node has in all."""
    free: Mapping[str, Room]
    waiting: tuple[WaitingJob, ...]
    running: tuple[RunningJob, ...]


class Verdict(StrEnum):
    """What becomes of a waiting job."""

    START = "start"
    """It is released: there is room for it, idle or held by agents only. Its victims, if any, are such agents."""
    CLAIM = "claim"
    """It is released at the top: it is owed. Victims, if any, make room for it."""
    HOLD = "hold"
    """It stays held, or is held again."""


@dataclass(frozen=True, slots=True)
class Ruling:
    """One waiting job's verdict, in words too."""

    job: str
    verdict: Verdict
    victims: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Governing:
    """How governing stands, for whoever asks. `problem`: one line, empty if there is none."""

    view: GovernView | None = None
    rulings: tuple[Ruling, ...] = ()
    problem: str = ""


_VIEWS = TypeAdapter(GovernView)
_RULINGS = TypeAdapter(tuple[Ruling, ...])


def as_given(view: GovernView) -> dict[str, Any]:
    """The view as plain JSON."""
    given: dict[str, Any] = _VIEWS.dump_python(view, mode="json")
    return given


def as_answer(rulings: tuple[Ruling, ...]) -> dict[str, Any]:
    """The rulings as plain JSON, with a sentence for each job that they are about."""
    because = {slurm_subject(ruling.job): ruling.why for ruling in rulings}
    for ruling in rulings:
        why = f"it gives way for job {ruling.job}: {ruling.why}"
        because |= {slurm_subject(victim): why for victim in ruling.victims}
    return {"rulings": _RULINGS.dump_python(rulings, mode="json"), "because": because}


def view_of(given: Mapping[str, Any]) -> GovernView:
    """The view that was stored so."""
    return _VIEWS.validate_python(given)


def entitlements(percent: Mapping[str, float], cpus: int) -> dict[str, int]:
    """What each owner may have of so many processors, rounded down (line 22 of OMFS's listing).

    >>> entitlements({"physics": 50, "chemistry": 33.3}, 18)
    {'physics': 9, 'chemistry': 5}
    """
    return {owner: int(share * cpus / 100 + 1e-9) for owner, share in percent.items()}
