"""OMFS, in which owners take back their entitlements by saving others' jobs, on machines whose units are only counted.

`array_policies` decides, as `policy.entitlements` does. Here its decisions take time to carry out (see `omfs_state`).
The queue and the priorities are in the order of submission, so the job that was submitted last is the first to be
preempted.

A decision tries every waiting job, as in the listing's endless loop (lines 14 to 17). A decision is made when a job is
submitted or ends, when units are freed, or when a job has run for a quantum while a claim waits. Between such instants,
no decision would change. A job that is preempted in a decision is not tried again before the end of the current walk
over the queue.

The event loop is the one in `loop`. Promised units need no further decision, because the claim's job starts when its
units are free.

Agents (`agents`) start last. With preemption, agents are like jobs of an owner without an entitlement, and are vacated
before any job is preempted. A decision counts their nodes as idle, and a job that is given some of these nodes waits
for the agents' saves as any claim does. Without preemption, agents' nodes are not available until the agents end. A
claim can also wait for that end, and no agent starts in the meantime.
"""

import math
from itertools import repeat
from typing import Any

import numpy as np

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Counts, Machine, Schedule, Workload, refuse_strangers
from gleaner.control.simulation.replay import agent_starts as low
from gleaner.control.simulation.replay import array_policies, loop
from gleaner.control.simulation.replay import omfs_state as states
from gleaner.control.simulation.replay.agents import AgentLog, Finite, layer_of, stretches
from gleaner.control.simulation.replay.compiler import inner, making, part
from gleaner.control.simulation.replay.compiler import loop as looped
from gleaner.control.simulation.replay.omfs_state import TAKEN, OmfsState, has_room
from gleaner.control.simulation.replay.request import ReplayRequest
from gleaner.control.simulation.settings import OmfsSettings

decide = making(array_policies.decide)
is_claim, would_exceed = inner(array_policies.is_claim), inner(array_policies.would_exceed)

Asked = array_policies.Asked
_START = array_policies.START
_VACATE = array_policies.VACATE
_WAIT = array_policies.WAIT
_STRETCHES = 1000
"""The largest mean number of stretches per job. A replay that exceeds it is stopped, because it might never end."""
_NOBODY = 2**62
"""A number of units that is larger than any claim's."""


def run(request: ReplayRequest) -> Schedule:
    """Replay a workload.

    A non-preemptible job never starts if it is larger than its owner's entitlement.

    Raise `BadScenario` if a group with an entitlement is not in the workload, if no job can ever start, or if jobs
    preempt each other without end. With agents, the listing leads to the last case, because it preempts jobs that are
    still being restored, and agents cause one decision after another.
    """
    workload, machine, settings = request.workload, request.machine, request.scheduler.omfs
    state = states.at_first(workload, machine, settings, entitled_units(workload, machine, settings))
    state.jobs["submit_s"] = request.submit_s()
    _check(workload, state, settings)
    layer, finite = layer_of(request.agents, machine)

    def larger(full: OmfsState) -> OmfsState:
        if request.until_s is None and full.counts["stretches"][0] > _STRETCHES * (len(workload) + 100):
            raise BadScenario(
                "scheduler.omfs: jobs vacate each other without end, before they have restored; "
                "raise `quantum_s`, leave `literal` out, or set an end of the replay"
            )
        table: Any = full.stretches
        return full._replace(stretches=np.concatenate([table, np.empty_like(table)]))

    submit_s = state.jobs["submit_s"]
    state, layer, stop_s = loop.run_loop(_run_omfs, state, submit_s, request, layer, finite, larger)
    jobs, saves = states.stretches_of(state), int(state.counts["saves"][0])
    start_s, end_s = state.jobs["start_s"], state.jobs["end_s"]
    return request.schedule(submit_s, start_s, end_s, jobs, stretches(layer, stop_s), finite=finite, saves=saves)


def entitled_units(workload: Workload, machine: Machine, settings: OmfsSettings) -> Counts:
    """Return the entitlement of each of the workload's groups, which is its share of the units, rounded down (line 22
    of the listing)."""
    refuse_strangers("group", settings.percent, workload.groups, workload.name)
    if not any(settings.percent.values()):
        raise BadScenario("omfs needs entitlements: --set scheduler.omfs.percent.GROUP=PERCENT")
    shares = [settings.percent.get(group, 0.0) * machine.units / 100 for group in workload.groups]
    return np.array([math.floor(share + 1e-9) for share in shares], np.int64)


def _check(workload: Workload, state: OmfsState, settings: OmfsSettings) -> None:
    entitled = state.owners.entitled[state.jobs["owner"]]
    classes, units = state.jobs["job_class"], state.jobs["units"]
    if all(map(array_policies.would_exceed, units, classes, repeat(0), entitled, repeat(settings.literal))):
        raise BadScenario(
            f"scheduler.omfs: no job of {workload.name} may ever start: all are non-preemptible and too large for "
            f"their group's entitlement (job {workload.job[0]} asks for {units[0]} units, its group has "
            f"{entitled[0]}); set `percent`, or let jobs be preempted"
        )


@inner
def _is_needed(state: OmfsState, clock: Any, layer: AgentLog) -> bool:
    """Return True if a decision is due, or if jobs wait for agents."""
    if min(clock.decide_s, clock.wake_s) < np.inf or state.counts[0].claims > 0:
        return True
    is_waiting = low.held(layer) > 0 and not layer.rules[0].preemption
    return is_waiting and _is_any_due(state)


@part
def _free(state: OmfsState, clock: Any, layer: AgentLog | None, finite: Finite | None) -> bool:
    now_s = float(clock.now_s)
    is_news = states.end_due(state, now_s)
    if layer is not None and clock.agents_s <= now_s:
        states.repay(state, low.release(layer, finite, now_s))
        is_news = True
    states.begin_complete(state, now_s)
    states.wait_again(state)
    if clock.wake_s <= now_s:  # a job has run for a quantum while a claim waits
        clock.wake_s = np.inf
        is_news = True
    clock.waiting = state.counts[0].waiting
    return is_news


@part
def _enter(state: OmfsState, clock: Any, job: int, layer: AgentLog | None) -> bool:
    state.queue[state.counts[0].waiting] = job
    state.counts[0].waiting += 1
    return True


@part
def _decide(state: OmfsState, clock: Any, layer: AgentLog | None, finite: Finite | None) -> None:
    now_s = float(clock.now_s)
    is_claim_waiting = _walk(state, now_s, layer)
    states.wait_again(state)
    if is_claim_waiting:
        clock.wake_s = _next_quantum_s(state, state.rules.quantum_s, now_s)
    if layer is not None:
        _send_agents(state, layer, finite, now_s, is_claim_waiting)
    clock.waiting = state.counts[0].waiting


@inner
def _is_any_due(state: OmfsState) -> bool:
    """Return True if any waiting job can ever start."""
    for place in range(state.counts[0].waiting):
        job = state.queue[place]
        entitled = int(state.owners.entitled[state.jobs[job].owner])
        if not would_exceed(state.jobs[job].units, state.jobs[job].job_class, 0, entitled, state.rules.literal):
            return True
    return False


@inner
def _send_agents(state: OmfsState, layer: Any, finite: Finite | None, now_s: float, is_claim_waiting: bool) -> None:
    """Vacate agents for promised units, and start other agents on idle units unless these are reserved for a claim.

    No agent starts if a job waits and only agents run, because agents would follow each other and the job would never
    start.
    """
    n = state.counts[0]
    is_alone = n.running + n.saving == 0 and not layer.rules[0].preemption
    free = n.idle
    if is_claim_waiting or (is_alone and _is_any_due(state)):
        free = 0
    taken, _end_s = low.decide(layer, finite, now_s, free, _owed(state), np.inf, free)
    n.idle -= taken


@inner
def _coming(state: OmfsState) -> int:
    """Return the units of jobs that are being saved, except those that are promised to claims."""
    coming = _owed(state)
    for at in range(state.counts[0].saving):
        coming += state.jobs[state.saving[at].job].units
    for at in range(state.counts[0].claims):
        coming -= state.claims[at].missing
    return coming


@inner
def _owed(state: OmfsState) -> int:
    """Return the units that agents hold and owe to claims."""
    owed = 0
    for at in range(state.counts[0].claims):
        owed += state.claims[at].lent
    return owed


@inner
def _next_end_s(state: OmfsState) -> float:
    soonest_s = np.inf
    for at in range(state.counts[0].running):
        soonest_s = min(soonest_s, state.running[at].until_s)
    for at in range(state.counts[0].saving):
        soonest_s = min(soonest_s, state.saving[at].until_s)
    return soonest_s


@inner
def _next_quantum_s(state: OmfsState, quantum_s: float, now_s: float) -> float:
    soonest_s = np.inf
    for at in range(state.counts[0].running):
        if state.running[at].since_s + quantum_s > now_s:
            soonest_s = min(soonest_s, state.running[at].since_s + quantum_s)
    return soonest_s


@part
def _walk(state: OmfsState, now_s: float, layer: AgentLog | None) -> bool:
    """Decide on the claims until they preempt no more jobs, then on the other jobs. The listing does not separate
    claims from other jobs.

    If a claim must wait, other claims of the same or a larger size must wait as well. Among the other jobs, those that
    need more than the idle units are refused without a decision, while the listing tries every job. Return True if the
    other jobs were not tried, because idle units are reserved for a waiting claim.
    """
    n, owners, literal = state.counts[0], state.owners, state.rules.literal
    is_vacated, is_waiting = not literal, False
    while is_vacated:
        is_vacated, is_waiting = False, False
        least_claim = _NOBODY
        states.wait_again(state)
        for place in range(n.waiting):
            job = state.jobs[state.queue[place]]
            units, used, entitled = job.units, int(owners.used[job.owner]), int(owners.entitled[job.owner])
            if units >= least_claim or not is_claim(units, used, entitled):
                continue
            answer = _try(state, place, now_s, layer)
            if answer == _WAIT:
                least_claim = units
                is_waiting = True
            elif answer == _VACATE:
                least_claim = _NOBODY
                is_vacated = True
    if is_waiting:
        return True
    states.wait_again(state)
    idle = _there(state, layer)[0]
    for place in range(n.waiting):
        if literal or state.jobs[state.queue[place]].units <= idle:
            _try(state, place, now_s, layer)
            idle = _there(state, layer)[0]
    return False


@inner
def _there(state: OmfsState, layer: Any) -> tuple[int, int]:
    """Return the idle units, and the units that will soon be free and are not promised to a claim.

    The units of agents that can be vacated count as idle.
    """
    idle, coming = int(state.counts[0].idle), int(_coming(state))
    if layer is not None and layer.rules[0].preemption:
        units, agents = int(layer.rules[0].units), layer.state[0]
        unpromised = int(agents.leaving) * units - int(_owed(state))  # negative if more agents have to leave
        idle += int(agents.running) * units + min(0, unpromised)
        coming += max(0, unpromised)
    return idle, coming


@inner
def _try(state: OmfsState, place: int, now_s: float, layer: Any) -> int:
    """Let the policy decide on the job at this place in the queue, carry out the decision, and return it."""
    n = state.counts[0]
    job = state.queue[place]
    units = state.jobs[job].units
    idle, coming = _there(state, layer)
    running = state.running[: n.running]
    asked = Asked(units, state.jobs[job].owner, state.jobs[job].job_class)
    answer, many = decide(asked, running, state.owners, idle, coming, now_s, state.rules, state.victims)
    if answer == _START and units <= n.idle:
        n.idle -= units
        states.hold(state, job, units)
        states.begin(state, job, now_s)
    elif answer in (_START, _VACATE):  # _START here means on agents' nodes, after their saves
        states.grant(state, job, state.victims[:many], idle - n.idle, now_s, state.rules.literal)
    if answer in (_START, _VACATE):
        state.queue[place] = TAKEN
    return answer


@inner
def _stop(state: OmfsState, stop_s: float) -> None:
    """Stop the replay. Work that ends at that instant has ended. Other running work has a stretch up to then, but no
    end."""
    states.end_due(state, stop_s)
    for at in range(state.counts[0].running):
        since_s = state.running[at].since_s
        restore_s = min(state.running[at].restoring_s, stop_s - since_s)
        states.record(state, state.running[at].job, since_s, stop_s, restore_s, 0.0, 0.0)
    for at in range(state.counts[0].saving):
        since_s, save_s = state.saving[at].since_s, stop_s - state.saving[at].saved_from_s
        states.record(state, state.saving[at].job, since_s, stop_s, state.saving[at].restoring_s, save_s, 0.0)


_DISCIPLINE = loop.Discipline[OmfsState](has_room, _next_end_s, _is_needed, _free, _enter, _decide, loop.never, _stop)
_loop = part(loop.loop_of(_DISCIPLINE))


@looped
def _run_omfs(*state: Any) -> int:
    return _loop(*state)
