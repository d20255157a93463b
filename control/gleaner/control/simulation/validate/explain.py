"""Why a job started at another time in the real Slurm than in our replay.

The rule is asked about what really was: at each event of the real replay, with the jobs that then really ran and
really waited, which would EASY start? The first such instant of a job divides its difference in two. What comes
after it is the job's own: Slurm had the nodes and took its time, or planned otherwise. What comes before it is
handed on: the job met another cluster than in our replay, since jobs before it had run at other times.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.replay import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.control.simulation.validate.record import Record
from gleaner.control.simulation.workload import Counts, Seconds, Workload

_PASS_TAKES_S = 5.0
"""From the beginning of a pass to the start of its last job, at most."""


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
    MISSED = "chance missed"
    """It could have overtaken between two passes, and at the next no longer could."""
    PLAN = "another plan"
    """A pass left it waiting though EASY would have started it: Slurm rounds the times of its plan, and reserves
    certain nodes, not a number of nodes."""
    EARLIER = "earlier than EASY allows"
    """By the rule it would have delayed the first waiting job."""
    HANDED_ON = "handed on"
    """Jobs before it had run at other times."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the rule says of a real replay. One entry a job."""

    allowed_s: Seconds
    """The first instant at which EASY would have started it; NaN: none up to its real start."""
    passed_over: NDArray[np.bool_]
    """Whether a pass of backfilling left it waiting when EASY would have started it."""
    pass_s: Seconds
    """The first pass since it was allowed to start; NaN if there was none up to its start."""


def judge(workload: Workload, machine: Machine, real: Record) -> Verdicts:
    """Ask the rule at each event and at each pass, given what really ran and waited."""
    allowed, first_pass_s = np.full((2, len(workload)), np.nan)
    passed_over = np.zeros(len(workload), np.bool_)
    passes = set(real.passes_s.tolist())
    for now_s in np.unique(np.concatenate((real.submit_s, real.end_s, real.start_s, real.passes_s))).tolist():
        # Slurm cuts the fractions of its times: what starts in this second may have waited at this instant.
        waits = np.flatnonzero((real.submit_s <= now_s) & (real.start_s >= math.floor(now_s)))
        if not len(waits):
            continue
        starting = waits[_starts_at(now_s, waits, workload, machine, real)]
        fresh = starting[np.isnan(allowed[starting])]
        allowed[fresh] = np.minimum(now_s, real.start_s[fresh])
        if now_s in passes:
            seen = waits[~np.isnan(allowed[waits]) & np.isnan(first_pass_s[waits])]
            first_pass_s[seen] = now_s
            passed_over[starting] |= real.start_s[starting] > now_s + _PASS_TAKES_S
    return Verdicts(allowed, passed_over, first_pass_s)


def _starts_at(now_s: float, waits: Counts, workload: Workload, machine: Machine, real: Record) -> NDArray[np.bool_]:
    """Which of the jobs that wait EASY starts now.

    A replay that begins now tells: what runs comes first in its queue, for the rest of its time, and so runs at once.
    """
    runs = np.flatnonzero((real.start_s < math.floor(now_s)) & (real.end_s > now_s))
    rest_s = np.maximum(real.start_s[runs] + workload.limit_s[runs] - now_s, 1)  # Slurm lets it run past its limit
    jobs = np.concatenate((runs, waits))
    times_s = np.concatenate((rest_s, workload.limit_s[waits]))
    state = replace(workload.only(jobs), submit_s=np.zeros(len(jobs)), run_s=times_s, limit_s=times_s)
    start_s = replay(state, machine, SchedulerSettings(), until_s=0.5).start_s
    return np.asarray(start_s[len(runs) :] == 0)


def reasons(
    workload: Workload, simulated_s: Seconds, verdicts: Verdicts, real: Record, *, together_s: float
) -> list[Reason]:
    """Why each job's real start is not the simulated one; up to `together_s` apart is no difference."""
    found: list[Reason] = []
    for job in range(len(workload)):
        difference_s = float(real.start_s[job] - simulated_s[job])
        own_s = float(real.start_s[job] - verdicts.allowed_s[job])
        if abs(difference_s) <= together_s:
            found.append(Reason.TOGETHER)
        elif math.isnan(own_s):
            found.append(Reason.EARLIER)
        elif abs(difference_s - own_s) > own_s:
            late_s = float(real.submit_s[job] - workload.submit_s[job])
            found.append(Reason.SUBMITTED if 0 < difference_s - own_s <= late_s + 1 else Reason.HANDED_ON)
        else:
            found.append(_own(verdicts, real, job))
    return found


def _own(verdicts: Verdicts, real: Record, job: int) -> Reason:
    """Why it did not start when it was allowed to."""
    if verdicts.passed_over[job]:
        return Reason.PLAN
    if math.isnan(verdicts.pass_s[job]):
        return Reason.SCHEDULER
    if real.start_s[job] <= verdicts.pass_s[job] + _PASS_TAKES_S:
        return Reason.PASS if real.by_backfill[job] else Reason.SCHEDULER
    return Reason.MISSED
