"""OMFS: entitlements that are taken back by saving others' jobs, on machines whose units need only be counted.

`policy.omfs` decides. Here its answers take time (see `omfs_state`). The queue is in order of submission, and so is
priority: the job that was submitted last is the first to be preempted.

A decision tries every waiting job, as in the listing's endless loop (lines 14 to 17). A decision is taken when a job
came or ended, when units were freed, or when a job has run for a quantum while a claim waits. Between such instants no
answer changes. A job that is preempted in a decision waits for its next try until the current walk over the queue ends.

The event loop is that of `loop`. Units that were promised to a claim need no decision: the job starts when its units
are free.

Agents (`agents`) start last. With preemption, agents are like jobs of an owner entitled to nothing, and are vacated
before any job is preempted: a decision counts their nodes as idle, and a job that gets some of these nodes waits for
the agents' saves as any claim does. Without preemption, agents' nodes are not there until the agents end. A claim may
wait for that too, and no agent starts meanwhile.
"""

import math
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from gleaner.control.policy import omfs
from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Counts, Machine, Schedule, Seconds, Workload, refuse_strangers
from gleaner.control.simulation.replay import agent_starts as low
from gleaner.control.simulation.replay import loop
from gleaner.control.simulation.replay.agents import AgentLog, Finite, RecordArray, layer_of, stretches
from gleaner.control.simulation.replay.compiler import compiled, inner, making
from gleaner.control.simulation.replay.omfs_state import (
    CLAIMS,
    CLASS,
    COST,
    END,
    ENTITLED,
    IDLE,
    JOB,
    LEAST_CLAIM,
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
    State,
    at_first,
    begin,
    begin_complete,
    end_due,
    grant,
    has_room,
    hold,
    record,
    repay,
    stretches_of,
    wait_again,
)
from gleaner.control.simulation.settings import AgentSettings, EntitlementSettings, SchedulerSettings

decide = making(omfs.decide)
is_claim, would_exceed = inner(omfs.is_claim), inner(omfs.would_exceed)
# Imported by name: a compiled function cannot look into a Python module.
release_agents, decide_agents, held_by_agents = low.release, low.decide, low.held

Asked, Owners, Running, Rules = omfs.Asked, omfs.Owners, omfs.Running, omfs.Rules
_START = omfs.START
_VACATE = omfs.VACATE
_WAIT = omfs.WAIT
_STRETCHES = 1000
"""The most stretches per job, on average: beyond that a replay is stopped, where nothing else ends it."""
_NOBODY = 2**62
"""A number of units that is more than any claim asks for."""


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

    Raise `BadScenario` for an entitlement of a group that the workload does not have, where no job may ever start, and
    where jobs preempt each other without end. With agents the listing comes to that: it preempts jobs that still
    restore, and agents cause one decision after the other.
    """
    settings = scheduler.omfs
    state = at_first(workload, machine, settings, entitled_units(workload, machine, settings))
    if keep_waiting:
        state.job_s[SUBMIT] = math.nan
    _check(workload, state, settings)
    layer, finite = layer_of(agents, machine)

    def larger(full: State) -> State:
        if until_s is None and full.n[ROWS] > _STRETCHES * (len(workload) + 100):
            raise BadScenario(
                "scheduler.omfs: jobs vacate each other without end, before they have restored; "
                "raise `quantum_s`, leave `literal` out, or set an end of the replay"
            )
        return full._replace(rows=np.concatenate([full.rows, np.empty_like(full.rows)]))

    rules = loop.rules_of(scheduler, until_s, keep_waiting)
    state, layer, stop_s = loop.run_loop(_run_omfs, state, state.job_s[SUBMIT], rules, layer, finite, larger)
    return Schedule(
        workload=replace(workload, submit_s=state.job_s[SUBMIT].copy()) if keep_waiting else workload,
        machine=machine,
        scheduler=scheduler.kind.value,
        start_s=state.job_s[START].copy(),
        end_s=state.job_s[END].copy(),
        jobs=stretches_of(state),
        agents=stretches(layer, stop_s),
        saves=int(state.n[SAVES]),
        agent_jobs_end_s=None if finite is None else finite.jobs["end_s"].copy(),
    )


def entitled_units(workload: Workload, machine: Machine, settings: EntitlementSettings) -> Counts:
    """Return what each of the workload's groups is entitled to: its share of the units, rounded down (line 22)."""
    refuse_strangers("group", settings.percent, workload.groups, workload.name)
    shares = [settings.percent.get(group, 0.0) * machine.units / 100 for group in workload.groups]
    return np.array([math.floor(share + 1e-9) for share in shares], np.int64)


def _check(workload: Workload, state: State, settings: EntitlementSettings) -> None:
    entitled = state.owner[ENTITLED, state.job[OWNER]]
    classes, units = state.job[CLASS], state.job[UNITS]
    if all(map(omfs.would_exceed, units, classes, repeat(0), entitled, repeat(settings.literal))):
        raise BadScenario(
            f"scheduler.omfs: no job of {workload.name} may ever start: all are non-preemptible and too large for "
            f"their group's entitlement (job {workload.job[0]} asks for {state.job[UNITS, 0]} units, its group has "
            f"{entitled[0]}); set `percent`, or let jobs be preempted"
        )


@inner
def _is_needed(state: State, clock: Any, layer: AgentLog) -> bool:
    """Return True if a decision is due, or if jobs wait for agents."""
    if min(clock.decide_s, clock.wake_s) < np.inf or state.n[CLAIMS] > 0:
        return True
    is_waiting = held_by_agents(layer) > 0 and not layer.rules[0].preemption
    return is_waiting and _is_any_due(state)


@inner
def _free(state: State, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    now_s = float(clock.now_s)
    is_news = end_due(state, now_s)
    if layer is not None and clock.agents_s <= now_s:
        repay(state, release_agents(layer, finite, now_s))
        is_news = True
    begin_complete(state, now_s)
    wait_again(state)
    if clock.wake_s <= now_s:  # a job has run for a quantum, for which a claim waits
        clock.wake_s = np.inf
        is_news = True
    clock.waiting = state.n[WAITING]
    return is_news


@inner
def _enter(state: State, clock: Any, job: int, layer: AgentLog | None) -> bool:
    state.queue[QUEUE, state.n[WAITING]] = job
    state.n[WAITING] += 1
    return True


@making
def _decide(state: State, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    now_s = float(clock.now_s)
    is_claim_waiting = _walk(_Decision(state, now_s, layer), state.rules.literal)
    wait_again(state)
    if is_claim_waiting:
        clock.wake_s = _next_quantum_s(state, state.rules.quantum_s, now_s)
    if layer is not None:
        _send_agents(state, layer, finite, now_s, is_claim_waiting)
    clock.waiting = state.n[WAITING]


@inner
def _is_any_due(state: State) -> bool:
    """Return True if a job waits that may ever start."""
    for place in range(state.n[WAITING]):
        job = state.queue[QUEUE, place]
        entitled = state.owner[ENTITLED, state.job[OWNER, job]]
        if not would_exceed(state.job[UNITS, job], state.job[CLASS, job], 0, entitled, state.rules.literal):
            return True
    return False


@inner
def _send_agents(state: State, layer: Any, finite: Finite | None, now_s: float, is_claim_waiting: bool) -> None:
    """Vacate agents for promised units, and start other agents on idle units, unless these are kept for a claim.

    No agent starts where only agents run and a job waits for them: agents would follow each other for ever.
    """
    n = state.n
    is_alone = n[RUNNING] + n[SAVING] == 0 and not layer.rules[0].preemption
    free = n[IDLE]
    if is_claim_waiting or (is_alone and _is_any_due(state)):
        free = 0
    taken, _end_s = decide_agents(layer, finite, now_s, free, _owed(state), np.inf, free)
    n[IDLE] -= taken


@inner
def _coming(state: State) -> int:
    """Return the units of jobs that are being saved, without those promised to claims."""
    coming = _owed(state)
    for at in range(state.n[SAVING]):
        coming += state.job[UNITS, state.save[JOB, at]]
    for at in range(state.n[CLAIMS]):
        coming -= state.claim[MISSING, at]
    return coming


@inner
def _owed(state: State) -> int:
    """Return the units that agents hold and owe to claims."""
    owed = 0
    for at in range(state.n[CLAIMS]):
        owed += state.claim[LENT, at]
    return owed


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


class _Decision(NamedTuple):
    """All that the questions of one decision need."""

    state: State
    now_s: float
    layer: Any


@inner
def _places(decision: _Decision) -> int:
    """Begin a walk over the queue: put the jobs that wait again into it, and return its length."""
    wait_again(decision.state)
    decision.state.n[LEAST_CLAIM] = _NOBODY
    return int(decision.state.n[WAITING])


@inner
def _take_claim(decision: _Decision, place: int) -> int:
    """Ask for the job at this place if it is a claim. A claim as large as one that must wait must wait too."""
    n, job, owner = decision.state.n, decision.state.job, decision.state.owner
    at = decision.state.queue[QUEUE, place]
    units, whose = job[UNITS, at], job[OWNER, at]
    if units >= n[LEAST_CLAIM] or not is_claim(units, owner[USED, whose], owner[ENTITLED, whose]):
        return omfs.REFUSE
    answer = _try(decision, place, decision.layer)
    if answer == _WAIT:
        n[LEAST_CLAIM] = units
    elif answer == _VACATE:
        n[LEAST_CLAIM] = _NOBODY
    return answer


@inner
def _take_others(decision: _Decision) -> None:
    """Ask for every job that would not be refused for its size alone; by the listing for every job."""
    state = decision.state
    for place in range(_places(decision)):
        units = state.job[UNITS, state.queue[QUEUE, place]]
        if state.rules.literal or units <= _there(state, decision.layer)[0]:
            _try(decision, place, decision.layer)


@inner
def _there(state: State, layer: Any) -> tuple[int, int]:
    """Return the idle units, and the coming units that are promised to nobody.

    The units of agents that can be vacated count as idle.
    """
    idle, coming = int(state.n[IDLE]), int(_coming(state))
    if layer is not None and layer.rules[0].preemption:
        units, agents = int(layer.rules[0].units), layer.state[0]
        unpromised = int(agents.leaving) * units - int(_owed(state))  # negative: further agents have to leave as well
        idle += int(agents.running) * units + min(0, unpromised)
        coming += max(0, unpromised)
    return idle, coming


@inner
def _try(decision: _Decision, place: int, layer: Any) -> int:
    """Ask the policy what becomes of the job at this place of the queue, do it, and return the policy's answer.

    `layer` is the decision's own, once more: the compiler leaves out code for agents only if a parameter is None.
    """
    state, now_s, _layer = decision
    n = state.n
    job = state.queue[QUEUE, place]
    units = state.job[UNITS, job]
    idle, coming = _there(state, layer)
    there = slice(0, n[RUNNING])
    running = Running(
        state.run[RUN_UNITS, there],
        state.run[RUN_UNITS, there],
        state.run[RUN_OWNER, there],
        state.run[RUN_CLASS, there],
        state.run[RUN_PRIORITY, there],
        state.run_s[SINCE, there],
        state.run_s[COST, there],
    )
    owners = Owners(state.owner[USED], state.owner[USED_FIXED], state.owner[PROMISED], state.owner[ENTITLED])
    asked = Asked(units, state.job[OWNER, job], state.job[CLASS, job])
    answer, many = decide(asked, running, owners, idle, coming, now_s, state.rules, state.victims)
    if answer == _START and units <= n[IDLE]:
        n[IDLE] -= units
        hold(state, job, units)
        begin(state, job, now_s)
    elif answer in (_START, _VACATE):  # _START: on agents' nodes, once the agents are saved
        grant(state, job, state.victims[:many], idle - n[IDLE], now_s, state.rules.literal)
    if answer in (_START, _VACATE):
        state.queue[QUEUE, place] = TAKEN
    return answer


_walk = inner(omfs.walk_of(_places, _take_claim, _take_others))


@inner
def _stop(state: State, stop_s: float) -> None:
    """Stop the replay. What ends at that instant has ended; what goes on has a stretch up to then and no end."""
    end_due(state, stop_s)
    for at in range(state.n[RUNNING]):
        since_s = state.run_s[SINCE, at]
        restore_s = min(state.run_s[RESTORING, at], stop_s - since_s)
        record(state, state.run[JOB, at], since_s, stop_s, restore_s, 0.0, 0.0)
    for at in range(state.n[SAVING]):
        since_s, save_s = state.save_s[SINCE, at], stop_s - state.save_s[SAVED_FROM, at]
        record(state, state.save[JOB, at], since_s, stop_s, state.save_s[RESTORING, at], save_s, 0.0)


_loop = making(
    loop.loop_of(loop.Discipline[State](has_room, _next_end_s, _is_needed, _free, _enter, _decide, loop.never, _stop))
)


@compiled
def _run_omfs(  # noqa: PLR0917 - numba takes no keywords
    book: State,
    submit_s: Seconds,
    clocks: RecordArray,
    rules: loop.Rules,
    layer: AgentLog | None,
    finite: Finite | None,
) -> int:
    return _loop(book, submit_s, clocks, rules, layer, finite)
