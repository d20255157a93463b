"""Simultaneous Fair-Share between the groups of our own queue: which group gets the next free place of an agent. Pure.

Priorities say what goes first, targets say who (Steffen, "A Better Way of Scheduling Jobs on HPC Systems: Simultaneous
Fair-Share", HPCSYSPROS 2019): a group that holds less than its target goes before all groups that hold theirs. Nothing
is remembered: only what runs and what waits now counts. Here an agent is one of many, so a job that does not fit is not
asked about; `simulation.replay.rank` has the published walk over a whole queue.

A target is the group's part of the cores of live agents, times the group's multiplier. Groups that the rules do not
name share the rest equally, or have no target. A group without a target gets what no group below its target asks for.

`Book` answers about every group's first job that fits, in the order of all jobs (saved before new, then the higher
priority, then the older).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gleaner.control.policy.subjects import job_subject

POLICY = "fairshare"

TURNS_KEPT = 16
"""Of a claim for many places only the first turns are stored, so that what is stored of it stays small."""


@dataclass(frozen=True, slots=True)
class ShareRules:
    """The shares that the admin has set or that Slurm's accounts have; see `settings.GroupSettings`."""

    entitled: Mapping[str, float] = field(default_factory=dict[str, float])
    """Per cent of the cores of all live agents, by group."""
    multiplier: Mapping[str, float] = field(default_factory=dict[str, float])
    """1 for a group that is not named."""
    are_others_equal: bool = True
    """The other groups that have jobs share the rest of 100 per cent equally."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The state of all groups at one instant."""

    rules: ShareRules = field(default_factory=ShareRules)
    capacity_cpus: int = 0
    """The cores of all live agents."""
    holds_cpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """The cores of the running jobs of each group."""
    waiting: frozenset[str] = frozenset()
    """Groups with a waiting job."""

    def target_cpus(self, asking: Collection[str]) -> dict[str, float]:
        """Return the targets of these groups, in cores. Each of the groups has a waiting job.

        >>> rules = ShareRules(entitled={"physics": 50}, multiplier={"physics": 2})
        >>> Shares(rules, 8, {"biology": 1}).target_cpus(["chemistry", "physics"])
        {'chemistry': 2.0, 'physics': 8.0}
        """
        rules = self.rules
        with_jobs = {*asking, *self.waiting, *(group for group, cpus in self.holds_cpus.items() if cpus > 0)}
        others = with_jobs - rules.entitled.keys()
        left = max(0.0, 100 - sum(rules.entitled.values()))
        other = left / len(others) if others and rules.are_others_equal else 0.0
        return {
            group: self.capacity_cpus * rules.entitled.get(group, other) / 100 * rules.multiplier.get(group, 1.0)
            for group in asking
        }


@dataclass(frozen=True, slots=True)
class First:
    """The first job of a group that fits what the agent has free."""

    job: int
    group: str
    cpus: int
    is_saved: bool
    priority: int

    @property
    def order(self) -> tuple[bool, int, int]:
        """The key by which jobs start where no share is in the way."""
        return not self.is_saved, -self.priority, self.job


class Book:
    """The turns of one claim: the jobs asked about, the job that got the place, and the cores that each group holds.

    Turns after the first `TURNS_KEPT` are taken all the same, and not stored.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._holds_cpus = dict(shares.holds_cpus)
        self._turns: list[dict[str, Any]] = []
        self._because: dict[str, str] = {}
        self.starts: list[int] = []
        """The jobs for which the turn mattered, since another group had a job that fits, too."""

    def best(self, firsts: Iterable[First]) -> First:
        """Return the job that goes next, of one job a group, which all fit.

        A group that holds less than its target goes before all that hold theirs: the two passes, each to its first job.
        """
        among = list(firsts)
        targets = self._shares.target_cpus([first.group for first in among])

        def turn(first: First) -> tuple[bool, tuple[bool, int, int]]:
            return self._holds_cpus.get(first.group, 0) >= targets[first.group], first.order

        return min(among, key=turn)

    def start(self, first: First, among: Sequence[First], *, free_cpus: int) -> None:
        """Record that the job starts; `among` are all jobs that were asked about, this one too."""
        if len(self._turns) < TURNS_KEPT:
            self._turns.append({"free_cpus": free_cpus, "firsts": [asdict(each) for each in among]})
            if len(among) > 1:
                self.starts.append(first.job)
                self._because[job_subject(first.job)] = self._reason(first, among)
        self._holds_cpus[first.group] = self._holds_cpus.get(first.group, 0) + first.cpus

    def input_json(self) -> dict[str, Any]:
        """Return the whole input of the turns, as JSON."""
        shares = self._shares
        return {
            "capacity_cpus": shares.capacity_cpus,
            "entitled": dict(shares.rules.entitled),
            "multiplier": dict(shares.rules.multiplier),
            "are_others_equal": shares.rules.are_others_equal,
            "holds_cpus": dict(shares.holds_cpus),
            "waiting": sorted(shares.waiting),
            "turns": self._turns,
        }

    def answer(self) -> dict[str, Any]:
        """Return the jobs that started by these turns, and the reason of each."""
        return {"start": self.starts, "because": self._because}

    def _reason(self, first: First, among: Sequence[First]) -> str:
        held = self._holds_cpus.get(first.group, 0)
        target = self._shares.target_cpus([each.group for each in among])[first.group]
        if held < target:
            return f"group {first.group} held {held} of the {target:.4g} cores that are its target"
        return "no group with a job that fits was below its target, and it was the first of all jobs that fit"


def replay(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answer, decided once more from its stored input."""
    rules = ShareRules(given["entitled"], given["multiplier"], given["are_others_equal"])
    book = Book(Shares(rules, given["capacity_cpus"], given["holds_cpus"], frozenset(given["waiting"])))
    for turn in given["turns"]:
        among = [First(**first) for first in turn["firsts"]]
        book.start(book.best(among), among, free_cpus=turn["free_cpus"])
    return book.answer()
