"""The figures of a replay, which show its effect on the cluster and the users. docs/simulate/reference.md has the
formulas.

Node time is measured in a window, by default from the first submission to the last, because afterwards no work arrives
and the machine only empties. A job counts if it was submitted in the window, whenever it ran.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.metrics.node_time import UnitTime, between, jain, occupancy
from gleaner.control.simulation.model import Codes, Counts, Schedule, Seconds

TAU_S = 10.0
"""The least run time in a bounded slowdown. A shorter one counts as this one (Feitelson et al., JSSPP 1997)."""


@dataclass(frozen=True, slots=True)
class Window:
    """The period in which node time is measured, in seconds of the workload."""

    begin_s: float
    end_s: float

    @property
    def length_s(self) -> float:
        return self.end_s - self.begin_s


@dataclass(frozen=True, slots=True)
class Parts:
    """Shares of all unit time in the window, in the order of `UnitTime`. Their sum is 1."""

    regular_restore: float
    regular_compute: float
    regular_lost: float
    regular_save: float
    agents_restore: float
    agents_compute: float
    agents_lost: float
    agents_save: float
    idle: float

    @property
    def effective(self) -> float:
        return self.regular_compute + self.agents_compute

    @property
    def regular(self) -> float:
        return self.regular_compute + self.regular_restore + self.regular_save + self.regular_lost


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of the regular jobs that started, and bounded slowdowns of those that ended. A figure is None if there are
    no such jobs."""

    jobs: int
    mean_s: float | None
    median_s: float | None
    p95_s: float | None
    p99_s: float | None
    mean_slowdown: float | None


@dataclass(frozen=True, slots=True)
class SizeClass:
    """The regular jobs of `smallest` to `largest` units, with their waits with agents and without them (`baseline`)."""

    smallest: int
    largest: int
    waits: Waits
    baseline: Waits | None


@dataclass(frozen=True, slots=True)
class Change:
    """A figure without agents and with agents. `relative` is None if the figure without agents is 0."""

    before: float
    after: float
    absolute: float
    relative: float | None


@dataclass(frozen=True, slots=True)
class Effect:
    """The changes for regular jobs, compared with the same trace without agents. Only jobs that started in both replays
    count."""

    jobs: int
    mean_wait_s: Change
    median_wait_s: Change
    p95_wait_s: Change
    p99_wait_s: Change
    mean_slowdown: Change | None
    regular_load: Change
    effective_load: Change
    idle: Change
    later: float
    """The share of the jobs that started later than without agents. Other jobs might have started earlier."""
    earlier: float


@dataclass(frozen=True, slots=True)
class OwnerFigures:
    """The number of regular jobs of a user or a group that started, and the unit time for which they computed in the
    window."""

    name: str
    jobs: int
    compute_unit_s: float
    throughput: float
    """The mean number of units, over the window, on which the owner's jobs computed."""
    share: float
    """The throughput as a share of all units."""
    mean_wait_s: float | None


@dataclass(frozen=True, slots=True)
class Measures:
    """All figures of one replay."""

    workload: str
    scheduler: str
    units: int
    window: Window
    jobs: int
    started: int
    finished: int
    effective_load: float
    """The unit time that regular jobs and agents spent on work that was not lost, without saves and restores."""
    regular_load: float
    """The unit time that regular jobs held, including their saves and restores."""
    idle: float
    saving: float
    restoring: float
    lost: float
    parts: Parts
    nodes_full: float
    """Shares of the nodes' time. A node that an agent holds counts as full. Nodes can be partly used only if jobs share
    nodes."""
    nodes_mixed: float
    nodes_empty: float
    utilisation: float
    """The unit time that regular jobs held from the first submission to the last end, as a share of all unit time in
    that period."""
    makespan_s: float
    waits: Waits
    size_classes: tuple[SizeClass, ...]
    agents: int
    agent_saves: int
    agent_restores: int
    job_saves: int
    agent_jobs_done: int | None
    """The number of low-priority jobs that were complete at the end, or None if the queue is endless."""
    users: tuple[OwnerFigures, ...]
    groups: tuple[OwnerFigures, ...]
    jain_users: float | None
    """Jain's index of the users' computed unit time, which is 1 if all users had the same amount, and 1/n if one of n
    users had everything."""
    jain_groups: float | None
    effect: Effect | None = None


def default_window(schedule: Schedule) -> Window:
    """Return the window from the first submission to the last.

    The window ends with the replay if the replay was stopped earlier. It ends with the last job if all jobs were
    submitted at the same time. Raise `BadScenario` if no job was submitted or no time passes.
    """
    submit_s, stop_s = schedule.workload.submit_s, schedule.until_s
    came_s = submit_s[~np.isnan(submit_s)]
    if len(came_s) == 0:
        raise BadScenario(f"{schedule.workload.name}: no job was submitted, there is nothing to measure")
    begin_s, end_s = float(came_s.min()), float(came_s.max())
    if stop_s is not None and (stop_s < end_s or len(came_s) < len(submit_s)):
        end_s = stop_s
    if end_s <= begin_s:
        end_s = _last_s(schedule)
    if end_s <= begin_s:
        raise BadScenario(f"{schedule.workload.name}: no time passes between the first submission and the last end")
    return Window(begin_s, end_s)


def measure(schedule: Schedule, baseline: Schedule | None = None, window: Window | None = None) -> Measures:
    """Return all figures of a replay. `baseline` is the same workload on the same machine without agents.

    Raise `BadScenario` if the window has no length.
    """
    window = window or default_window(schedule)
    if not window.length_s > 0:
        raise BadScenario(f"the window ends at {window.end_s:g} s and begins at {window.begin_s:g} s")
    workload, machine = schedule.workload, schedule.machine
    chosen = _submitted(schedule, window)
    regular = between(schedule.jobs, window.begin_s, window.end_s)
    ours = between(schedule.agents, window.begin_s, window.end_s)
    parts = _parts(regular, ours, machine.units * window.length_s)
    first_s, last_s = float(np.nanmin(workload.submit_s)), _last_s(schedule)
    held_unit_s = sum(float(amount) for amount in between(schedule.jobs, first_s, last_s))
    users = _owners(schedule, window, workload.users, workload.user, chosen)
    groups = _owners(schedule, window, workload.groups, workload.group, chosen)
    agents = _agents(schedule)
    nodes = occupancy(schedule, window.begin_s, window.end_s)
    done_s = schedule.agent_jobs_end_s
    return Measures(
        workload=workload.name,
        scheduler=schedule.scheduler,
        units=machine.units,
        window=window,
        jobs=int(chosen.sum()),
        started=int((chosen & ~np.isnan(schedule.start_s)).sum()),
        finished=int((chosen & ~np.isnan(schedule.end_s)).sum()),
        effective_load=parts.effective,
        regular_load=parts.regular,
        idle=parts.idle,
        saving=parts.regular_save + parts.agents_save,
        restoring=parts.regular_restore + parts.agents_restore,
        lost=parts.regular_lost + parts.agents_lost,
        parts=parts,
        nodes_full=nodes.full,
        nodes_mixed=nodes.mixed,
        nodes_empty=nodes.empty,
        utilisation=held_unit_s / (machine.units * (last_s - first_s)) if last_s > first_s else 0.0,
        makespan_s=last_s - first_s,
        waits=_waits(schedule, chosen),
        size_classes=_size_classes(schedule, baseline, chosen),
        agents=int(agents.sum()),
        agent_saves=int(agents[schedule.agents.save_s > 0].sum()),
        agent_restores=int(agents[schedule.agents.restore_s > 0].sum()),
        job_saves=schedule.saves,
        agent_jobs_done=None if done_s is None else int(np.count_nonzero(~np.isnan(done_s))),
        users=users,
        groups=groups,
        jain_users=jain([owner.compute_unit_s for owner in users]),
        jain_groups=jain([owner.compute_unit_s for owner in groups]),
        effect=None if baseline is None else _effect(schedule, baseline, window, parts, chosen),
    )


def _last_s(schedule: Schedule) -> float:
    """Return the time at which the last regular job ended or was stopped. Agents can run longer."""
    return float(schedule.jobs.end_s.max()) if len(schedule.jobs) else 0.0


def _agents(schedule: Schedule) -> Counts:
    """Return the number of agents in each stretch of agents, which is one if the replay knows the stretch's node."""
    each = schedule.agents
    if not schedule.machine.is_uniform:
        return np.ones_like(each.units)
    return np.where(each.node >= 0, 1, each.units // schedule.machine.units_of_node)


def _submitted(schedule: Schedule, window: Window) -> NDArray[np.bool_]:
    submit_s = schedule.workload.submit_s
    return np.asarray((submit_s >= window.begin_s) & (submit_s <= window.end_s))


def _parts(regular: UnitTime, ours: UnitTime, all_unit_s: float) -> Parts:
    shares = [float(amount) / all_unit_s for amount in (*regular, *ours)]
    shares.append(max(0.0, 1 - sum(shares)))
    return Parts(*shares)


def slowdowns(schedule: Schedule, chosen: NDArray[np.bool_]) -> Seconds:
    """Return the bounded slowdowns of the chosen jobs that ended: max(1, (end - submission) / max(run time, 10 s)).

    If some nodes of the machine are faster, the run time is the one on the nodes that the job had.
    """
    ended = chosen & ~np.isnan(schedule.end_s)
    response_s = schedule.end_s[ended] - schedule.workload.submit_s[ended]
    if schedule.machine.is_uniform:
        run_s = schedule.workload.run_s / schedule.machine.classes[0].speed
    else:
        done_s = np.bincount(schedule.jobs.job, schedule.jobs.compute_s, len(schedule.workload))
        run_s = np.asarray(done_s, dtype=np.float64)
    return np.maximum(1.0, response_s / np.maximum(run_s[ended], TAU_S))


def _waits(schedule: Schedule, chosen: NDArray[np.bool_]) -> Waits:
    wait_s = schedule.wait_s[chosen & ~np.isnan(schedule.start_s)]
    slowed = slowdowns(schedule, chosen)
    mean_slowdown = float(slowed.mean()) if len(slowed) else None
    if len(wait_s) == 0:
        return Waits(0, None, None, None, None, mean_slowdown)
    median_s, p95_s, p99_s = (float(value) for value in np.percentile(wait_s, (50, 95, 99)))
    return Waits(len(wait_s), float(wait_s.mean()), median_s, p95_s, p99_s, mean_slowdown)


def _size_classes(schedule: Schedule, baseline: Schedule | None, chosen: NDArray[np.bool_]) -> tuple[SizeClass, ...]:
    """Return the size classes 1, 2 to 4, 5 to 16 and so on, each of which ends at four times the end of the class
    before. Classes without jobs are left out."""
    machine, processors = schedule.machine, schedule.workload.processors
    units = machine.units_asked(processors) if machine.is_uniform else processors
    tops = [1]
    while tops[-1] < int(units.max(initial=1)):
        tops.append(tops[-1] * 4)
    found: list[SizeClass] = []
    for smallest, largest in zip((1, *(top + 1 for top in tops)), tops, strict=False):
        own = chosen & (units >= smallest) & (units <= largest)
        if own.any():
            found.append(
                SizeClass(smallest, largest, _waits(schedule, own), None if baseline is None else _waits(baseline, own))
            )
    return tuple(found)


def _owners(
    schedule: Schedule, window: Window, names: Sequence[str], owner: Codes, chosen: NDArray[np.bool_]
) -> tuple[OwnerFigures, ...]:
    """Return the owners whose jobs were submitted or computed in the window, sorted by their unit time and then by
    name."""
    jobs = schedule.jobs
    begins = np.clip(jobs.start_s + jobs.restore_s, window.begin_s, window.end_s)
    ends = np.clip(jobs.end_s - jobs.save_s - jobs.lost_s, window.begin_s, window.end_s)
    count = len(names)
    got = np.bincount(owner[jobs.job], weights=(ends - begins) * jobs.units, minlength=count)
    started = chosen & ~np.isnan(schedule.start_s)
    submitted = np.bincount(owner[chosen], minlength=count)
    starts = np.bincount(owner[started], minlength=count)
    wait_s = np.bincount(owner[started], weights=schedule.wait_s[started], minlength=count)
    all_unit_s = schedule.machine.units * window.length_s
    owners = [
        OwnerFigures(
            names[index],
            int(starts[index]),
            float(got[index]),
            float(got[index]) / window.length_s,
            float(got[index]) / all_unit_s,
            float(wait_s[index] / starts[index]) if starts[index] else None,
        )
        for index in (int(place) for place in np.flatnonzero((submitted > 0) | (got > 0)))
    ]
    return tuple(sorted(owners, key=lambda one: (-one.compute_unit_s, one.name)))


def _effect(
    schedule: Schedule, baseline: Schedule, window: Window, parts: Parts, chosen: NDArray[np.bool_]
) -> Effect | None:
    both = chosen & ~np.isnan(schedule.start_s) & ~np.isnan(baseline.start_s)
    before, after = _waits(baseline, both), _waits(schedule, both)
    if after.mean_s is None or before.mean_s is None:
        return None
    was = _parts(
        between(baseline.jobs, window.begin_s, window.end_s),
        between(baseline.agents, window.begin_s, window.end_s),
        baseline.machine.units * window.length_s,
    )
    moved_s = schedule.start_s[both] - baseline.start_s[both]
    slowed = before.mean_slowdown is not None and after.mean_slowdown is not None
    return Effect(
        jobs=int(both.sum()),
        mean_wait_s=_change(before.mean_s, after.mean_s),
        median_wait_s=_change(before.median_s, after.median_s),
        p95_wait_s=_change(before.p95_s, after.p95_s),
        p99_wait_s=_change(before.p99_s, after.p99_s),
        mean_slowdown=_change(before.mean_slowdown, after.mean_slowdown) if slowed else None,
        regular_load=_change(was.regular, parts.regular),
        effective_load=_change(was.effective, parts.effective),
        idle=_change(was.idle, parts.idle),
        later=float((moved_s > 0).mean()),
        earlier=float((moved_s < 0).mean()),
    )


def _change(before: float | None, after: float | None) -> Change:
    """Return the change between two figures, if both are known."""
    first, second = before or 0.0, after or 0.0
    return Change(first, second, second - first, (second - first) / first if first else None)
