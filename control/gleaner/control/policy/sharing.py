"""Whose turn the next free place of an agent is: Simultaneous Fair-Share between the groups of our own queue. Pure.

Every group's first job that fits is asked about, in the order of all jobs (saved before new, then the higher priority,
then the older), and `fairshare.core` names the one to start: first among groups below their target, then among all.
Nothing is remembered: only what runs and what waits now counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gleaner.control.policy import fairshare
from gleaner.control.policy.shares import ShareRules, Shares
from gleaner.control.policy.subjects import job_subject

POLICY = "fairshare"

TURNS_KEPT = 16
"""Of a claim for many places only the first turns are told: what is stored of it must stay small."""

_NO_TIMES = np.empty(0)
_NO_UNITS = np.empty(0, np.int64)


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
        """Sorts as all jobs are to start where no share is in the way."""
        return not self.is_saved, -self.priority, self.job


class Book:
    """The turns of one claim: who was asked about, who got the place, and what each group holds meanwhile.

    Turns after the first `TURNS_KEPT` are taken all the same, and not told.
    """

    def __init__(self, shares: Shares) -> None:
        self._shares = shares
        self._holds_cpus = dict(shares.holds_cpus)
        self._turns: list[dict[str, Any]] = []
        self._because: dict[str, str] = {}
        self.starts: list[int] = []
        """The jobs for which it mattered whose turn it was, since another group had one that fits, too."""

    def best(self, firsts: Iterable[First], *, free_cpus: int) -> First:
        """Whose turn it is: of one job a group, each of which fits in `free_cpus`."""
        among = sorted(firsts, key=lambda first: first.order)
        targets = self._shares.target_cpus([first.group for first in among])
        places = np.arange(len(among))
        chosen, _, _ = fairshare.core(
            places,
            np.array([first.cpus for first in among], np.int64),
            places.astype(np.int32),
            _NO_TIMES,
            np.array([self._holds_cpus.get(group, 0) for group in targets], np.int64),
            np.array(list(targets.values()), np.float64),
            free_cpus,
            0,
            0.0,
            _NO_TIMES,
            _NO_UNITS,
        )
        return among[int(chosen[0])]

    def start(self, first: First, among: Sequence[First], *, free_cpus: int) -> None:
        """The job starts; `among` were all that were asked about, itself too."""
        if len(self._turns) < TURNS_KEPT:
            self._turns.append({"free_cpus": free_cpus, "firsts": [asdict(each) for each in among]})
            if len(among) > 1:
                self.starts.append(first.job)
                self._because[job_subject(first.job)] = self._reason(first, among)
        self._holds_cpus[first.group] = self._holds_cpus.get(first.group, 0) + first.cpus

    def given(self) -> dict[str, Any]:
        """All that the turns were decided from, as JSON."""
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
        """The jobs that started by these turns, and why each."""
        return {"start": self.starts, "because": self._because}

    def _reason(self, first: First, among: Sequence[First]) -> str:
        held = self._holds_cpus.get(first.group, 0)
        target = self._shares.target_cpus([each.group for each in among])[first.group]
        if held < target:
            return f"group {first.group} held {held} of the {target:.4g} cores that are its target"
        return "no group with a job that fits was below its target, and it was the first of all jobs that fit"


def replay(given: Mapping[str, Any]) -> dict[str, Any]:
    """What was answered, once more from what it was decided from."""
    rules = ShareRules(given["entitled"], given["multiplier"], given["are_others_equal"])
    book = Book(Shares(rules, given["capacity_cpus"], given["holds_cpus"], frozenset(given["waiting"])))
    for turn in given["turns"]:
        among = [First(**first) for first in turn["firsts"]]
        book.start(book.best(among, free_cpus=turn["free_cpus"]), among, free_cpus=turn["free_cpus"])
    return book.answer()
