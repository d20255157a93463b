"""One trial of a sweep, reduced to the figures that are compared.

The margin changes nothing of what the cluster does: an agent has its node until its end, however early the agent begins
to save. So one replay serves all margins, and the figures for each margin are computed from the agents' stretches:

- An agent reserves time before its end for its save: the expected time of a save, times a safety, plus the margin. The
  safety is the 0.9 quantile of the saves' times against the expected ones (`gleaner.agent.timing.save_cost`). Time that
  is reserved and not needed computes nothing.
- A save takes the expected time, times a log-normal factor of mean 1, whose standard deviation is `save_spread`. A save
  that takes longer than the reserved time is lost with its slice. The share of slices for which that happens is
  subtracted from what agents computed. Live agents that also save while they go on lose less.
- An agent that Slurm vacates has the grace time instead, which is taken to be long enough.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.agent.timing.save_cost import SAFETY_QUANTILE
from gleaner.control.simulation.metrics.measures import Window, default_window
from gleaner.control.simulation.model import Machine, Schedule, Seconds, Stretches, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import AgentSettings, SchedulerSettings

Outcome = dict[str, list[float]]
"""The figures of a trial by name, one entry for each margin."""


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions that all trials of a sweep share."""

    machine: Machine
    scheduler: SchedulerSettings
    margins_s: tuple[float, ...]
    save_spread: float


def trial(workload: Workload, conditions: Conditions, agents: AgentSettings, without: Schedule) -> Outcome:
    """Return the figures with these agents. `without` is the same replay without agents.

    `agents.margin_s` is ignored: see `figures`.
    """
    agents = agents.model_copy(update={"margin_s": 0.0})
    schedule = replay(workload, conditions.machine, conditions.scheduler, agents)
    return figures(schedule, conditions, agents) | delays(schedule, without)


def trial_without(workload: Workload, conditions: Conditions) -> Schedule:
    """Return the replay without agents."""
    return replay(workload, conditions.machine, conditions.scheduler, None)


def delays(schedule: Schedule, without: Schedule) -> Outcome:
    """Return who pays: the share of regular jobs that start later than without agents, and by how much.

    Jobs that start earlier make the mean wait look better than it is for the others. The times are the mean and the
    95th percentile over the jobs that start later; 0 if there are none. Jobs that never start do not count.
    """
    moved_s = schedule.start_s - without.start_s
    moved_s = moved_s[~np.isnan(moved_s)]
    later_s = moved_s[moved_s > 0]
    return {
        "later": [len(later_s) / max(1, len(moved_s))],
        "earlier": [float(np.count_nonzero(moved_s < 0)) / max(1, len(moved_s))],
        "later_mean_s": [float(later_s.mean()) if len(later_s) else 0.0],
        "later_p95_s": [float(np.quantile(later_s, 0.95)) if len(later_s) else 0.0],
    }


def figures(schedule: Schedule, conditions: Conditions, agents: AgentSettings | None) -> Outcome:
    """Return the figures for each margin, from a replay without a margin.

    A list has one figure for each margin, or a single figure that margins do not change. Loads are shares of all unit
    time in the default window of `measures`.
    """
    window = default_window(schedule)
    whole = window.length_s * schedule.machine.units
    jobs = schedule.jobs
    regular = _within(jobs.start_s + jobs.restore_s, jobs.end_s - jobs.save_s - jobs.lost_s, jobs, window) / whole
    outcome = _regular(schedule) | {"regular_load": [regular]}
    if agents is None:
        return outcome | {"effective_load": [regular]}
    loads: list[float] = []
    lost: list[float] = []
    for margin_s in conditions.margins_s:
        kept, late = _computed(schedule.agents, agents, margin_s, conditions.save_spread, window)
        loads.append(regular + kept / whole)
        lost.append(late / whole)
    return outcome | {"effective_load": loads, "lost": lost} | _costs(schedule.agents, window, whole)


def _regular(schedule: Schedule) -> Outcome:
    """Return the waits of the jobs that started, and how many jobs never start, as happens under omfs."""
    wait_s = schedule.wait_s[~np.isnan(schedule.start_s)]
    return {
        "mean_wait_s": [float(wait_s.mean())],
        "p95_wait_s": [float(np.quantile(wait_s, 0.95))],
        "never_started": [float(len(schedule.start_s) - len(wait_s))],
    }


def _costs(agents: Stretches, window: Window, whole: float) -> Outcome:
    """Return the time that agents spent on saves and restores, without time that they reserved for saves in vain."""
    saving = _within(agents.end_s - agents.save_s, agents.end_s, agents, window)
    restoring = _within(agents.start_s, agents.start_s + agents.restore_s, agents, window)
    return {"saving": [saving / whole], "restoring": [restoring / whole]}


def _computed(
    stretches: Stretches, agents: AgentSettings, margin_s: float, spread: float, window: Window
) -> tuple[float, float]:
    """Return the unit seconds that agents computed and kept, and the unit seconds that late saves lost."""
    vacated = _vacated(stretches, agents)
    reserved_s = np.where(vacated, 0.0, stretches.save_s * (safety(spread) - 1) + margin_s)
    late = np.where(vacated, 0.0, late_share(stretches.save_s, reserved_s, spread))
    begin_s = stretches.start_s + stretches.restore_s
    end_s = stretches.end_s - stretches.save_s - stretches.lost_s - reserved_s
    computed = _overlap(begin_s, end_s, window) * stretches.units
    return float(np.sum(computed * (1 - late))), float(np.sum(computed * late))


def _vacated(stretches: Stretches, agents: AgentSettings) -> NDArray[np.bool_]:
    """Return for each agent whether it was vacated, that is, ended before its time."""
    if not agents.preemption:
        return np.zeros(len(stretches), np.bool_)
    if agents.synchronised:
        boundary_s = np.round(stretches.end_s / agents.length_s) * agents.length_s
        return np.abs(stretches.end_s - boundary_s) > 1e-3
    return stretches.end_s - stretches.start_s < agents.length_s - 1e-3


def safety(spread: float) -> float:
    """Return the factor by which an agent that has seen many saves multiplies a save's expected time; at least 1.

    >>> safety(0), round(safety(0.25), 2)
    (1.0, 1.33)
    """
    from scipy.special import ndtri

    sigma = _sigma(spread)
    return max(1.0, math.exp(float(ndtri(SAFETY_QUANTILE)) * sigma - sigma**2 / 2))


def late_share(save_s: Seconds, reserved_s: Seconds, spread: float) -> Seconds:
    """Return the share of saves that take longer than their expected time `save_s` and the reserve on top of it.

    >>> late_share(np.array([60.0, 60.0, 0.0]), np.array([0.0, 60.0, 0.0]), 0.25).round(4).tolist()
    [0.451, 0.0017, 0.0]
    """
    from scipy.special import ndtr

    if spread == 0:
        return np.zeros(len(save_s))
    sigma = _sigma(spread)
    with np.errstate(divide="ignore", invalid="ignore"):
        needed = np.log1p(reserved_s / save_s)
    needed = np.where(save_s > 0, needed, np.inf)
    return np.asarray(ndtr(-(needed + sigma**2 / 2) / sigma), dtype=np.float64)


def _sigma(spread: float) -> float:
    """Return the sigma of the logarithm of a log-normal factor of mean 1 with this standard deviation."""
    return math.sqrt(math.log1p(spread**2))


def _within(begin_s: Seconds, end_s: Seconds, stretches: Stretches, window: Window) -> float:
    return float(np.sum(_overlap(begin_s, end_s, window) * stretches.units))


def _overlap(begin_s: Seconds, end_s: Seconds, window: Window) -> Seconds:
    """Return how many seconds of each stretch lie in the window."""
    return np.asarray(
        np.maximum(np.minimum(end_s, window.end_s) - np.maximum(begin_s, window.begin_s), 0.0), dtype=np.float64
    )
