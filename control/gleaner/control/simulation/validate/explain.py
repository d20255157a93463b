"""Why a job started at another time in the real Slurm than in our replay.

The rule is asked about what really was: at each event of the real replay, with the jobs that then really ran and
really waited, which would EASY start? The first such instant of a job divides its difference in two. What comes
after it is the job's own: Slurm had the nodes and took its time, or planned otherwise. What comes before it is
handed on: the job met another cluster than in our replay, since jobs before it had run at other times.
"""

from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.replay import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.control.simulation.validate.record import Record
from gleaner.control.simulation.workload import Counts, Seconds, Workload


class Reason(StrEnum):
    """The largest part of a difference."""

    TOGETHER = "together"
    """No more than the tolerance apart."""
    SUBMITTED = "submitted later"
    """It reached Slurm later than the workload says."""
    SCHEDULER = "scheduler's delay"
    """Its nodes were free and its turn had come; ending a job and the next look at the queue take Slurm some time."""
    PASS = "next pass of backfill"  # noqa: S105 - no password
    """It could overtake, which Slurm sees only at its next pass."""
    PLAN = "another plan"
    """EASY would have started it more than a pass earlier: Slurm reserves certain nodes, not a number of nodes, and
    rounds the times of its plan."""
    EARLIER = "earlier than EASY allows"
    """By the rule it would have delayed the first waiting job."""
    HANDED_ON = "handed on"
    """Jobs before it had run at other times."""


@dataclass(frozen=True, slots=True)
class Tolerances:
    """What is no difference, and what Slurm's own rhythm explains."""

    together_s: float = 5.0
    pass_s: float = 30.0
    """From one pass of backfilling to the next (bf_interval)."""
    slack_s: float = 10.0
    """How much later than that a pass may come: it waits for others and takes its time."""


def allowed_s(workload: Workload, machine: Machine, real: Record) -> Seconds:
    """The first instant at which EASY would have started each job, given what really ran and waited.

    NaN: none up to its real start.
    """
    found = np.full(len(workload), np.nan)
    for now_s in np.unique(np.concatenate((real.submit_s, real.end_s, real.start_s))).tolist():
        waits = np.flatnonzero((real.submit_s <= now_s) & (real.start_s >= now_s))
        if np.isnan(found[waits]).any():
            starting = waits[_starts_at(now_s, waits, workload, machine, real)]
            found[starting[np.isnan(found[starting])]] = now_s
    return found


def _starts_at(now_s: float, waits: Counts, workload: Workload, machine: Machine, real: Record) -> NDArray[np.bool_]:
    """Which of the jobs that wait EASY starts now.

    A replay that begins now tells: what runs comes first in its queue, for the rest of its time, and so runs at once.
    """
    runs = np.flatnonzero((real.start_s < now_s) & (real.end_s > now_s))
    rest_s = np.maximum(real.start_s[runs] + workload.limit_s[runs] - now_s, 1)  # Slurm lets it run past its limit
    jobs = np.concatenate((runs, waits))
    times_s = np.concatenate((rest_s, workload.limit_s[waits]))
    state = replace(workload.only(jobs), submit_s=np.zeros(len(jobs)), run_s=times_s, limit_s=times_s)
    start_s = replay(state, machine, SchedulerSettings(), until_s=0.5).start_s
    return np.asarray(start_s[len(runs) :] == 0)


def reasons(
    workload: Workload, simulated_s: Seconds, allowed: Seconds, real: Record, *, told: Tolerances
) -> list[Reason]:
    """Why each job's real start is not the simulated one."""
    return [
        _reason(
            difference_s=float(real.start_s[job] - simulated_s[job]),
            own_s=float(real.start_s[job] - allowed[job]),
            late_s=float(real.submit_s[job] - workload.submit_s[job]),
            by_backfill=bool(real.by_backfill[job]),
            told=told,
        )
        for job in range(len(workload))
    ]


def _reason(*, difference_s: float, own_s: float, late_s: float, by_backfill: bool, told: Tolerances) -> Reason:
    """`own_s` is NaN where EASY would not have started the job at all."""
    if abs(difference_s) <= told.together_s:
        return Reason.TOGETHER
    if np.isnan(own_s):
        return Reason.EARLIER
    handed_on_s = difference_s - own_s
    if abs(handed_on_s) > own_s:
        return Reason.SUBMITTED if 0 < handed_on_s <= late_s + 1 else Reason.HANDED_ON
    if own_s > told.pass_s + told.slack_s:
        return Reason.PLAN
    return Reason.PASS if by_backfill else Reason.SCHEDULER
