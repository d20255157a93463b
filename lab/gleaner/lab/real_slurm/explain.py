"""Reasons why a job started at another time in the real Slurm than in our replay.

EASY is asked about the real replay: at each event, with the jobs that really ran and really waited then, which jobs
would EASY start? The first instant at which EASY would start a job divides the job's difference in two. The part after
that instant is the job's own: Slurm had the nodes and took its time, or planned otherwise. The part before that instant
is handed on: the job met another cluster than in our replay, since jobs before it had run at other times.
"""

import math
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.model import Counts, Machine, Seconds, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.lab.real_slurm.record import Pass, Record


@dataclass(frozen=True, slots=True)
class SlurmFacts:
    """The facts about Slurm and the question that a verdict needs."""

    nodes: int
    together_s: float = 5
    """The tolerance: starts no further apart than this count as one."""
    resolution_s: int = 60
    """The unit to which Slurm rounds the times of its plan."""


_PASS_TAKES_S = 5.0
"""From the beginning of a pass to the start of its last job, at most."""
_FREEING_S = 5.0
"""From the end of a job until Slurm has its nodes back, at most."""


class Reason(StrEnum):
    """The largest part of a difference."""

    TOGETHER = "together"
    """The two starts are no further apart than the tolerance."""
    SUBMITTED = "submitted later"
    """The job reached Slurm later than the workload says."""
    SCHEDULER = "scheduler's delay"
    """Its nodes were free and its turn had come; ending a job and the next look at the queue take Slurm some time."""
    PASS = "next pass of backfill"  # noqa: S105 - no password
    """The job could overtake, which Slurm sees only at its next pass."""
    MISSED = "chance missed"
    """The job could have overtaken between two passes, and at the next pass no longer could."""
    NODES = "certain nodes"
    """For the first waiting job Slurm keeps certain nodes, not a number of them; of the nodes that were idle its plan
    left this job fewer than the rule does, or more."""
    TIMES = "a plan's times"
    """Slurm rounds the times of its plan, and takes ends that are close together as one, so this job fitted before the
    start of the first waiting one by the plan alone, or by the rule alone."""
    PLAN = "another plan"
    """A pass left the job waiting though EASY would have started it, and the pass's plan does not say why."""
    EARLIER = "earlier than EASY allows"
    """By the rule the job would have delayed the first waiting job, and no plan says why that did not matter."""
    HANDED_ON = "handed on"
    """Jobs before it had run at other times."""


@dataclass(frozen=True, slots=True)
class Verdicts:
    """The rule's verdicts on a real replay, one entry per job."""

    allowed_s: Seconds
    """The first instant at which EASY would have started the job; NaN if there was none up to its real start."""
    left: NDArray[np.int64]
    """The first pass of backfilling that left the job waiting when EASY would have started it; -1 if none did."""
    pass_s: Seconds
    """The first pass since the job was allowed to start; NaN if there was none up to its start."""


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
    """Return an array with True for each waiting job that EASY starts now.

    A replay that begins now gives the answer. The running jobs come first in its queue, for the rest of their time, so
    they run at once.
    """
    runs = np.flatnonzero((real.start_s < math.floor(now_s)) & (real.end_s > now_s))
    rest_s = np.maximum(real.start_s[runs] + workload.limit_s[runs] - now_s, 1)  # Slurm lets it run past its limit
    jobs = np.concatenate((runs, waits))
    times_s = np.concatenate((rest_s, workload.limit_s[waits]))
    state = replace(workload.only(jobs), submit_s=np.zeros(len(jobs)), run_s=times_s, limit_s=times_s)
    start_s = replay(state, machine, SchedulerSettings(), until_s=0.5).start_s
    return np.asarray(start_s[len(runs) :] == 0)


def reasons(
    workload: Workload, simulated_s: Seconds, verdicts: Verdicts, real: Record, rules: SlurmFacts
) -> list[Reason]:
    """Return for each job the reason why its real start is not the simulated start."""
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


def _own(workload: Workload, verdicts: Verdicts, real: Record, job: int, rules: SlurmFacts) -> Reason:
    """Return the reason why the job did not start when it was allowed to."""
    left = int(verdicts.left[job])
    if left >= 0:
        room = _room(workload, real, job, real.passes[left], rules)
        if not room.fits_rounded:
            return Reason.TIMES if room.fits else Reason.NODES
        late = _room(workload, real, job, real.passes[left], rules, freeing_s=_FREEING_S)
        return Reason.PLAN if late.fits_rounded else Reason.SCHEDULER
    if math.isnan(verdicts.pass_s[job]):
        return Reason.SCHEDULER
    if real.start_s[job] <= verdicts.pass_s[job] + _PASS_TAKES_S:
        return Reason.PASS if real.by_backfill[job] else Reason.SCHEDULER
    return Reason.MISSED


def _earlier(workload: Workload, real: Record, job: int, rules: SlurmFacts) -> Reason:
    """Return the reason why the job started when the rule did not allow it."""
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
    """The room that a pass of Slurm had for one job, by the pass's own plan for the first waiting job."""

    idle: int
    """The nodes that are idle at the moment."""
    beside: int
    """The idle nodes that the plan does not keep."""
    needed: int
    in_time: bool
    """True if the job ends by its limit before the plan needs its nodes. The end is rounded up, as Slurm does."""
    in_time_unrounded: bool

    @property
    def fits_rounded(self) -> bool:
        return self.needed <= (self.idle if self.in_time else self.beside)

    @property
    def fits(self) -> bool:
        return self.needed <= (self.idle if self.in_time_unrounded else self.beside)


def _room(workload: Workload, real: Record, job: int, at: Pass, rules: SlurmFacts, *, freeing_s: float = 0) -> _Room:
    """Return the room of a pass for a job. Without a plan every idle node counts.

    A job's nodes are held until `freeing_s` after its end.
    """
    order = np.arange(len(workload))
    before = real.start_s < math.floor(at.at_s)
    just_now = ~before & (real.start_s <= at.at_s + _PASS_TAKES_S) & (order < job)  # it looks in order
    holds = (before | just_now) & (real.end_s + freeing_s > at.at_s)
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
