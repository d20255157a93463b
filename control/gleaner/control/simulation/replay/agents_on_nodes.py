"""Agents on known nodes: which idle nodes agents take, and which nodes they free.

`agent_starts`, which counts nodes, decides how many agents start and what they do with their time. Here each agent is a
stretch in the book. Agents take nodes that are wholly idle. They begin with the node that jobs fill last, since that
node is needed last.
"""

import math

import numpy as np

from gleaner.control.simulation.errors import BadScenario
from gleaner.control.simulation.model import Allocation, Counts, Machine, Stretches, no_stretches, of_nodes
from gleaner.control.simulation.replay.agent_starts import decide, release
from gleaner.control.simulation.replay.agents import AgentLog, layer_of, stretches
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.ledger import BY_LIMIT, Ledger, settle
from gleaner.control.simulation.settings import AgentSettings

AGENT = -1
"""The number that stands for an agent in the place of a job."""


def layer_on(machine: Machine, agents: AgentSettings | None) -> AgentLog | None:
    """Return the layer of agents, which counts nodes; None without agents.

    Raise `BadScenario` for settings that need a machine whose nodes are only counted.
    """
    if agents is not None and (agents.preemption or agents.queue.jobs):
        what = "preemption of agents" if agents.preemption else "a low-priority queue that ends"
        raise BadScenario(
            f"{what} needs nodes that are alike, given whole or as a pool (allocation nodes or processors), and no "
            "migration; on this machine agents go with an endless queue and without preemption"
        )
    layer, _ = layer_of(agents, of_nodes(machine.nodes))
    return layer


@inner
def leave(book: Ledger, layer: AgentLog, now_s: float) -> bool:
    """Free the nodes of agents that ended by now, of one expected end the oldest first. Return True if any ended."""
    if release(layer, None, now_s) == 0:
        return False
    for entry in range(layer.state[0].freed):
        end_s = float(layer.freed[entry].end_s)
        left = int(layer.freed[entry].units)
        at = int(book.many[BY_LIMIT]) - 1
        while left > 0:
            running = book.running[BY_LIMIT, at]
            stretch = int(running["stretch"])
            at -= 1
            if running["time_s"] == end_s and book.stretches[stretch]["job"] == AGENT:
                book.stretches[stretch]["is_over"] = 1
                settle(book, stretch)
                left -= 1
    return True


@inner
def come(book: Ledger, layer: AgentLog, now_s: float, shadow_s: float, reserved: int, extra: int) -> None:  # noqa: PLR0917
    """Start agents on idle nodes. Past the shadow time, agents may hold `extra` cores of the reserved level, if any."""
    idle = past = 0
    left = extra
    for node in range(len(book.nodes) - 1, -1, -1):
        row = book.nodes[node]
        if row["free"] == row["cores"]:
            idle += 1
            if _is_free_past(book, node, reserved, left):
                past += 1
                left -= row["cores"] if _is_on(book, node, reserved) else 0
    wanted, end_s = decide(layer, None, now_s, idle, 0, shadow_s, past)
    left = extra
    node = len(book.nodes)
    while wanted > 0:
        node -= 1
        row = book.nodes[node]
        if row["free"] != row["cores"]:
            continue
        if end_s > shadow_s:
            if not _is_free_past(book, node, reserved, left):
                continue
            left -= row["cores"] if _is_on(book, node, reserved) else 0
        wanted -= 1
        stretch = int(book.many[3])
        new = book.stretches[stretch]
        new["job"] = AGENT
        new["start_s"] = now_s
        new["end_s"] = end_s
        new["limit_s"] = end_s
        first = book.ranges[new["ranges"]]
        first["node"] = node
        first["nodes"] = 1
        first["cores"] = row["cores"]
        book.many[3] += 1
        book.stretches[stretch + 1]["ranges"] = new["ranges"] + 1
        settle(book, stretch)


@inner
def _is_on(book: Ledger, node: int, level: int) -> bool:
    return bool(level == len(book.levels) - 1 or book.nodes[node]["level"] == level)


@inner
def _is_free_past(book: Ledger, node: int, reserved: int, extra: int) -> bool:
    """Return True if an agent may hold the node past the shadow time."""
    return not _is_on(book, node, reserved) or bool(book.nodes[node]["cores"] <= extra)


def agents_told(book: Ledger, layer: AgentLog | None, machine: Machine, stop_s: float) -> Stretches:
    """Return each agent's stretch on its node, with how the agent's time was spent.

    The times are those of the layer's log, which has the same starts and ends as the book.
    """
    if layer is None:
        return no_stretches()
    counted = stretches(layer, math.inf)
    rows = book.stretches[: book.many[3]]
    mine = np.flatnonzero(rows["job"] == AGENT)
    mine = mine[np.lexsort((rows["end_s"][mine], rows["start_s"][mine]))]
    order: Counts = np.repeat(np.arange(len(counted)), counted.units)
    order = order[np.lexsort((counted.end_s[order], counted.start_s[order]))]
    there = rows["start_s"][mine] < np.minimum(rows["end_s"][mine], stop_s)
    mine, each = mine[there], counted.only(order[there])
    end_s = np.minimum(each.end_s, stop_s)
    node = book.nodes["number"][book.ranges["node"][book.stretches["ranges"][mine]]]
    units = np.ones_like(node) if machine.allocation is Allocation.NODES else machine.node_cores[node]
    return Stretches(
        job=each.job,
        start_s=each.start_s,
        end_s=end_s,
        units=units,
        restore_s=np.minimum(each.restore_s, end_s - each.start_s),
        save_s=np.maximum(each.save_s - (each.end_s - end_s), 0),
        lost_s=each.lost_s,
        node=node.astype(np.int32),
    )
