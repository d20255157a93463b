"""The simulation of each agent separately, with the work in each of its places, so that completions and nodes are
exact. This module is compiled.

Jobs differ only in their remaining work. As in live control, saved jobs come before new jobs, and within each kind the
lowest number comes first. A place whose job is complete takes the next job if at least the shortest slice is left. An
agent that has no job ends and frees its node. A node computes while at least one of its places computes.

The order of events at one instant is as follows. Jobs are restored or complete, agents begin to save, agents end, and
then free places of the other agents take waiting jobs. A slot is a node with an agent. If nodes are only counted, it
does not matter which node it is.
"""

import math

from gleaner.control.simulation.replay.agents import AgentLog, Finite, freed, logged, restore_seconds, save_seconds
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.heap import pop, push


@inner
def waiting(layer: AgentLog, finite: Finite) -> int:
    """Return the number of waiting jobs."""
    stock = finite.stock[0]
    return int(layer.state[0].saved) + int(stock.returned) + len(finite.jobs) - int(stock.new)


@inner
def past(layer: AgentLog, finite: Finite, shadow_s: float) -> int:
    """Return the number of nodes that agents hold past the shadow time."""
    nodes = 0
    for at in range(layer.state[0].last):
        if finite.slots[finite.slots[at].order].end_s > shadow_s:
            nodes += 1
    return nodes


@inner
def next_s(layer: AgentLog, finite: Finite) -> float:
    """Return the next instant at which `advance` has something to do."""
    stock, slots, groups = finite.stock[0], finite.slots, finite.groups
    if stock.is_stale:
        at_s = math.inf
        for group in range(stock.groups):
            if groups[group].begin_s == math.inf and groups[group].busy > 0:
                at_s = min(at_s, _begin_s(layer, finite, group))
        for at in range(layer.state[0].last):
            slot = slots[at].order
            at_s = min(at_s, float(slots[slot].end_s))
            if slots[slot].begin_s == math.inf:
                for place in range(finite.places.shape[1]):
                    if finite.places[slot, place].job >= 0:
                        at_s = min(at_s, float(finite.places[slot, place].due_s))
        stock.next_s = max(at_s, float(stock.latest_s))
        stock.is_stale = False
    return float(stock.next_s)


@inner
def advance(layer: AgentLog, finite: Finite, now_s: float) -> None:
    """Carry out everything that is now due. Freed nodes are recorded in `layer.freed`."""
    stock, groups = finite.stock[0], finite.groups
    stock.is_stale = True
    stock.latest_s = now_s
    _complete(layer, finite, now_s)
    _begin_due(layer, finite, now_s)
    _end_all(layer, finite, now_s, False)
    to = 0
    for group in range(stock.groups):
        if groups[group].end_s > now_s and groups[group].busy > 0:
            groups[to] = groups[group]
            to += 1
    stock.groups = to
    _refill(layer, finite, now_s)
    _end_all(layer, finite, now_s, True)
    _begin_due(layer, finite, now_s)


@inner
def start(layer: AgentLog, finite: Finite, now_s: float, end_s: float, nodes: int) -> None:
    """Start new agents on this many nodes. There must be enough waiting jobs for all of them."""
    state, stock, slots = layer.state[0], finite.stock[0], finite.slots
    stock.is_stale = True
    stock.latest_s = now_s
    group = _group(finite, end_s)
    restore_s = restore_seconds(layer, min(int(state.saved), nodes * finite.places.shape[1]))
    for _ in range(nodes):
        slot = int(slots[state.last].order)
        state.last += 1
        slots[slot].start_s = now_s
        slots[slot].end_s = end_s
        slots[slot].begin_s = math.inf if finite.groups[group].begin_s == math.inf else now_s
        slots[slot].is_leaving = slots[slot].is_wanted = False
        slots[slot].busy = 0
        slots[slot].computing = 0
        slots[slot].computed_s = 0.0
        for place in range(finite.places.shape[1]):
            _take(layer, finite, slot, place, now_s, restore_s)


@inner
def vacate(layer: AgentLog, finite: Finite, now_s: float, needed: int) -> None:
    """Make this many more agents leave: the agents on wanted nodes or, if nodes are only counted, the agents that
    `agent_starts` names."""
    state, slots, is_chosen = layer.state[0], finite.slots, bool(layer.rules[0].on_nodes)
    places = finite.places.shape[1]
    busy = 0
    last = 0  # the position after those that were checked
    while last < state.last and needed > 0:
        slot = slots[slots[last].order]
        if not slot.is_leaving and (slot.is_wanted or not is_chosen):
            if slot.end_s > now_s + save_seconds(layer, needed * places):
                break
            slot.is_leaving = True
            state.running -= 1
            state.leaving += 1
            needed -= 1
        last += 1
    gone_s = math.inf
    for is_counted in (False, True):  # the duration of a save depends on the number of saves
        left = needed
        for at in range(last, state.last):
            slot = int(slots[at].order)
            if left == 0 or slots[slot].is_leaving or (is_chosen and not slots[slot].is_wanted):
                continue
            left -= 1
            if not is_counted:
                busy += int(slots[slot].busy)
                continue
            group = finite.groups[_group(finite, float(slots[slot].end_s))]
            group.busy -= slots[slot].busy
            if group.busy == 0:
                group.begin_s = math.inf
            _begin(finite, slot, now_s)
            slots[slot].end_s = gone_s
            slots[slot].is_leaving = True
            state.running -= 1
            state.leaving += 1
        gone_s = now_s + save_seconds(layer, busy)
    finite.stock[0].is_stale = True
    finite.stock[0].latest_s = now_s


@inner
def close(layer: AgentLog, finite: Finite, stop_s: float) -> None:
    """Record in the log the work of the agents that still run when the replay stops."""
    _complete(layer, finite, stop_s)
    for at in range(layer.state[0].last):
        _log(layer, finite, int(finite.slots[at].order), stop_s)


@inner
def _begin_due(layer: AgentLog, finite: Finite, now_s: float) -> None:
    """Make groups begin to save if the saves of their running jobs have to begin now."""
    slots, groups = finite.slots, finite.groups
    for group in range(finite.stock[0].groups):
        if groups[group].begin_s != math.inf or groups[group].busy == 0 or _begin_s(layer, finite, group) > now_s:
            continue
        groups[group].begin_s = now_s
        for at in range(layer.state[0].last):
            slot = int(slots[at].order)
            if slots[slot].end_s == groups[group].end_s:
                _begin(finite, slot, now_s)


@inner
def _begin_s(layer: AgentLog, finite: Finite, group: int) -> float:
    """Return the time at which the agents of a group have to begin to save, given the present number of their jobs."""
    save_s = save_seconds(layer, int(finite.groups[group].busy))
    return float(finite.groups[group].end_s) - float(layer.rules[0].margin_s) - save_s


@inner
def _group(finite: Finite, end_s: float) -> int:
    """Return the group that ends at `end_s`, which is created if necessary."""
    stock, groups = finite.stock[0], finite.groups
    for group in range(stock.groups):
        if groups[group].end_s == end_s:
            return group
    group = int(stock.groups)
    groups[group].end_s = end_s
    groups[group].busy = 0
    groups[group].begin_s = math.inf
    stock.groups += 1
    return group


@inner
def _complete(layer: AgentLog, finite: Finite, now_s: float) -> None:
    """Let the jobs whose restore is over compute, and complete the jobs whose work is over."""
    slots = finite.slots
    for at in range(layer.state[0].last):
        slot = int(slots[at].order)
        if slots[slot].begin_s != math.inf:
            continue
        for number in range(finite.places.shape[1]):
            place = finite.places[slot, number]
            if place.job < 0 or place.due_s > now_s:
                continue
            if place.is_restoring:
                _compute(finite, slot, number, now_s)
                continue
            finite.jobs[place.job].left_s = 0.0
            finite.jobs[place.job].end_s = now_s
            place.job = -1
            slots[slot].busy -= 1
            finite.groups[_group(finite, float(slots[slot].end_s))].busy -= 1
            _pause(finite, slot, now_s)


@inner
def _compute(finite: Finite, slot: int, number: int, now_s: float) -> None:
    """Let one more place compute."""
    place = finite.places[slot, number]
    place.is_restoring = False
    place.since_s = now_s
    place.due_s = now_s + finite.jobs[place.job].left_s / finite.slots[slot].speed
    if finite.slots[slot].computing == 0:
        finite.slots[slot].since_s = now_s
    finite.slots[slot].computing += 1


@inner
def _pause(finite: Finite, slot: int, now_s: float) -> None:
    """Make one place stop computing."""
    finite.slots[slot].computing -= 1
    if finite.slots[slot].computing == 0:
        finite.slots[slot].computed_s += now_s - finite.slots[slot].since_s


@inner
def _begin(finite: Finite, slot: int, now_s: float) -> None:
    """Make the agent begin to save, unless it has begun already. A job that has computed becomes a saved job."""
    if finite.slots[slot].begin_s != math.inf:
        return
    finite.slots[slot].begin_s = now_s
    for number in range(finite.places.shape[1]):
        place = finite.places[slot, number]
        if place.job >= 0 and not place.is_restoring:
            job = finite.jobs[place.job]
            job.is_saved = job.is_saved or place.since_s < now_s
            job.left_s = (place.due_s - now_s) * finite.slots[slot].speed
            _pause(finite, slot, now_s)


@inner
def _end_all(layer: AgentLog, finite: Finite, now_s: float, only_idle: bool) -> None:
    """End the agents whose time is over, or with `only_idle` those that have no job and are not saving one."""
    state, slots = layer.state[0], finite.slots
    to = 0
    for at in range(state.last):
        slot = int(slots[at].order)
        is_idle = slots[slot].busy == 0 and slots[slot].begin_s == math.inf
        if not (is_idle if only_idle else slots[slot].end_s <= now_s):
            slots[at].order = slots[to].order
            slots[to].order = slot
            to += 1
            continue
        freed(layer, float(slots[slot].end_s), 1)
        if slots[slot].is_leaving:
            state.leaving -= 1
        else:
            state.running -= 1
        _log(layer, finite, slot, now_s)
        for number in range(finite.places.shape[1]):
            place = finite.places[slot, number]
            if place.job >= 0:
                _return_job(layer, finite, int(place.job))
                place.job = -1
    state.last = to


@inner
def _log(layer: AgentLog, finite: Finite, at: int, now_s: float) -> None:
    slot = finite.slots[at]
    computed_s = float(slot.computed_s)
    if slot.computing > 0:
        computed_s += now_s - float(slot.since_s)
    start_s = float(slot.start_s)
    save_s = max(now_s - float(slot.begin_s), 0.0)
    nodes = at if layer.rules[0].on_nodes else 1
    logged(layer, start_s, now_s, nodes, now_s - start_s - computed_s - save_s, save_s)


@inner
def _return_job(layer: AgentLog, finite: Finite, job: int) -> None:
    """Make the job wait again, either among the saved jobs or ahead of all new jobs."""
    state, stock = layer.state[0], finite.stock[0]
    size = int(state.saved) + int(stock.returned)
    if finite.jobs[job].is_saved:
        push(finite.heap_key, finite.heap_job, size, float(job), job)
        state.saved += 1
    else:
        push(finite.heap_key, finite.heap_job, size, float(job + len(finite.jobs)), job)
        stock.returned += 1


@inner
def _refill(layer: AgentLog, finite: Finite, now_s: float) -> None:
    """Let free places take waiting jobs if their agents still run long enough."""
    state, slots, places = layer.state[0], finite.slots, finite.places.shape[1]
    if waiting(layer, finite) == 0:
        return
    restore_s = 0.0
    for is_counted in (False, True):  # the duration of a restore depends on the number of restores
        empty = 0
        for at in range(state.last):
            slot = int(slots[at].order)
            if slots[slot].begin_s != math.inf or slots[slot].end_s - now_s < layer.rules[0].shortest_slice_s:
                continue
            empty += places - int(slots[slot].busy)
            if is_counted and slots[slot].busy < places:
                for place in range(places):
                    if finite.places[slot, place].job < 0:
                        _take(layer, finite, slot, place, now_s, restore_s)
        restore_s = restore_seconds(layer, min(int(state.saved), empty))


@inner
def _take(  # noqa: PLR0917 - numba takes no keywords
    layer: AgentLog, finite: Finite, slot: int, number: int, now_s: float, restore_s: float
) -> None:
    """Let the place take the next job, if there is one."""
    if waiting(layer, finite) == 0:
        return
    state, stock, place = layer.state[0], finite.stock[0], finite.places[slot, number]
    back = int(state.saved) + int(stock.returned)
    if back > 0:
        place.job = finite.heap_job[0]
        pop(finite.heap_key, finite.heap_job, back)
    else:
        place.job = stock.new
        stock.new += 1
    if finite.jobs[place.job].is_saved:
        state.saved -= 1
    elif back > 0:
        stock.returned -= 1
    if not finite.jobs[place.job].is_saved:
        restore_s = 0.0
    finite.slots[slot].busy += 1
    finite.groups[_group(finite, float(finite.slots[slot].end_s))].busy += 1
    place.is_restoring = True
    place.due_s = now_s + restore_s
    if restore_s <= 0 and finite.slots[slot].begin_s == math.inf:
        _compute(finite, slot, number, now_s)
