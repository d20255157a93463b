"""OMFS: entitlements that are taken back by saving others' jobs, on machines whose units need only be counted.

`policy.omfs` decides; here its answers take time (see `vacating`). The queue is in order of submission, and so is
priority: the job that was submitted last is the first to be vacated.

Every waiting job gets a try in a decision, as in the listing's endless loop (lines 14 to 17). A decision is taken where
something came, ended, was freed, or ran for a quantum while a claim waits; between such instants no answer changes. A
job that is vacated in a decision waits for its next try until the walk that it fell in is over.

The rule for one instant is that of `queueing`: first what ends is given back, then what is submitted joins the queue,
then one decision is taken with all of it known, or at the next multiple of `decide_every_s`. What was promised to a
claim needs no decision: the job starts when it is freed.
"""

import math
from dataclasses import replace

import numpy as np

from gleaner.control.policy import omfs
from gleaner.control.simulation.compiled import compiled, inner
from gleaner.control.simulation.engine.vacating import (
    CLAIMS,
    CLASS,
    COST,
    END,
    ENTITLED,
    FIXED,
    IDLE,
    JOB,
    MISSING,
    OWNER,
    PROMISED,
    QUEUE,
    RESTORING,
    ROWS,
    RUN_CLASS,
    RUN_OWNER,
    RUN_PRIORITY,
    RUN_UNITS,
    RUNNING,
    SAVED_FROM,
    SAVES,
    SAVING,
    SINCE,
    START,
    SUBMIT,
    TAKEN,
    UNITS,
    UNTIL,
    USED,
    USED_FIXED,
    WAITING,
    Rows,
    State,
    begin,
    begin_complete,
    end_due,
    grant,
    hold,
    record,
    wait_again,
)
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule, Stretches, no_stretches
from gleaner.control.simulation.settings import AgentSettings, CostSettings, EntitlementSettings, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Seconds, Workload

decide = inner(omfs.decide)

_START = omfs.START
_VACATE = omfs.VACATE
_WAIT = omfs.WAIT
_NOBODY = 2**62
"""Units: more than any claim asks for."""


def run(
    workload: Workload,
    machine: Machine,
    scheduler: SchedulerSettings,
    agents: AgentSettings | None = None,
    *,
    until_s: float | None = None,
    keep_waiting: int = 0,
) -> Schedule:
    """Replay a workload that fits the machine; see `replay`, which checks that and has the same arguments.

    A non-preemptible job that is larger than its owner's entitlement never starts.

    Raises `BadScenario` for an entitlement of a group that the workload does not have, and where no job may ever start.
    """
    settings = scheduler.omfs
    state = _at_first(workload, machine, settings)
    if keep_waiting:
        state.job_s[SUBMIT] = math.nan
    _check(workload, state, settings)
    rows = _replayed(
        state,
        (settings.quantum_s, settings.quantum_protects, settings.literal),
        scheduler.decide_every_s,
        math.inf if until_s is None else until_s,
        keep_waiting,
    )
    return Schedule(
        workload=replace(workload, submit_s=state.job_s[SUBMIT].copy()) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=state.job_s[START].copy(),
        end_s=state.job_s[END].copy(),
        jobs=_stretches(rows),
        agents=no_stretches(),
        saves=int(state.n[SAVES]),
    )


def entitled_units(workload: Workload, machine: Machine, settings: EntitlementSettings) -> Counts:
    """What each of the workload's groups is entitled to: its share of the units, rounded down (line 22)."""
    strangers = sorted(set(settings.percent) - set(workload.groups))
    if strangers:
        known = ", ".join(workload.groups[:5]) + (", …" if len(workload.groups) > 5 else "")
        raise BadScenario(f"scheduler.omfs.percent: {strangers[0]!r} is no group of {workload.name} (it has {known})")
    shares = [settings.percent.get(group, 0.0) * machine.units / 100 for group in workload.groups]
    return np.array([math.floor(share + 1e-9) for share in shares], np.int64)


def _check(workload: Workload, state: State, settings: EntitlementSettings) -> None:
    entitled = state.owner[ENTITLED, state.job[OWNER]]
    if np.all((state.job[CLASS] == FIXED) & (state.job[UNITS] > entitled - int(settings.literal))):
        raise BadScenario(
            f"scheduler.omfs: no job of {workload.name} may ever start: all are non-preemptible and too large for "
            f"their group's entitlement (job {workload.job[0]} asks for {state.job[UNITS, 0]} units, its group has "
            f"{entitled[0]}); set `percent`, or let jobs be preempted"
        )


def _at_first(workload: Workload, machine: Machine, settings: EntitlementSettings) -> State:
    """Nothing waits, nothing runs."""
    count, units = len(workload), machine.units_asked(workload.processors)
    room = min(count, machine.units) + 1
    nothing, never = np.zeros(count), np.full(count, math.nan)
    entitled = entitled_units(workload, machine, settings)
    job = np.array([units, workload.group, workload.job_class, nothing], np.int64)
    times_s = [workload.submit_s, workload.run_s / machine.classes[0].speed, never, never]
    return State(
        n=np.array([machine.units, 0, 0, 0, 0, 0, 0, 0], np.int64),
        job=job,
        job_s=np.array([*times_s, *_cost(settings.save, workload), *_cost(settings.restore, workload)]),
        queue=np.empty((2, count), np.int64),
        owner=np.array([*(np.zeros_like(entitled) for _ in range(ENTITLED)), entitled]),
        run=np.empty((5, room), np.int64),
        run_s=np.empty((4, room)),
        save=np.empty((2, room), np.int64),
        save_s=np.empty((4, room)),
        claim=np.empty((2, room), np.int64),
    )


def _cost(cost: CostSettings, workload: Workload) -> list[Seconds]:
    """The three parts of `CostSettings.seconds` for each job."""
    memory_mib, nothing = workload.memory_mib, np.zeros(len(workload))
    return [
        nothing + cost.constant_s,
        memory_mib / cost.node_mib_s if cost.node_mib_s else nothing,
        memory_mib / cost.shared_mib_s if cost.shared_mib_s else nothing,
    ]


def _stretches(rows: Rows) -> Stretches:
    rows = rows[np.lexsort((rows[:, 0], rows[:, 1]))]
    job, start_s, end_s, units, restore_s, save_s, lost_s = (np.ascontiguousarray(column) for column in rows.T)
    nowhere = np.full(len(rows), -1, np.int32)
    return Stretches(job.astype(np.int64), start_s, end_s, units.astype(np.int64), restore_s, save_s, lost_s, nowhere)


@compiled
def _replayed(state: State, rules: tuple[float, bool, bool], every_s: float, until_s: float, keep_waiting: int) -> Rows:
    """All stretches, in the order of their ends. With `keep_waiting` it writes when each job entered the queue.

    `rules` are the quantum, whether it protects, and whether the listing counts.
    """
    n, submit_s = state.n, state.job_s[SUBMIT]
    jobs = len(submit_s)
    room = 2 * state.run.shape[1]  # so many stretches at most end at one instant
    rows = np.empty((jobs + room, 7))
    come = 0
    now_s = 0.0 if keep_waiting > 0 else -np.inf
    decide_s = np.inf  # when the decision is due that the latest events asked for
    wake_s = np.inf  # when the next job has run for a quantum, while a claim waits for that
    while True:
        if keep_waiting > 0:
            next_s = now_s if come < jobs and n[WAITING] < keep_waiting else np.inf
        else:
            next_s = submit_s[come] if come < jobs else np.inf
        now_s = min(next_s, _next_end_s(state), wake_s, decide_s)
        if not now_s < until_s:
            break
        if len(rows) < n[ROWS] + room:
            rows = _grown(rows)

        is_news = end_due(state, rows, now_s)
        begin_complete(state, now_s)
        wait_again(state)
        if wake_s <= now_s:
            is_news = True
            wake_s = np.inf
        while come < jobs and (n[WAITING] < keep_waiting if keep_waiting > 0 else submit_s[come] <= now_s):
            submit_s[come] = now_s
            state.queue[QUEUE, n[WAITING]] = come
            n[WAITING] += 1
            come += 1
            is_news = True
        if is_news and decide_s == np.inf:
            decide_s = np.ceil(now_s / every_s) * every_s if every_s > 0 else now_s
        if decide_s > now_s:
            continue

        decide_s = np.inf
        if _walk(state, rows, rules, now_s):
            wake_s = _next_quantum_s(state, rules[0], now_s)
    _stop(state, rows, until_s)
    return rows[: n[ROWS]]


@inner
def _grown(rows: Rows) -> Rows:
    more = np.empty((2 * len(rows), rows.shape[1]))
    for row in range(len(rows)):
        for column in range(rows.shape[1]):
            more[row, column] = rows[row, column]
    return more


@inner
def _next_end_s(state: State) -> float:
    soonest_s = np.inf
    for at in range(state.n[RUNNING]):
        soonest_s = min(soonest_s, state.run_s[UNTIL, at])
    for at in range(state.n[SAVING]):
        soonest_s = min(soonest_s, state.save_s[UNTIL, at])
    return soonest_s


@inner
def _next_quantum_s(state: State, quantum_s: float, now_s: float) -> float:
    soonest_s = np.inf
    for at in range(state.n[RUNNING]):
        if state.run_s[SINCE, at] + quantum_s > now_s:
            soonest_s = min(soonest_s, state.run_s[SINCE, at] + quantum_s)
    return soonest_s


@inner
def _walk(state: State, rows: Rows, rules: tuple[float, bool, bool], now_s: float) -> bool:
    """One decision: the claims until no more have others vacated, then the others; see `policy.omfs`.

    By the listing it is one walk, in which each job is tried once. Whether a claim must wait for a quantum.
    """
    n, literal = state.n, rules[2]
    is_for_claims = not literal
    while True:
        least_waiting = _NOBODY  # a claim that asks for as much as one that must wait must wait too
        is_vacated = False
        for place in range(n[WAITING]):
            job = state.queue[QUEUE, place]
            units, owner = state.job[UNITS, job], state.job[OWNER, job]
            if is_for_claims:
                if units > state.owner[ENTITLED, owner] - state.owner[USED, owner] or units >= least_waiting:
                    continue
            elif not literal and units > n[IDLE]:  # it would be refused
                continue
            answer = _try(state, rows, rules, job, now_s)
            if answer == _WAIT:
                least_waiting = units
            elif answer != omfs.REFUSE:
                state.queue[QUEUE, place] = TAKEN
            if answer == _VACATE:
                is_vacated = True
                least_waiting = _NOBODY
        wait_again(state)
        if not is_for_claims or (not is_vacated and least_waiting < _NOBODY):
            return is_for_claims
        is_for_claims = is_vacated


@inner
def _try(state: State, rows: Rows, rules: tuple[float, bool, bool], job: int, now_s: float) -> int:
    """Ask what becomes of a waiting job, and do it."""
    n = state.n
    units = state.job[UNITS, job]
    coming = 0
    for at in range(n[SAVING]):
        coming += state.job[UNITS, state.save[JOB, at]]
    for at in range(n[CLAIMS]):
        coming -= state.claim[MISSING, at]
    there = slice(0, n[RUNNING])
    answer, victims = decide(
        units, state.job[OWNER, job], state.job[CLASS, job], now_s,
        state.run[RUN_UNITS, there], state.run[RUN_OWNER, there], state.run[RUN_CLASS, there],
        state.run[RUN_PRIORITY, there], state.run_s[SINCE, there], state.run_s[COST, there],
        state.owner[USED], state.owner[USED_FIXED], state.owner[PROMISED], state.owner[ENTITLED],
        n[IDLE], coming, *rules,
    )  # fmt: skip
    if answer == _START:
        n[IDLE] -= units
        hold(state, job, units)
        begin(state, job, now_s)
    elif answer == _VACATE:
        grant(state, rows, job, victims, now_s, rules[2])
    return answer


@inner
def _stop(state: State, rows: Rows, until_s: float) -> None:
    """What ends then has ended; what goes on after has a stretch up to then, and no end."""
    end_due(state, rows, until_s)
    for at in range(state.n[RUNNING]):
        since_s = state.run_s[SINCE, at]
        restore_s = min(state.run_s[RESTORING, at], until_s - since_s)
        record(state, rows, state.run[JOB, at], since_s, until_s, restore_s, 0.0, 0.0)
    for at in range(state.n[SAVING]):
        since_s, save_s = state.save_s[SINCE, at], until_s - state.save_s[SAVED_FROM, at]
        record(state, rows, state.save[JOB, at], since_s, until_s, state.save_s[RESTORING, at], save_s, 0.0)
