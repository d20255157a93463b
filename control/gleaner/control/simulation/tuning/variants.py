"""Variants of one trace, one for each seed of a sweep.

A trace is one history of a machine, and a setting must also suit the next one. So each seed makes another history of
the same kind, as follows:

- Whole weeks of the trace are drawn with replacement and put one after the other (the block bootstrap; Künsch, The
  Jackknife and the Bootstrap for General Stationary Observations, 1989). A week keeps its days and nights, its bursts
  and its users' sessions. Jobs that run or wait at a week's end continue into the next week. One history covers at most
  half a year, however long the trace is, because more seeds are more informative than longer histories. A trace of less
  than four weeks is cut into days. A trace of less than four days is kept as it is, except for the times of single
  submissions (see below).
- The whole history is shifted by a random time, so that the boundaries of the rounds, which are multiples of the
  length, fall on other parts of the history.
- If nothing can be drawn, each submission is shifted by up to `JITTER_S`, because the starts of single jobs depend on
  seconds.
- A synthetic workload is generated again for each seed.

Every setting, and the machine without agents, is replayed with the same variant of a seed, so that comparisons are
paired.
"""

from dataclasses import dataclass, replace

import numpy as np

from gleaner.control.simulation.model import Counts, Machine, Seconds, Workload
from gleaner.control.simulation.workloads.synthetic import SyntheticSettings, make

DAY_S = 86400.0
WEEK_S = 7 * DAY_S
LEAST_BLOCKS = 4
"""The least number of blocks. Fewer blocks show too little of the differences between blocks."""
JITTER_S = 60
LONGEST_S = 26 * WEEK_S
"""The maximum duration of one history."""
MOVED_DAYS = 7
"""The largest shift of a variant, in days, which is more than the longest round. Shifts are whole seconds."""


@dataclass(frozen=True, slots=True)
class Variation:
    """The way in which the variants of one workload are made."""

    block_s: float
    """The length of a block, or 0 if nothing is drawn."""
    blocks: int
    left_out: int
    """The number of jobs at the end of the trace that do not fill a block, and so are in no variant."""
    made: SyntheticSettings | None = None
    """The settings of a synthetic workload, or None for a trace."""

    @property
    def drawn(self) -> int:
        """The number of blocks in one history."""
        return min(self.blocks, int(LONGEST_S / self.block_s)) if self.blocks else 0

    @property
    def is_resampled(self) -> bool:
        """True if variants are different histories, and False if they are the same history with random shifts."""
        return self.blocks > 0 or self.made is not None

    @property
    def said(self) -> str:
        """The jobs of each history, in words.

        >>> Variation(WEEK_S, 12, 0).said
        '12 weeks drawn with replacement from the 12 of the trace, moved against the rounds'
        """
        if self.made is not None:
            return "jobs of its own, made as [workload.synthetic] says, moved against the rounds"
        if not self.is_resampled:
            return (
                f"the trace itself, moved against the rounds, and each submission by up to {JITTER_S} s; it is too "
                "short to say how other weeks would differ"
            )
        unit = "weeks" if self.block_s == WEEK_S else "days"
        missing = f" (its last {self.left_out} jobs fill no whole week and are left out)" if self.left_out else ""
        drawn = f"{self.drawn} {unit} drawn with replacement from the {self.blocks} of the trace"
        return f"{drawn}{missing}, moved against the rounds"


def variation(workload: Workload, made: SyntheticSettings | None = None) -> Variation:
    """Return the way in which variants of this workload are made: from settings, weeks, days, or the whole workload."""
    if made is not None:
        return Variation(0.0, 0, 0, made)
    first_s, last_s = float(workload.submit_s[0]), float(workload.submit_s[-1])
    for block_s in (WEEK_S, DAY_S):
        # A last week that lacks only a few hours counts as a whole week.
        blocks = int((last_s - first_s) / block_s + 0.05)
        if blocks >= LEAST_BLOCKS:
            kept = int(np.searchsorted(workload.submit_s, first_s + blocks * block_s))
            return Variation(block_s, blocks, len(workload) - kept)
    return Variation(0.0, 0, 0)


def variant(workload: Workload, machine: Machine, how: Variation, seed: int) -> Workload:
    """Return one history of this kind. The same seed gives the same history, whatever was drawn before.

    If the workload was made by drawing jobs of a trace, jobs are drawn again from the jobs of the workload.
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
    """Return jobs and their times of submission, in consecutive blocks, each with the jobs of a randomly drawn
    block."""
    edges_s = float(workload.submit_s[0]) + how.block_s * np.arange(how.blocks + 1)
    edges: Counts = np.asarray(np.searchsorted(workload.submit_s, edges_s), dtype=np.int64)
    jobs: list[Counts] = []
    times_s: list[Seconds] = []
    drawn = chance.integers(0, how.blocks, how.drawn)
    while not (edges[drawn + 1] > edges[drawn]).any():  # a trace can have gaps of weeks, but a variant needs a job
        drawn = chance.integers(0, how.blocks, how.drawn)
    for place, block in enumerate(drawn):
        first, last = int(edges[block]), int(edges[block + 1])
        jobs.append(np.arange(first, last, dtype=np.int64))
        times_s.append(workload.submit_s[first:last] + (place - block) * how.block_s)
    return np.concatenate(jobs), np.concatenate(times_s)
