"""Agents on idle nodes, and the times at which they start, end and are vacated. This module is compiled, and every
discipline calls it.

`array_policies.agents_to_start` decides how many agents start. The rules for a loop are as follows:

- The loop's next instant is at most `next_s`. At that instant `release` frees nodes, and a decision is due.
- A regular scheduler sees an agent as running work with a known end. With preemption, the scheduler does not see
  agents. The loop decides as if the agents' nodes were free, starts the jobs that fit on nodes which are really free,
  and owes the other jobs their nodes.
- After all regular decisions of an instant, `decide` vacates agents for the owed nodes, and starts new agents where
  they delay no promise. If nothing is promised, no agent should start while the first job waits only for agents.
  Otherwise one agent after another could take the job's nodes and keep it waiting permanently.
- Before the log is full (`is_full`), the loop pauses so that the log can be enlarged. At its end, the loop calls
  `close`.

Agents that start together are one entry with a count, so that a machine full of agents takes no longer to simulate than
one agent. Both the starts and the ends of entries are in ascending order, because agents that started first end first.
With a finite queue, the work of each agent matters, so `agent_slots` is used instead.

In each slice, the jobs are restored unless they are new, then compute, and are saved before the end. All agents that
end at one instant save together, and begin as early as the number of saves requires. An agent that starts later than
that has nothing to save. Its time until the end counts as saving, because nothing is computed in it.
"""

import math

from gleaner.control.policy import provisioning
from gleaner.control.simulation.replay import agent_slots, array_policies
from gleaner.control.simulation.replay.agents import (
    ENDLESS,
    AgentLog,
    Finite,
    freed,
    logged,
    restore_seconds,
    save_seconds,
)
from gleaner.control.simulation.replay.compiler import inner

agent_end = inner(provisioning.agent_end)
agents_to_start = inner(array_policies.agents_to_start)


@inner
def next_s(layer: AgentLog, finite: Finite | None) -> float:
    """Return the next time at which agents end, or can start although nothing else happens. It is infinite if there is
    no such time."""
    state = layer.state[0]
    at_s = float(state.wake_s)
    if finite is not None:
        return min(at_s, agent_slots.next_s(layer, finite))
    if state.leavings > 0:
        at_s = min(at_s, float(layer.leavings[0].end_s))
    if state.first < state.last:
        at_s = min(at_s, float(layer.entries[state.first].end_s))
    return at_s


@inner
def held(layer: AgentLog) -> int:
    """Return the number of units that agents hold, including agents that are being vacated."""
    state = layer.state[0]
    return int(state.running + state.leaving) * int(layer.rules[0].units)


@inner
def held_past(layer: AgentLog, finite: Finite | None, at_s: float) -> int:
    """Return the number of units that agents hold past that instant."""
    state = layer.state[0]
    units = int(layer.rules[0].units)
    if finite is not None:
        return agent_slots.past(layer, finite, at_s) * units
    nodes = _leaving_past(layer, at_s)
    entry = int(state.last) - 1
    while entry >= state.first and layer.entries[entry].end_s > at_s:
        nodes += int(layer.entries[entry].nodes)
        entry -= 1
    return nodes * units


@inner
def release(layer: AgentLog, finite: Finite | None, now_s: float) -> int:
    """Free the nodes of agents that have ended by now, and return the number of freed units. Their expected ends are in
    `layer.freed`."""
    state = layer.state[0]
    state.freed = 0
    if state.wake_s <= now_s:
        state.wake_s = math.inf
    if finite is not None:
        agent_slots.advance(layer, finite, now_s)
    else:
        _release_leavings(layer, now_s)
        while state.first < state.last and layer.entries[state.first].end_s <= now_s:
            _end_first_group(layer)
    units = 0
    for entry in range(state.freed):
        units += int(layer.freed[entry].units)
    return units


@inner
def decide(  # noqa: PLR0917 - numba takes no keywords
    layer: AgentLog, finite: Finite | None, now_s: float, free: int, owed: int, shadow_s: float, extra: int
) -> tuple[int, float]:
    """Vacate agents for the units that are owed to regular jobs, and start new agents.

    Return the number of units that the new agents take, and the time at which they will end. `free` units are idle.
    `owed` units are owed to jobs that start as soon as that many are idle. New agents can hold `extra` units past the
    shadow time. With preemption, the scheduler does not count agents, so the loop has already subtracted from `extra`
    the units that other agents hold (`held_past`).
    """
    rules, state = layer.rules[0], layer.state[0]
    units = int(rules.units)
    needed = min(-(-(owed - free) // units) - int(state.leaving), int(state.running))  # jobs might hold the rest
    if needed > 0 and rules.preemption:
        if finite is not None:
            agent_slots.vacate(layer, finite, now_s, needed)
        else:
            _vacate(layer, now_s, needed)
    free -= max(0, owed - int(state.leaving) * units)
    end_s = agent_end(now_s, float(rules.length_s), 0.0, bool(rules.synchronised))
    if end_s > shadow_s:
        free = min(free, extra)
    if free < units:
        return 0, end_s
    waiting = ENDLESS
    if finite is not None:
        waiting = agent_slots.waiting(layer, finite)
    nodes = agents_to_start(
        end_s - now_s,
        float(rules.shortest_slice_s),
        int(rules.agents_at_most),
        int(state.running + state.leaving),
        free // units,
        int(rules.jobs_per_agent),
        waiting,
    )
    if nodes == 0:
        if end_s - now_s < rules.shortest_slice_s:
            state.wake_s = end_s
        return 0, end_s
    state.running += nodes
    if finite is not None:
        agent_slots.start(layer, finite, now_s, end_s, nodes)
    else:
        _enter(layer, now_s, end_s, nodes)
    return nodes * units, end_s


@inner
def close(layer: AgentLog, finite: Finite | None, stop_s: float) -> None:
    """Record in the log the entries of agents that still run when the replay stops."""
    if finite is not None:
        agent_slots.close(layer, finite, stop_s)
        return
    while layer.state[0].first < layer.state[0].last:
        _end_first_group(layer)


@inner
def _vacate(layer: AgentLog, now_s: float, needed: int) -> None:
    """Make this many more agents leave.

    The agents that end first leave first and, among those with the same end, the ones that started first. Their save is
    due soonest anyway, and they have gained most from their restore. An agent that ends before it could be saved is
    left alone.
    """
    rules, state, entries = layer.rules[0], layer.state[0], layer.entries
    entry = int(state.first)
    passed = int(state.coming)  # nodes of this entry that already have to leave
    while entry < state.last:
        if passed >= entries[entry].nodes:
            passed -= int(entries[entry].nodes)
            entry += 1
        elif needed > 0 and entries[entry].end_s <= now_s + save_seconds(layer, needed * rules.jobs_per_agent):
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
    gone_s = now_s + save_seconds(layer, needed * rules.jobs_per_agent)
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
            if begin_s <= now_s:  # the beginning stays the same, however many agents remain
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
    _leave(layer, gone_s, needed, saved)


@inner
def _leave(layer: AgentLog, gone_s: float, nodes: int, saved: int) -> None:
    """Record that these nodes will be free at `gone_s`."""
    state, leavings = layer.state[0], layer.leavings
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
def _leaving_past(layer: AgentLog, at_s: float) -> int:
    """Return the number of nodes whose agents are being vacated, but will be gone only after that instant."""
    nodes = 0
    for entry in range(layer.state[0].leavings):
        if layer.leavings[entry].end_s > at_s:
            nodes += int(layer.leavings[entry].nodes)
    return nodes


@inner
def _release_leavings(layer: AgentLog, now_s: float) -> None:
    """Free the nodes that have been vacated by now."""
    state, leavings = layer.state[0], layer.leavings
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
def _enter(layer: AgentLog, now_s: float, end_s: float, nodes: int) -> None:
    """Add one entry for the new agents that restore saved jobs, and one for those for which no saved job is left."""
    state, entries = layer.state[0], layer.entries
    if state.last + 2 > len(entries):  # move the entries that are not empty to the front
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
            entry.restore_s = restore_seconds(layer, of_these * layer.rules[0].jobs_per_agent) if was_saved else 0.0
            entry.was_saved = was_saved
            entry.begin_s = math.inf
            state.last += 1
    state.saved -= restored


@inner
def _begin_s(layer: AgentLog, first: int) -> float:
    """Return the time at which the agents that end together with this entry begin to save. The entry must be the first
    of them.

    They all begin as soon as those that have already started have to begin. An agent that starts later finds them
    saving.
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
            begin_s = end_s - float(rules.margin_s) - save_seconds(layer, nodes * rules.jobs_per_agent)
            begin_s = max(begin_s, float(entries[entry].start_s))
        entry += 1
    return begin_s


@inner
def _end_first_group(layer: AgentLog) -> None:
    """End the agents of the first running entries, which all have the same end."""
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
def _spend(layer: AgentLog, at: int, nodes: int, end_s: float, begin_s: float) -> int:
    """Log the work of this many agents of the entry until their end. Return the number of nodes whose jobs wait again
    as saved jobs."""
    entry = layer.entries[at]
    start_s = float(entry.start_s)
    begin_s = max(begin_s, start_s)
    restore_s = min(float(entry.restore_s), begin_s - start_s)
    if nodes > 0:
        logged(layer, start_s, end_s, nodes, restore_s, end_s - begin_s)
    return nodes if entry.was_saved or start_s + restore_s < begin_s else 0
