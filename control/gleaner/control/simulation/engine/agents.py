"""Agents on idle nodes: when they start, end and are vacated. Compiled; every engine's loop calls it.

How many start is the live planner's answer (`policy.rounds`), compiled. What a loop has to do:

- Its next instant is at most `next_s`. When that has come, `release` gives nodes back, and a decision is due.
- To a regular scheduler, an agent is work that runs with a known end. With preemption it is nothing: the loop decides
  as though agents' nodes were free, starts what fits on those that are, and owes the others their nodes.
- After all regular decisions of an instant, `decide` has agents vacated for what is owed, and starts new ones where
  they delay no promise. With nothing promised, none should start where the first job waits for agents alone: agents
  that follow each other on its nodes would keep it waiting for ever.
- `grown` at the top of the loop, `close` behind it.

Agents that start together are one entry with a count, so that a machine full of them costs what one costs. Both ends
of entries ascend: those that started first end first. A finite queue needs to know what each agent does: `places`.

What a slice is spent on: the jobs are restored (new ones need not be), compute, and are saved before the end. All
that end at one instant save together, and begin when so many have to; one that starts after that has nothing to save.
Its time up to the end counts as saving: nothing is computed in it.
"""

import math

from gleaner.control.policy import rounds
from gleaner.control.simulation.compiled import inner, making
from gleaner.control.simulation.engine import places
from gleaner.control.simulation.engine.layer import (
    Finite,
    Layer,
    Records,
    freed,
    logged,
    restore_seconds,
    save_seconds,
)

agent_end = inner(rounds.agent_end)
agents_to_start = making(rounds.agents_to_start)
# By name: a compiled function may not look into a module that is Python's.
next_of_places, advance_places, close_places = places.next_s, places.advance, places.close
start_places, vacate_places, past_of_places, waiting_jobs = places.start, places.vacate, places.past, places.waiting


@inner
def next_s(layer: Layer, finite: Finite | None) -> float:
    """When agents end next, or may start although nothing else happens; infinite: never."""
    state = layer.state[0]
    at_s = float(state.wake_s)
    if finite is not None:
        return min(at_s, next_of_places(layer, finite))
    at_s = min(at_s, _next_leaving_s(layer, layer.leavings))
    if state.first < state.last:
        at_s = min(at_s, float(layer.entries[state.first].end_s))
    return at_s


@inner
def held(layer: Layer) -> int:
    """Units of the machine that agents hold, those that are being vacated included."""
    state = layer.state[0]
    return int(state.running + state.leaving) * int(layer.rules[0].units)


@inner
def held_past(layer: Layer, finite: Finite | None, at_s: float) -> int:
    """Units of the machine that agents hold past that instant."""
    state = layer.state[0]
    units = int(layer.rules[0].units)
    if finite is not None:
        return past_of_places(layer, finite, at_s) * units
    nodes = _leaving_past(layer, layer.leavings, at_s)
    entry = int(state.last) - 1
    while entry >= state.first and layer.entries[entry].end_s > at_s:
        nodes += int(layer.entries[entry].nodes)
        entry -= 1
    return nodes * units


@inner
def release(layer: Layer, finite: Finite | None, now_s: float) -> int:
    """Give back what ends by now; how many units. `layer.freed` tells when each was expected to end."""
    state = layer.state[0]
    state.freed = 0
    if state.wake_s <= now_s:
        state.wake_s = math.inf
    if finite is not None:
        advance_places(layer, finite, now_s)
    else:
        _release_leavings(layer, layer.leavings, now_s)
        while state.first < state.last and layer.entries[state.first].end_s <= now_s:
            _end_first_group(layer)
    units = 0
    for entry in range(state.freed):
        units += int(layer.freed[entry].units)
    return units


@inner
def decide(  # noqa: PLR0917 - numba takes no keywords
    layer: Layer, finite: Finite | None, now_s: float, free: int, owed: int, shadow_s: float, extra: int
) -> tuple[int, float]:
    """Vacate agents for what is owed to regular jobs, start others: how many units these take, and when they will end.

    `free` units are idle; `owed` are owed to jobs that start as soon as that many are. New agents may hold `extra`
    units past the shadow time. With preemption the loop has taken from what its scheduler leaves what other agents
    hold (`held_past`), since that does not count them.
    """
    rules, state = layer.rules[0], layer.state[0]
    units = int(rules.units)
    needed = min(-(-(owed - free) // units) - int(state.leaving), int(state.running))  # regular jobs may owe some, too
    if needed > 0:
        if finite is not None:
            vacate_places(layer, finite, now_s, needed)
        else:
            _vacate(layer, layer.leavings, now_s, needed)
    free -= max(0, owed - int(state.leaving) * units)
    end_s = agent_end(now_s, float(rules.length_s), 0.0, bool(rules.synchronised))
    if end_s > shadow_s:
        free = min(free, extra)
    if free < units:
        return 0, end_s
    counts = layer.counts
    counts[1, 0] = free // units
    if finite is not None:
        counts[3, 0] = waiting_jobs(layer, finite)
    nodes, _is_work_left = agents_to_start(
        end_s - now_s,
        float(rules.shortest_slice_s),
        int(rules.at_most),
        0,
        int(state.running + state.leaving),
        0,
        counts[0],
        counts[0],
        counts[1],
        counts[2],
        counts[2],
        counts[3],
        layer.fits,
    )
    if nodes == 0:
        if end_s - now_s < rules.shortest_slice_s:
            state.wake_s = end_s
        return 0, end_s
    state.running += nodes
    if finite is not None:
        start_places(layer, finite, now_s, end_s, nodes)
    else:
        _enter(layer, now_s, end_s, nodes)
    return nodes * units, end_s


@inner
def close(layer: Layer, finite: Finite | None, stop_s: float) -> None:
    """Put into the log what is in force when the replay stops."""
    if finite is not None:
        close_places(layer, finite, stop_s)
        return
    while layer.state[0].first < layer.state[0].last:
        _end_first_group(layer)


@inner
def _vacate(layer: Layer, leavings: Records | None, now_s: float, needed: int) -> None:
    """So many agents more have to leave.

    Those that end first go first, of these those that started first: their save is due soonest anyway, and they have
    had the most of what their restore has cost. Who ends before it could be saved is left alone.
    """
    if leavings is not None:
        _vacate_some(layer, leavings, now_s, needed)


@inner
def _vacate_some(layer: Layer, leavings: Records, now_s: float, needed: int) -> None:
    rules, state, entries = layer.rules[0], layer.state[0], layer.entries
    entry = int(state.first)
    passed = int(state.coming)  # nodes of this entry that have to leave already
    while entry < state.last:
        if passed >= entries[entry].nodes:
            passed -= int(entries[entry].nodes)
            entry += 1
        elif needed > 0 and entries[entry].end_s <= now_s + save_seconds(layer, needed * rules.places):
            passed += 1
            needed -= 1
            state.coming += 1
            state.leaving += 1
            state.running -= 1
        else:
            break
    needed = min(needed, int(state.running))
    if needed <= 0:
        return
    gone_s = now_s + save_seconds(layer, needed * rules.places)
    saved = 0
    begin_s = math.inf
    group_s = -math.inf
    left = needed
    while left > 0:
        if entries[entry].end_s != group_s:
            group_s = entries[entry].end_s
            other = entry
            while other > state.first and entries[other - 1].end_s == group_s:
                other -= 1
            begin_s = _begin_s(layer, other)
            if begin_s <= now_s:  # it stays so, however many are at it now
                while other < state.last and entries[other].end_s == group_s:
                    entries[other].begin_s = begin_s
                    other += 1
            begin_s = min(now_s, begin_s)
        nodes = min(left, int(entries[entry].nodes) - passed)
        passed = 0
        saved += _spend(layer, entry, nodes, gone_s, begin_s)
        entries[entry].nodes -= nodes
        left -= nodes
        entry += 1
    while state.first < state.last and entries[state.first].nodes == 0:
        state.first += 1
    _leave(layer, leavings, gone_s, needed, saved)


@inner
def _leave(layer: Layer, leavings: Records, gone_s: float, nodes: int, saved: int) -> None:
    """Note that these nodes will be free then."""
    state = layer.state[0]
    state.running -= nodes
    state.leaving += nodes
    at = state.leavings
    while at > 0 and leavings[at - 1].end_s > gone_s:
        leavings[at] = leavings[at - 1]
        at -= 1
    leavings[at].end_s = gone_s
    leavings[at].nodes = nodes
    leavings[at].saved = saved
    state.leavings += 1


@inner
def _next_leaving_s(layer: Layer, leavings: Records | None) -> float:
    """When the first of those that are being vacated are gone; infinite: nobody is."""
    if leavings is not None and layer.state[0].leavings > 0:
        return float(leavings[0].end_s)
    return math.inf


@inner
def _leaving_past(layer: Layer, leavings: Records | None, at_s: float) -> int:
    """Nodes whose agents will have left only after that instant."""
    nodes = 0
    if leavings is not None:
        for entry in range(layer.state[0].leavings):
            if leavings[entry].end_s > at_s:
                nodes += int(leavings[entry].nodes)
    return nodes


@inner
def _release_leavings(layer: Layer, leavings: Records | None, now_s: float) -> None:
    """Give back what has been vacated by now."""
    if leavings is None:
        return
    state = layer.state[0]
    gone = 0
    while gone < state.leavings and leavings[gone].end_s <= now_s:
        state.leaving -= leavings[gone].nodes
        state.saved += leavings[gone].saved
        freed(layer, float(leavings[gone].end_s), int(leavings[gone].nodes))
        gone += 1
    if gone > 0:
        for entry in range(gone, state.leavings):
            leavings[entry - gone] = leavings[entry]
        state.leavings -= gone


@inner
def _enter(layer: Layer, now_s: float, end_s: float, nodes: int) -> None:
    """New entries: agents that restore what was saved, and others for which nothing saved is left."""
    state, entries = layer.state[0], layer.entries
    if state.last + 2 > len(entries):  # to the front of the array, without those of which nothing is left
        to = 0
        for entry in range(state.first, state.last):
            if entries[entry].nodes > 0:
                entries[to] = entries[entry]
                to += 1
        state.first = 0
        state.last = to
    restored = min(nodes, int(state.saved))
    for was_saved in (True, False):
        of_these = restored if was_saved else nodes - restored
        if of_these > 0:
            entry = entries[state.last]
            entry.start_s = now_s
            entry.end_s = end_s
            entry.nodes = of_these
            entry.restore_s = restore_seconds(layer, of_these * layer.rules[0].places) if was_saved else 0.0
            entry.was_saved = was_saved
            entry.begin_s = math.inf
            state.last += 1
    state.saved -= restored


@inner
def _begin_s(layer: Layer, first: int) -> float:
    """When the agents that end with this entry, the first of its end, begin to save.

    That is as soon as those that are there by then must; one that starts later finds them at it.
    """
    rules, entries = layer.rules[0], layer.entries
    if entries[first].begin_s < math.inf:
        return float(entries[first].begin_s)
    end_s = float(entries[first].end_s)
    begin_s = math.inf
    nodes = 0
    entry = first
    while entry < layer.state[0].last and entries[entry].end_s == end_s and entries[entry].start_s < begin_s:
        if entries[entry].nodes > 0:
            nodes += int(entries[entry].nodes)
            begin_s = end_s - float(rules.margin_s) - save_seconds(layer, nodes * rules.places)
            begin_s = max(begin_s, float(entries[entry].start_s))
        entry += 1
    return begin_s


@inner
def _end_first_group(layer: Layer) -> None:
    """End the first entries in force, all with one end."""
    state, entries = layer.state[0], layer.entries
    entry = int(state.first)
    end_s = float(entries[entry].end_s)
    begin_s = _begin_s(layer, entry)
    nodes = 0
    while entry < state.last and entries[entry].end_s == end_s:
        state.saved += _spend(layer, entry, int(entries[entry].nodes), end_s, begin_s)
        nodes += int(entries[entry].nodes)
        entry += 1
    state.first = entry
    coming = min(nodes, int(state.coming))
    state.coming -= coming
    state.leaving -= coming
    state.running -= nodes - coming
    freed(layer, end_s, nodes)


@inner
def _spend(layer: Layer, at: int, nodes: int, end_s: float, begin_s: float) -> int:
    """Log what so many agents of the entry did until their end; how many nodes' worth of saved jobs they give back."""
    entry = layer.entries[at]
    start_s = float(entry.start_s)
    begin_s = max(begin_s, start_s)
    restore_s = min(float(entry.restore_s), begin_s - start_s)
    if nodes > 0:
        logged(layer, start_s, end_s, nodes, restore_s, end_s - begin_s)
    return nodes if entry.was_saved or start_s + restore_s < begin_s else 0
