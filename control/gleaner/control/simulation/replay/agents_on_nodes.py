"""Agents on known nodes. This module chooses the idle nodes that agents take, and the agents that have to leave.

`agent_slots` decides how each agent uses its time. Agents take nodes that are wholly idle. They begin with the node
that jobs fill last, because that node is needed last.

Without preemption, each agent is a stretch in the book. With preemption, the book does not show agents, and a job can
be given their nodes. The job then starts as soon as the agents on its nodes are saved. Until the end of the decision, a
claim holds these nodes in the book. A claim is a stretch of no duration that belongs to no job.
"""

import numpy as np

from gleaner.control.policy import provisioning
from gleaner.control.simulation.model import Allocation, Machine, Stretches, of_nodes
from gleaner.control.simulation.replay import agent_slots
from gleaner.control.simulation.replay.agent_starts import decide, release
from gleaner.control.simulation.replay.agents import AgentLog, Finite, layer_of, stretches
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.ledger import LENT, NO_JOB, Ledger, settle
from gleaner.control.simulation.settings import AgentSettings

agent_end = inner(provisioning.agent_end)
NOT_LENT, LEAVING, STAYING = range(3)
"""The values of a node's `lent` if it has no agent that can be told to leave, if its agent is already leaving, and if
its agent stays."""


def layer_on(machine: Machine, agents: AgentSettings | None, book: Ledger) -> tuple[AgentLog | None, Finite | None]:
    """Return the layer of agents, with one slot for each node, or None without agents."""
    layer, finite = layer_of(agents, of_nodes(machine.nodes), on_nodes=True)
    if finite is not None:
        finite.slots["speed"] = book.nodes["speed"]
    return layer, finite


@inner
def leave(book: Ledger, layer: AgentLog, finite: Finite, now_s: float) -> bool:
    """Free the nodes of agents that ended by now. Return True if there were any, or if agents can start now."""
    is_news = layer.state[0].wake_s <= now_s
    is_news = release(layer, finite, now_s) > 0 or is_news
    for at in range(layer.state[0].last, len(book.nodes)):  # after the slots in use
        node = book.nodes[finite.slots[at].order]
        if node["agent"] >= 0:
            end_claim(book, int(node["agent"]))
        elif node["lent"] != NOT_LENT:
            book.many[LENT] -= 1
        node["agent"] = -1
        node["lent"] = NOT_LENT
    return bool(is_news)


@inner
def end_claim(book: Ledger, stretch: int) -> None:
    """Free the nodes that an agent's stretch or a claim holds."""
    book.stretches[stretch]["is_over"] = 1
    settle(book, stretch)


@inner
def have_leave(book: Ledger, layer: AgentLog, finite: Finite, now_s: float, first: int) -> None:
    """Vacate the agents on the nodes of all claims, which are among the stretches from `first` on."""
    needed = 0
    for stretch in range(first, book.many[3]):
        if book.stretches[stretch]["job"] != NO_JOB:
            continue
        for at in range(book.stretches[stretch]["ranges"], book.stretches[stretch + 1]["ranges"]):
            begin = book.ranges[at]["node"]
            for node in range(begin, begin + book.ranges[at]["nodes"]):
                if book.nodes[node]["lent"] == STAYING:
                    book.nodes[node]["lent"] = LEAVING
                    finite.slots[node].is_wanted = True
                    needed += 1
    if needed > 0:
        agent_slots.vacate(layer, finite, now_s, needed)


@inner
def come(  # noqa: PLR0917 - numba takes no keywords
    book: Ledger, layer: AgentLog, finite: Finite, now_s: float, shadow_s: float, reserved: int, extra: int
) -> None:
    """Start agents on idle nodes. Past the shadow time, agents can hold `extra` cores of the reserved level, if there
    is one."""
    rules = layer.rules[0]
    is_late = agent_end(now_s, float(rules.length_s), 0.0, bool(rules.synchronised)) > shadow_s
    if is_late and book.many[LENT] > 0:
        for node in range(len(book.nodes)):
            if book.nodes[node]["lent"] != NOT_LENT and finite.slots[node].end_s > shadow_s:
                extra -= book.nodes[node]["cores"] if _is_on(book, node, reserved) else 0
    first, last = int(layer.state[0].last), len(book.nodes)  # the order of the slots that are not in use
    idle = 0
    for node in range(len(book.nodes) - 1, -1, -1):
        row = book.nodes[node]
        if row["agent"] >= 0 or row["lent"] != NOT_LENT:
            continue
        held = row["cores"] if is_late and _is_on(book, node, reserved) else 0
        if row["free"] == row["cores"] and held <= max(0, extra):
            extra -= held
            finite.slots[first + idle].order = node
            idle += 1
        else:
            last -= 1
            finite.slots[last].order = node
    taken, end_s = decide(layer, finite, now_s, idle, 0, np.inf, 0)
    for at in range(first, first + taken):
        node = int(finite.slots[at].order)
        if rules.preemption:
            book.nodes[node]["lent"] = STAYING
            book.many[LENT] += 1
            continue
        stretch = int(book.many[3])
        new = book.stretches[stretch]
        new["job"] = NO_JOB
        new["start_s"] = now_s
        new["end_s"] = end_s
        new["limit_s"] = end_s
        only = book.ranges[new["ranges"]]
        only["node"] = node
        only["nodes"] = 1
        only["cores"] = book.nodes[node]["cores"]
        book.many[3] += 1
        book.stretches[stretch + 1]["ranges"] = new["ranges"] + 1
        settle(book, stretch)
        book.nodes[node]["agent"] = stretch


@inner
def _is_on(book: Ledger, node: int, level: int) -> bool:
    return bool(level == len(book.levels) - 1 or book.nodes[node]["level"] == level)


def agents_told(book: Ledger, layer: AgentLog | None, machine: Machine, stop_s: float) -> Stretches:
    """Return each agent's stretch on its node. In the log of these agents, the field for the number of nodes contains
    the number of the node."""
    ours = stretches(layer, stop_s)
    node = book.nodes["number"][ours.units]
    units = np.ones_like(node) if machine.allocation is Allocation.NODES else machine.node_cores[node]
    return Stretches.of(
        ours.job, ours.start_s, ours.end_s, units, restore_s=ours.restore_s, save_s=ours.save_s, node=node
    )
