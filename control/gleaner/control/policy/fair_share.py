"""Simultaneous fair share between the groups of our queue. It decides which group receives the next free place on an
agent.

Priorities decide which job comes first, and targets decide which group (Steffen, "A Better Way of Scheduling Jobs on
HPC Systems: Simultaneous Fair-Share", HPCSYSPROS 2019). A group that holds less than its target comes before all groups
that have reached theirs. The policy has no memory, so only the jobs that are running or waiting now count. A job that
does not fit into an agent is skipped here, because there are many agents. `simulation.replay.rank` implements the
published walk over a whole queue.

A target is the group's part of the cores of live agents, multiplied by the group's multiplier. Groups that the rules do
not name share the rest equally, or have no target. A group without a target receives the cores that the groups below
their targets leave.

`Book` compares the first fitting job of every group, in the order of all jobs (saved before new, then the higher
priority, then the older job). The module is pure.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

POLICY = "fairshare"

TURNS_KEPT = 16
"""The number of turns of one claim that are stored, so that a claim for many places does not take much space."""


@dataclass(frozen=True, slots=True)
class ShareRules:
    """The shares that the admin has set or that Slurm's accounts define; see `settings.GroupSettings`."""

    entitled: Mapping[str, float] = field(default_factory=dict[str, float])
    """The percentage of the cores of all live agents, by group."""
    multiplier: Mapping[str, float] = field(default_factory=dict[str, float])
    """The multiplier of each group. A group that is missing here has the multiplier 1."""
    are_others_equal: bool = True
    """True if the other groups with jobs share the rest of 100 per cent equally."""


@dataclass(frozen=True, slots=True)
class Shares:
    """The state of all groups at one instant."""

    rules: ShareRules = field(default_factory=ShareRules)
    capacity_cpus: int = 0
    """The number of cores of all live agents."""
    holds_cpus: Mapping[str, int] = field(default_factory=dict[str, int])
    """The number of cores of each group's running jobs."""
    waiting: frozenset[str] = frozenset()
    """The groups with a waiting job."""

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
    """The first job of a group that fits into the agent's free room."""

    job: int
    group: str
    cpus: int
    is_saved: bool
    priority: int

    @property
    def order(self) -> tuple[bool, int, int]:
        """Return the sort key that decides between two jobs if shares do not."""
        return not self.is_saved, -self.priority, self.job


class Book:
    """The turns of one claim: the compared jobs, the job that received the place, and the cores that each group holds.

    Turns after the first `TURNS_KEPT` take place but are not stored.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._holds_cpus = dict(shares.holds_cpus)
        self._turns: list[dict[str, Any]] = []
        self._because: dict[str, str] = {}
        self.starts: list[int] = []
        """The jobs for which the turn mattered, because another group also had a job that fits."""

    def best(self, firsts: Iterable[First]) -> First:
        """Return the job that starts next, from one fitting job of each group.

        A group that holds less than its target comes before all groups that have reached theirs. These are the two
        passes of the paper, each stopped at its first job.
        """
        among = list(firsts)
        targets = self._shares.target_cpus([first.group for first in among])

        def turn(first: First) -> tuple[bool, tuple[bool, int, int]]:
            return self._holds_cpus.get(first.group, 0) >= targets[first.group], first.order

        return min(among, key=turn)

    def start(self, first: First, among: Sequence[First], *, free_cpus: int) -> None:
        """Record that the job starts. `among` are all jobs that were compared, including this one."""
        if len(self._turns) < TURNS_KEPT:
            self._turns.append({"free_cpus": free_cpus, "firsts": [asdict(each) for each in among]})
            if len(among) > 1:
                self.starts.append(first.job)
                self._because[f"job {first.job}"] = self._reason(first, among)
        self._holds_cpus[first.group] = self._holds_cpus.get(first.group, 0) + first.cpus

    def input_json(self) -> dict[str, Any]:
        """Return the whole input of the turns as JSON."""
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
        """Return the jobs that started in these turns, each with its reason."""
        return {"start": self.starts, "because": self._because}

    def _reason(self, first: First, among: Sequence[First]) -> str:
        held = self._holds_cpus.get(first.group, 0)
        target = self._shares.target_cpus([each.group for each in among])[first.group]
        if held < target:
            return f"group {first.group} held {held} of the {target:.4g} cores that are its target"
        return "no group with a job that fits was below its target, and it was the first of all jobs that fit"


def replay(given: Mapping[str, Any]) -> dict[str, Any]:
    """Decide again from a stored input, and return the answer."""
    rules = ShareRules(given["entitled"], given["multiplier"], given["are_others_equal"])
    book = Book(Shares(rules, given["capacity_cpus"], given["holds_cpus"], frozenset(given["waiting"])))
    for turn in given["turns"]:
        among = [First(**first) for first in turn["firsts"]]
        book.start(book.best(among), among, free_cpus=turn["free_cpus"])
    return book.answer()
