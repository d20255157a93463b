"""OMFS: entitlements that are taken back by saving others' jobs, on machines whose units need only be counted.

`policy.omfs` decides; here its answers take time (see `vacating`). The queue is in order of submission, and so is
priority: the job that was submitted last is the first to be vacated.

Every waiting job gets a try in a decision, as in the listing's endless loop (lines 14 to 17). A decision is taken where
something came, ended, was freed, or ran for a quantum while a claim waits; between such instants no answer changes. A
job that is vacated in a decision waits for its next try until the walk that it fell in is over.

The rule for one instant is that of `queueing`: first what ends is given back, then what is submitted joins the queue,
then one decision is taken with all of it known, or at the next multiple of `decide_every_s`. What was promised to a
claim needs no decision: the job starts when it is freed.

Agents (`agents`) start last. With preemption they are what an owner entitled to nothing has, and go before all others:
a decision counts their nodes as idle, and a job that gets some of them waits for their saves as any claim does.
Without, their nodes are not there until they end, so that a claim may wait for that too; no agent starts meanwhile.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from gleaner.control.policy import omfs
from gleaner.control.simulation.compiled import compiled, inner, making
from gleaner.control.simulation.engine import agents as low
from gleaner.control.simulation.engine.counted import refuse_strangers
from gleaner.control.simulation.engine.layer import Finite, grown, is_full, layer_of, stretches
from gleaner.control.simulation.engine.vacating import (
    CLAIMS,
    CLASS,
    COST,
    END,
    ENTITLED,
    FIXED,
    IDLE,
    JOB,
    LENT,
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
    at_first,
    begin,
    begin_complete,
    end_due,
    give_back,
    grant,
    hold,
    record,
    stretches_of,
    wait_again,
)
from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.machine import Machine
from gleaner.control.simulation.schedule import Schedule
from gleaner.control.simulation.settings import AgentSettings, EntitlementSettings, SchedulerSettings
from gleaner.control.simulation.workload import Counts, Workload

decide = making(omfs.decide)
# By name: a compiled function may not look into a module that is Python's.
next_agents_s, release_agents, decide_agents, held_by_agents = low.next_s, low.release, low.decide, low.held
close_agents = low.close

_START = omfs.START
_VACATE = omfs.VACATE
_WAIT = omfs.WAIT
_STRETCHES = 1000
"""Of one job, on average: where nothing else ends a replay, it is given up when there are more."""
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

    Raises `BadScenario` for an entitlement of a group that the workload does not have, where no job may ever start, and
    where jobs vacate each other without end (with agents the listing comes to that, since a job that restores is fair
    game, and agents see to it that there is always another decision).
    """
    settings = scheduler.omfs
    state = at_first(workload, machine, settings, entitled_units(workload, machine, settings))
    if keep_waiting:
        state.job_s[SUBMIT] = math.nan
    _check(workload, state, settings)
    layer, finite = layer_of(agents, machine)
    rows, log, stop_s = _replayed(
        state,
        (float(settings.quantum_s), settings.quantum_protects, settings.literal),
        float(scheduler.decide_every_s),
        math.inf if until_s is None else float(until_s),
        keep_waiting,
        layer,
        finite,
    )
    if stop_s == -math.inf:
        raise BadScenario(
            "scheduler.omfs: jobs vacate each other without end, before they have restored; "
            "raise `quantum_s`, leave `literal` out, or set an end of the replay"
        )
    return Schedule(
        workload=replace(workload, submit_s=state.job_s[SUBMIT].copy()) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=state.job_s[START].copy(),
        end_s=state.job_s[END].copy(),
        jobs=stretches_of(rows),
        agents=stretches(layer, log, stop_s),
        saves=int(state.n[SAVES]),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )


def entitled_units(workload: Workload, machine: Machine, settings: EntitlementSettings) -> Counts:
    """What each of the workload's groups is entitled to: its share of the units, rounded down (line 22)."""
    refuse_strangers("scheduler.omfs.percent", "group", settings.percent, workload.groups, workload.name)
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


@compiled
def _replayed(  # noqa: PLR0912, PLR0915, PLR0917 - numba takes no keywords
    state: State,
    rules: tuple[float, bool, bool],
    every_s: float,
    until_s: float,
    keep_waiting: int,
    layer: Any,
    finite: Finite | None,
) -> tuple[Rows, Any, float]:
    """All stretches in the order of their ends, the log of agents, and when the replay stopped.

    `rules` are the quantum, whether it protects, and whether the listing counts. With `keep_waiting` it writes when
    each job entered the queue. Without a layer what is said of agents is not compiled.
    """
    n, submit_s = state.n, state.job_s[SUBMIT]
    jobs = len(submit_s)
    room = 2 * state.run.shape[1]  # so many stretches at most end at one instant
    rows = np.empty((jobs + room, 7))
    come = 0
    now_s = 0.0 if keep_waiting > 0 else -np.inf
    decide_s = np.inf  # when the decision is due that the latest events asked for
    wake_s = np.inf  # when the next job has run for a quantum, while a claim waits for that
    agents = layer
    while True:
        if keep_waiting > 0:
            next_s = now_s if come < jobs and n[WAITING] < keep_waiting else np.inf
        else:
            next_s = submit_s[come] if come < jobs else np.inf
        next_s = min(next_s, _next_end_s(state), wake_s, decide_s)
        if layer is not None:
            waits_for_none = (
                agents.rules[0].preemption or held_by_agents(agents) == 0 or not _is_any_due(state, rules[2])
            )
            if next_s == np.inf and until_s == np.inf and n[CLAIMS] == 0 and waits_for_none:
                break
            if is_full(agents):
                agents = grown(agents)
            next_s = min(next_s, next_agents_s(agents, finite))
        now_s = next_s
        if not now_s < until_s:
            break
        if n[ROWS] > _STRETCHES * (jobs + 100) and until_s == np.inf:
            return rows[:0], None if layer is None else agents.log, -np.inf
        if len(rows) < n[ROWS] + room:
            rows = _grown(rows)

        is_news = end_due(state, rows, now_s)
        if layer is not None and next_agents_s(agents, finite) <= now_s:
            give_back(state, release_agents(agents, finite, now_s))
            is_news = True
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
        is_claim_waiting = _walk(state, rows, rules, now_s, agents)
        if is_claim_waiting:
            wake_s = _next_quantum_s(state, rules[0], now_s)
        if layer is not None:
            _send_agents(state, agents, finite, now_s, is_claim_waiting, rules[2])
    _stop(state, rows, until_s)
    stop_s = now_s if until_s == np.inf else until_s
    if layer is None:
        return rows[: n[ROWS]], None, stop_s
    close_agents(agents, finite, stop_s)
    return rows[: n[ROWS]], agents.log, stop_s


@inner
def _is_any_due(state: State, literal: bool) -> bool:
    """Whether a job waits that may ever start."""
    for place in range(state.n[WAITING]):
        job = state.queue[QUEUE, place]
        entitled = state.owner[ENTITLED, state.job[OWNER, job]]
        if state.job[CLASS, job] != FIXED or state.job[UNITS, job] <= entitled - int(literal):
            return True
    return False


@inner
def _send_agents(  # noqa: PLR0917 - numba takes no keywords
    state: State, layer: Any, finite: Finite | None, now_s: float, is_claim_waiting: bool, literal: bool
) -> None:
    """Vacate agents for what is promised; start others on what is idle, unless it is kept for a claim.

    Nor do they start where only they run and a job waits for them: they would follow each other for ever.
    """
    n = state.n
    is_alone = n[RUNNING] + n[SAVING] == 0 and not layer.rules[0].preemption
    free = n[IDLE]
    if is_claim_waiting or (is_alone and _is_any_due(state, literal)):
        free = 0
    taken, _end_s = decide_agents(layer, finite, now_s, free, _owed(state), np.inf, free)
    n[IDLE] -= taken


@inner
def _coming(state: State) -> int:
    """Units that are being saved and promised to nobody."""
    coming = _owed(state)
    for at in range(state.n[SAVING]):
        coming += state.job[UNITS, state.save[JOB, at]]
    for at in range(state.n[CLAIMS]):
        coming -= state.claim[MISSING, at]
    return coming


@inner
def _owed(state: State) -> int:
    """Units that agents hold and owe to claims."""
    owed = 0
    for at in range(state.n[CLAIMS]):
        owed += state.claim[LENT, at]
    return owed


@making
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
def _walk(state: State, rows: Rows, rules: tuple[float, bool, bool], now_s: float, layer: Any) -> bool:
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
            elif not literal and units > _there(state, layer)[0]:  # it would be refused
                continue
            answer = _try(state, rows, rules, job, now_s, layer)
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
def _there(state: State, layer: Any) -> tuple[int, int]:
    """What is idle, agents' nodes included where they can be vacated, and what is coming and promised to nobody."""
    idle, coming = int(state.n[IDLE]), int(_coming(state))
    if layer is not None and layer.rules[0].preemption:
        units, agents = int(layer.rules[0].units), layer.state[0]
        unpromised = int(agents.leaving) * units - int(_owed(state))  # negative: others have to leave as well
        idle += int(agents.running) * units + min(0, unpromised)
        coming += max(0, unpromised)
    return idle, coming


@inner
def _try(  # noqa: PLR0917 - numba takes no keywords
    state: State, rows: Rows, rules: tuple[float, bool, bool], job: int, now_s: float, layer: Any
) -> int:
    """Ask what becomes of a waiting job, and do it."""
    n = state.n
    units = state.job[UNITS, job]
    idle, coming = _there(state, layer)
    there = slice(0, n[RUNNING])
    answer, victims = decide(
        units, state.job[OWNER, job], state.job[CLASS, job], now_s,
        state.run[RUN_UNITS, there], state.run[RUN_UNITS, there], state.run[RUN_OWNER, there],
        state.run[RUN_CLASS, there], state.run[RUN_PRIORITY, there],
        state.run_s[SINCE, there], state.run_s[COST, there],
        state.owner[USED], state.owner[USED_FIXED], state.owner[PROMISED], state.owner[ENTITLED],
        idle, coming, *rules,
    )  # fmt: skip
    if answer == _START and units <= n[IDLE]:
        n[IDLE] -= units
        hold(state, job, units)
        begin(state, job, now_s)
    elif answer in (_START, _VACATE):  # starts on agents' nodes, once they are saved
        grant(state, rows, job, victims, idle - n[IDLE], now_s, rules[2])
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
