"""What differs between the seeds of a sweep: variants of one trace, of which each seed gives one.

A trace is one history of a machine; a setting must suit the next one too. So each seed makes another history of the
same kind:

- Whole weeks of the trace are drawn with replacement and put one after the other (the block bootstrap; Künsch, The
  Jackknife and the Bootstrap for General Stationary Observations, 1989). A week keeps its days and nights, its bursts
  and its users' sessions; what runs or waits at its end goes on into the next. One history has at most half a year,
  however long the trace is: more seeds say more than longer ones. A trace of less than four weeks is cut into days,
  and one of less than four days is kept as it is, but for single submissions (below).
- The whole is moved by a random time, so that the boundaries of the rounds, which are multiples of the length,
  meet it elsewhere.
- Only where nothing can be drawn: each submission is moved by up to `JITTER_S`, since the starts of single jobs
  hang on seconds.
- A workload that is made is made anew for each seed.

Every setting, and the machine without agents, see the same variant of a seed: what is compared is paired.
"""

from dataclasses import dataclass, replace

import numpy as np

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.workload import Counts, Seconds, Workload
from gleaner.control.simulation.workloads.synthetic import SyntheticSettings, make

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
LEAST_BLOCKS = 4
"""Fewer say too little about how one differs from the other."""
JITTER_S = 60
LONGEST_S = 26 * WEEK_S
"""Of one history."""
MOVED_DAYS = 7
"""A variant is moved by up to so many days, in whole seconds: more than the longest round."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How the variants of one workload are made."""

    block_s: float
    """Length of a block; 0: nothing is drawn."""
    blocks: int
    left_out: int
    """Jobs at the end of the trace that fill no block. They are in no variant."""
    made: SyntheticSettings | None = None
    """How the workload is made, if it is."""

    @property
    def drawn(self) -> int:
        """How many blocks make one history."""
        return min(self.blocks, int(LONGEST_S / self.block_s)) if self.blocks else 0

    @property
    def is_resampled(self) -> bool:
        """Whether variants are other histories; else only this one, with other chances."""
        return self.blocks > 0 or self.made is not None

    @property
    def said(self) -> str:
        """It in words.

        >>> Variation(WEEK_S, 12, 0).said
        '12 of 12 whole weeks of the trace, drawn with replacement and moved against the rounds'
        """
        if self.made is not None:
            return "each with jobs of its own, made as [workload.synthetic] says, and moved against the rounds"
        if not self.is_resampled:
            return (
                f"the trace itself, moved against the rounds, each submission by up to {JITTER_S} s; it is too short "
                "to say how other weeks would differ"
            )
        unit = "weeks" if self.block_s == WEEK_S else "days"
        missing = f" (its last {self.left_out} jobs fill none and are left out)" if self.left_out else ""
        return (
            f"{self.drawn} of {self.blocks} whole {unit} of the trace{missing}, drawn with replacement and moved "
            "against the rounds"
        )


def variation(workload: Workload, made: SyntheticSettings | None = None) -> Variation:
    """How variants of this workload are made: anew, of weeks, of days, or of nothing smaller than itself."""
    if made is not None:
        return Variation(0.0, 0, 0, made)
    first_s, last_s = float(workload.submit_s[0]), float(workload.submit_s[-1])
    for block_s in (WEEK_S, DAY_S):
        # A trace that ends some hours before the end of its last week has that week, with the few jobs it lacks.
        blocks = int((last_s - first_s) / block_s + 0.05)
        if blocks >= LEAST_BLOCKS:
            kept = int(np.searchsorted(workload.submit_s, first_s + blocks * block_s))
            return Variation(block_s, blocks, len(workload) - kept)
    return Variation(0.0, 0, 0)


def variant(workload: Workload, machine: Machine, how: Variation, seed: int) -> Workload:
    """One history of the kind. The same seed gives the same, whatever else was drawn before.

    Where jobs of a trace were drawn to make the workload, they are drawn again from these.
    """
    chance = np.random.Generator(np.random.PCG64(seed))
    moved_s = float(chance.integers(0, MOVED_DAYS * int(DAY_S)))
    if how.made is not None:
        own = np.random.SeedSequence((how.made.seed, seed)).generate_state(1)
        workload = make(how.made.model_copy(update={"seed": int(own[0])}), machine, workload)
        chosen, submit_s = np.arange(len(workload)), workload.submit_s
    elif how.is_resampled:
        chosen, submit_s = _drawn(workload, how, chance)
    else:
        chosen = np.arange(len(workload))
        jittered_s = workload.submit_s + chance.integers(0, JITTER_S + 1, len(workload))
        order = np.argsort(jittered_s, kind="stable")
        chosen, submit_s = chosen[order], jittered_s[order]
    return replace(workload.only(chosen), submit_s=submit_s - submit_s[0] + moved_s)


def _drawn(workload: Workload, how: Variation, chance: np.random.Generator) -> tuple[Counts, Seconds]:
    """Which jobs, and when: blocks side by side, each with the jobs of one that was drawn."""
    edges_s = float(workload.submit_s[0]) + how.block_s * np.arange(how.blocks + 1)
    edges: Counts = np.asarray(np.searchsorted(workload.submit_s, edges_s), dtype=np.int64)
    jobs: list[Counts] = []
    times_s: list[Seconds] = []
    drawn = chance.integers(0, how.blocks, how.drawn)
    while not (edges[drawn + 1] > edges[drawn]).any():  # a trace with gaps of weeks: a variant has at least one job
        drawn = chance.integers(0, how.blocks, how.drawn)
    for place, block in enumerate(drawn):
        first, last = int(edges[block]), int(edges[block + 1])
        jobs.append(np.arange(first, last, dtype=np.int64))
        times_s.append(workload.submit_s[first:last] + (place - block) * how.block_s)
    return np.concatenate(jobs), np.concatenate(times_s)
