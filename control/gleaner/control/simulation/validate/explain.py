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
from gleaner.control.simulation.validate.record import Pass, Record
from gleaner.control.simulation.workload import Counts, Seconds, Workload


@dataclass(frozen=True, slots=True)
class Rules:
    """What has to be known of Slurm and of the question."""

    nodes: int
    together_s: float = 5
    """Starts no further apart than this are one."""
    resolution_s: int = 60
    """To how much Slurm rounds the times of its plan."""


_PASS_TAKES_S = 5.0
"""From the beginning of a pass to the start of its last job, at most."""
_GIVING_BACK_S = 5.0
"""From the end of a job until Slurm has its nodes back, at most."""


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
    NODES = "certain nodes"
    """For the first waiting job Slurm keeps certain nodes, not a number of them; of the nodes that were idle its plan
    left this job fewer than the rule does, or more."""
    TIMES = "a plan's times"
    """Slurm rounds the times of its plan, and takes ends that are close together as one, so this job fitted before the
    start of the first waiting one by the plan alone, or by the rule alone."""
    PLAN = "another plan"
    """A pass left it waiting though EASY would have started it, and its plan does not say why."""
    EARLIER = "earlier than EASY allows"
    """By the rule it would have delayed the first waiting job, and no plan says why that did not matter."""
    HANDED_ON = "handed on"
    """Jobs before it had run at other times."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What the rule says of a real replay. One entry a job."""

    allowed_s: Seconds
    """The first instant at which EASY would have started it; NaN: none up to its real start."""
    left: NDArray[np.int64]
    """The first pass of backfilling that left it waiting when EASY would have started it; -1: none."""
    pass_s: Seconds
    """The first pass since it was allowed to start; NaN if there was none up to its start."""


def judge(workload: Workload, machine: Machine, real: Record) -> Verdicts:
    """Ask the rule at each event and at each pass, given what really ran and waited."""
    allowed, first_pass_s = np.full((2, len(workload)), np.nan)
    left = np.full(len(workload), -1, np.int64)
    passes = {one.at_s: place for place, one in enumerate(real.passes)}
    for now_s in np.unique(np.concatenate((real.submit_s, real.end_s, real.start_s, list(passes)))).tolist():
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
            left[starting[(left[starting] < 0) & (real.start_s[starting] > now_s + _PASS_TAKES_S)]] = passes[now_s]
    return Verdicts(allowed, left, first_pass_s)


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


def reasons(workload: Workload, simulated_s: Seconds, verdicts: Verdicts, real: Record, rules: Rules) -> list[Reason]:
    """Why each job's real start is not the simulated one."""
    found: list[Reason] = []
    for job in range(len(workload)):
        difference_s = float(real.start_s[job] - simulated_s[job])
        own_s = float(real.start_s[job] - verdicts.allowed_s[job])
        if abs(difference_s) <= rules.together_s:
            found.append(Reason.TOGETHER)
        elif math.isnan(own_s):
            found.append(_earlier(workload, real, job, rules))
        elif abs(difference_s - own_s) > own_s:
            late_s = float(real.submit_s[job] - workload.submit_s[job])
            found.append(Reason.SUBMITTED if 0 < difference_s - own_s <= late_s + 1 else Reason.HANDED_ON)
        else:
            found.append(_own(workload, verdicts, real, job, rules))
    return found


def _own(workload: Workload, verdicts: Verdicts, real: Record, job: int, rules: Rules) -> Reason:
    """Why it did not start when it was allowed to."""
    left = int(verdicts.left[job])
    if left >= 0:
        room = _room(workload, real, job, real.passes[left], rules)
        if not room.fits_rounded:
            return Reason.TIMES if room.fits else Reason.NODES
        late = _room(workload, real, job, real.passes[left], rules, given_back_s=_GIVING_BACK_S)
        return Reason.PLAN if late.fits_rounded else Reason.SCHEDULER
    if math.isnan(verdicts.pass_s[job]):
        return Reason.SCHEDULER
    if real.start_s[job] <= verdicts.pass_s[job] + _PASS_TAKES_S:
        return Reason.PASS if real.by_backfill[job] else Reason.SCHEDULER
    return Reason.MISSED


def _earlier(workload: Workload, real: Record, job: int, rules: Rules) -> Reason:
    """Why it started when the rule did not allow it."""
    start_s = float(real.start_s[job])
    at = [one for one in real.passes if math.floor(one.at_s) <= start_s <= one.at_s + _PASS_TAKES_S]
    if not at or math.isnan(at[-1].promised_s) or not real.by_backfill[job]:
        return Reason.EARLIER
    room = _room(workload, real, job, at[-1], rules)
    if not room.fits_rounded:
        return Reason.EARLIER
    return Reason.TIMES if room.in_time else Reason.NODES


@dataclass(frozen=True, slots=True)
class _Room:
    """What a pass of Slurm's had for one job, by its own plan for the first waiting one."""

    idle: int
    """Nodes, at the moment."""
    beside: int
    """Those of them that the plan does not keep."""
    needed: int
    in_time: bool
    """Whether the job ends by its limit before the plan needs its nodes; the end rounded up, as Slurm does."""
    in_time_unrounded: bool

    @property
    def fits_rounded(self) -> bool:
        return self.needed <= (self.idle if self.in_time else self.beside)

    @property
    def fits(self) -> bool:
        return self.needed <= (self.idle if self.in_time_unrounded else self.beside)


def _room(workload: Workload, real: Record, job: int, at: Pass, rules: Rules, *, given_back_s: float = 0) -> _Room:
    """Without a plan every idle node counts. A job's nodes are held until so long after its end."""
    order = np.arange(len(workload))
    before = real.start_s < math.floor(at.at_s)
    just_now = ~before & (real.start_s <= at.at_s + _PASS_TAKES_S) & (order < job)  # it looks in order
    holds = (before | just_now) & (real.end_s + given_back_s > at.at_s)
    held = frozenset[int]().union(*(real.nodes[one] for one in np.flatnonzero(holds)))
    idle = frozenset(range(1, rules.nodes + 1)) - held
    end_s = at.at_s + float(workload.limit_s[job])
    rounded_s = math.ceil((end_s + real.origin_s) / rules.resolution_s) * rules.resolution_s - real.origin_s
    return _Room(
        idle=len(idle),
        beside=len(idle - at.kept),
        needed=len(real.nodes[job]),
        in_time=not rounded_s > at.promised_s,
        in_time_unrounded=not end_s > at.promised_s,
    )
