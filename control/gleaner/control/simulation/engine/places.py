"""Agents with a finite queue: what each of their places does, so that each completion is exact. Compiled.

Jobs are alike but for what is left of them. Saved ones go before new ones, of either the lowest number first, as live
control hands them out. A place whose job is complete takes the next if the shortest slice is left to it; an agent
without any job ends and gives its node back. A node computes while at least one of its places does.

The order of one instant: jobs are restored or complete; agents begin to save; agents end; free places of the others
take what waits. A slot is a node with an agent, whichever it is.
"""

import math

from gleaner.control.simulation.compiled import inner
from gleaner.control.simulation.engine.heap import pop, push
from gleaner.control.simulation.engine.layer import (
    Finite,
    Layer,
    freed,
    logged,
    restore_seconds,
    save_seconds,
)


@inner
def waiting(layer: Layer, finite: Finite) -> int:
    """How many jobs wait."""
    stock = finite.stock[0]
    return int(layer.state[0].saved) + int(stock.returned) + len(finite.jobs) - int(stock.new)


@inner
def past(layer: Layer, finite: Finite, shadow_s: float) -> int:
    """How many nodes agents hold past that instant."""
    nodes = 0
    for at in range(layer.state[0].last):
        if finite.slots[finite.slots[at].order].end_s > shadow_s:
            nodes += 1
    return nodes


@inner
def next_s(layer: Layer, finite: Finite) -> float:
    """The next instant at which `advance` has something to do."""
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
def advance(layer: Layer, finite: Finite, now_s: float) -> None:
    """Do all that is due by now; what is given back is noted in `layer.freed`."""
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
def start(layer: Layer, finite: Finite, now_s: float, end_s: float, nodes: int) -> None:
    """New agents on so many nodes, for which enough jobs wait."""
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
        slots[slot].is_leaving = False
        slots[slot].busy = 0
        slots[slot].computing = 0
        slots[slot].computed_s = 0.0
        for place in range(finite.places.shape[1]):
            _take(layer, finite, slot, place, now_s, restore_s)


@inner
def vacate(layer: Layer, finite: Finite, now_s: float, needed: int) -> None:
    """So many agents more have to leave; see `agents` for which."""
    state, slots = layer.state[0], finite.slots
    places = finite.places.shape[1]
    busy = 0
    last = 0  # of the positions looked at
    while last < state.last and needed > 0:
        slot = slots[slots[last].order]
        if not slot.is_leaving:
            if slot.end_s > now_s + save_seconds(layer, needed * places):
                break
            slot.is_leaving = True
            state.running -= 1
            state.leaving += 1
            needed -= 1
        last += 1
    gone_s = math.inf
    for is_counted in (False, True):  # how long a save takes depends on how many there are
        left = needed
        for at in range(last, state.last):
            slot = int(slots[at].order)
            if left == 0 or slots[slot].is_leaving:
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
def close(layer: Layer, finite: Finite, stop_s: float) -> None:
    """Put into the log what the agents in force have done when the replay stops."""
    _complete(layer, finite, stop_s)
    for at in range(layer.state[0].last):
        _log(layer, finite, int(finite.slots[at].order), stop_s)


@inner
def _begin_due(layer: Layer, finite: Finite, now_s: float) -> None:
    """Groups in which so many jobs run that they have to be saved from now on begin to."""
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
def _begin_s(layer: Layer, finite: Finite, group: int) -> float:
    """When the agents of a group have to begin to save, as many as they are now."""
    save_s = save_seconds(layer, int(finite.groups[group].busy))
    return float(finite.groups[group].end_s) - float(layer.rules[0].margin_s) - save_s


@inner
def _group(finite: Finite, end_s: float) -> int:
    """The group that ends then; a new one if there is none."""
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
def _complete(layer: Layer, finite: Finite, now_s: float) -> None:
    """Jobs whose restore is over compute; those whose work is over are complete."""
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
    """One place more computes."""
    place = finite.places[slot, number]
    place.is_restoring = False
    place.due_s = now_s + finite.jobs[place.job].left_s
    if finite.slots[slot].computing == 0:
        finite.slots[slot].since_s = now_s
    finite.slots[slot].computing += 1


@inner
def _pause(finite: Finite, slot: int, now_s: float) -> None:
    """One place less computes."""
    finite.slots[slot].computing -= 1
    if finite.slots[slot].computing == 0:
        finite.slots[slot].computed_s += now_s - finite.slots[slot].since_s


@inner
def _begin(finite: Finite, slot: int, now_s: float) -> None:
    """The agent begins to save, if it has not yet: what has computed will be a saved job."""
    if finite.slots[slot].begin_s != math.inf:
        return
    finite.slots[slot].begin_s = now_s
    for number in range(finite.places.shape[1]):
        place = finite.places[slot, number]
        if place.job >= 0 and not place.is_restoring:
            job = finite.jobs[place.job]
            left_s = place.due_s - now_s
            job.is_saved = job.is_saved or left_s < job.left_s
            job.left_s = left_s
            _pause(finite, slot, now_s)


@inner
def _end_all(layer: Layer, finite: Finite, now_s: float, only_idle: bool) -> None:
    """End the agents whose time is over, or those that have no job and save none."""
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
                _give_back(layer, finite, int(place.job))
                place.job = -1
    state.last = to


@inner
def _log(layer: Layer, finite: Finite, at: int, now_s: float) -> None:
    slot = finite.slots[at]
    computed_s = float(slot.computed_s)
    if slot.computing > 0:
        computed_s += now_s - float(slot.since_s)
    start_s = float(slot.start_s)
    save_s = max(now_s - float(slot.begin_s), 0.0)
    logged(layer, start_s, now_s, 1, now_s - start_s - computed_s - save_s, save_s)


@inner
def _give_back(layer: Layer, finite: Finite, job: int) -> None:
    """The job waits again: among the saved ones, or before all new ones."""
    state, stock = layer.state[0], finite.stock[0]
    size = int(state.saved) + int(stock.returned)
    if finite.jobs[job].is_saved:
        push(finite.heap_key, finite.heap_job, size, float(job), job)
        state.saved += 1
    else:
        push(finite.heap_key, finite.heap_job, size, float(job + len(finite.jobs)), job)
        stock.returned += 1


@inner
def _refill(layer: Layer, finite: Finite, now_s: float) -> None:
    """Free places of agents that still run long enough take what waits."""
    state, slots, places = layer.state[0], finite.slots, finite.places.shape[1]
    if waiting(layer, finite) == 0:
        return
    restore_s = 0.0
    for is_counted in (False, True):  # how long a restore takes depends on how many there are
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
    layer: Layer, finite: Finite, slot: int, number: int, now_s: float, restore_s: float
) -> None:
    """The place takes the next job, if there is one."""
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
