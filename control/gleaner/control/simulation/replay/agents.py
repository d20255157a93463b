"""The layer of agents as arrays of records, with its rules, the agents that hold nodes now, and the log of earlier
agents.

The decisions are made in `agent_starts` or, if the low-priority queue is finite, in `agent_slots`. Both modules change
the records in place. Only the log is replaced when it is full (`larger_log`). Records are used because compiled code
takes every array of a tuple as a separate argument, and more arguments take longer to compile.
"""

import math
from typing import NamedTuple

import numpy as np

from gleaner.control.simulation.model import Counts, Machine, Seconds, Stretches, no_stretches
from gleaner.control.simulation.replay.compiler import inner
from gleaner.control.simulation.replay.records import RecordArray, record_type
from gleaner.control.simulation.settings import AgentSettings, CostSettings, transfer_s

_START, _END, _NODES, _RESTORE, _SAVE = range(5)
"""The numbers of the log's rows."""
ENDLESS = 2**40
"""The number of jobs that stands for an endless queue."""


_COST = record_type(floats="constant_s node_mib_s shared_mib_s")
_RULES = record_type(
    integers="agents_at_most jobs_per_agent units",
    floats="length_s shortest_slice_s margin_s memory_mib",
    flags="synchronised preemption on_nodes",
    save=_COST,
    restore=_COST,
)
"""The fields of `AgentSettings` and a few more. `memory_mib` is the memory of one job, and `units` the number of the
machine's units that one agent takes. With `on_nodes`, a slot is the node with the same number, and agents that have to
leave are chosen by node."""
_STATE = record_type(integers="first last running leaving coming leavings freed logged saved", floats="wake_s")
"""The current entries begin at `first` and end before `last`. With a finite queue, `last` is the number of slots in
use. `running` is the number of nodes whose agents stay, and `leaving` the number of those whose agents have to leave.
`coming` is the number of leaving nodes in the first entries, whose agents end early enough anyway. `leavings`, `freed`
and `logged` are the numbers of entries in the arrays `leavings`, `freed` and `log`. `saved` is the number of waiting
saved jobs or, with an endless queue, of the nodes that they fill. `wake_s` is the time at which agents can start
although nothing ends."""
_ENTRY = record_type(integers="nodes", floats="start_s end_s restore_s begin_s", flags="was_saved")
"""`was_saved` is True if the entry's jobs must be restored. `begin_s` is the time at which its save began. It is
infinite until it is computed."""
_LEAVING = record_type(integers="nodes saved", floats="end_s")
_FREED = record_type(integers="units", floats="end_s")
_STOCK = record_type(integers="returned new groups", floats="next_s latest_s", flags="is_stale")
"""`returned` is the number of jobs that wait again without having been saved, and `new` the next job that never ran.
`groups` is the number of entries in the array `groups`. `next_s` and `latest_s` are the next and the last time at which
the places have something to do. If `is_stale` is True, `next_s` must be computed again."""
_SLOT = record_type(
    integers="order busy computing",
    floats="start_s end_s begin_s speed since_s computed_s",
    flags="is_leaving is_wanted",
)
"""`order` is indexed by position, not by slot. It lists the slots in use, sorted by the starts of their agents,
followed by the free ones. `busy` is the number of places with a job, and `computing` the number that compute. `begin_s`
is the time at which the slot's save began. It is infinite before that. `speed` is that of the node. At least one place
has computed since `since_s`, and `computed_s` is the computing time before that. `is_wanted` is True if a job will have
this node."""
_PLACE = record_type(integers="job", floats="since_s due_s", flags="is_restoring")
"""`since_s` is the time at which the job began to compute, and `due_s` the time at which it will be restored or
complete."""
_GROUP = record_type(integers="busy", floats="end_s begin_s")
_JOB = record_type(floats="left_s end_s", flags="is_saved")


class AgentLog(NamedTuple):
    """The state of all agents, which every loop passes to `agent_starts`. If there are no agents, None is passed
    instead."""

    rules: RecordArray
    """One record: `AgentSettings` as numbers."""
    state: RecordArray
    """One record."""
    entries: RecordArray
    """Agents that start together and end together, in the order of their starts and of their ends."""
    leavings: RecordArray
    """Agents that are being vacated, in the order in which they will be gone. The jobs of `saved` nodes return as saved
    jobs. Without preemption, no agent is vacated."""
    freed: RecordArray
    """The units that were freed at the latest instant, and the times at which they were expected."""
    log: Seconds
    """The columns of `Stretches`, one per row, without the columns that are the same for all stretches."""


class Finite(NamedTuple):
    """The state of each agent and of each job, for `agent_slots`.

    None is used instead if the queue is endless and nodes are only counted, because then the work of a single agent
    does not matter.
    """

    stock: RecordArray
    """One record."""
    slots: RecordArray
    """Nodes with agents. If nodes are only counted, it does not matter which node a slot is."""
    places: RecordArray
    """The job of each place of each slot, or -1."""
    groups: RecordArray
    """Agents that end at one instant, with `busy` places in total. Agents that are being vacated are in no group."""
    jobs: RecordArray
    heap_key: Seconds
    heap_job: Counts
    """The jobs that wait again, first the saved jobs by number, then the others."""


_seconds = inner(transfer_s)


@inner
def save_seconds(layer: AgentLog, at_once: int) -> float:
    """Return the number of seconds that each save takes if this many jobs are saved at the same time."""
    rules = layer.rules[0]
    cost = rules.save
    return _seconds(cost.constant_s, cost.node_mib_s, cost.shared_mib_s, rules.memory_mib, float(at_once))


@inner
def restore_seconds(layer: AgentLog, at_once: int) -> float:
    """Return the number of seconds that each restore takes if this many jobs are restored at the same time."""
    rules = layer.rules[0]
    cost = rules.restore
    return _seconds(cost.constant_s, cost.node_mib_s, cost.shared_mib_s, rules.memory_mib, float(at_once))


@inner
def logged(  # noqa: PLR0917 - numba takes no keywords
    layer: AgentLog, start_s: float, end_s: float, nodes: int, restore_s: float, save_s: float
) -> None:
    """Add one entry to the log."""
    log, entry = layer.log, layer.state[0].logged
    log[_START, entry] = start_s
    log[_END, entry] = end_s
    log[_NODES, entry] = nodes
    log[_RESTORE, entry] = restore_s
    log[_SAVE, entry] = save_s
    layer.state[0].logged += 1


@inner
def freed(layer: AgentLog, end_s: float, nodes: int) -> None:
    """Record that these nodes were freed. Nodes with the same expected end share one entry if they are recorded one
    after the other."""
    state = layer.state[0]
    if state.freed > 0 and layer.freed[state.freed - 1].end_s == end_s:
        layer.freed[state.freed - 1].units += nodes * layer.rules[0].units
        return
    layer.freed[state.freed].end_s = end_s
    layer.freed[state.freed].units = nodes * layer.rules[0].units
    state.freed += 1


@inner
def is_full(layer: AgentLog) -> bool:
    """Return True if the layer's log might not have enough room for one more instant."""
    state = layer.state[0]
    return bool(layer.log.shape[1] < state.logged + state.last - state.first + 4)


def larger_log(layer: AgentLog) -> AgentLog:
    """Return the same layer, with twice the room in its log."""
    there = layer.log.shape[1]
    log = np.empty((5, 2 * there))
    log[:, :there] = layer.log
    return layer._replace(log=log)


def layer_of(
    agents: AgentSettings | None, machine: Machine, *, on_nodes: bool = False
) -> tuple[AgentLog | None, Finite | None]:
    """Return the layer in its initial state, or None if there are no agents or no work for them.

    Also return the state of each agent, which is None if the queue is endless and nodes are only counted.
    """
    if agents is None or agents.queue.jobs == 0 or agents.agents_at_most == 0:
        return None, None
    nodes = machine.units // machine.units_of_node
    state = np.zeros(1, _STATE)
    state["wake_s"] = math.inf
    layer = AgentLog(
        rules=_rules(agents, machine, on_nodes=on_nodes),
        state=state,
        entries=np.zeros(2 * nodes + 8, _ENTRY),
        leavings=np.zeros(nodes + 1, _LEAVING),
        freed=np.zeros(nodes + 1, _FREED),
        log=np.empty((5, max(1024, 2 * nodes))),
    )
    if agents.queue.jobs is None and not on_nodes:
        return layer, None
    return layer, _finite(agents, nodes, machine.classes[0].speed)


def stretches(layer: AgentLog | None, stop_s: float) -> Stretches:
    """Return the log of a closed layer as stretches, in order of starts. They end where the replay stopped.

    The log's rows become the columns, and values that are the same for all entries take no room, because there can be
    16 million entries for a million jobs.
    """
    if layer is None:
        return no_stretches()
    log = layer.log[:, : int(layer.state[0]["logged"])]
    if np.any(log[_START, 1:] < log[_START, :-1]):  # agents of equal length end in the order of their starts
        log = log[:, np.argsort(log[_START], kind="stable")]
    log = log[:, : np.searchsorted(log[_START], stop_s)]
    there = log[_START] < log[_END]
    if not there.all():
        log = log[:, there]
    start_s, end_s, nodes, restore_s, save_s = log
    last_s = np.minimum(end_s, stop_s)
    end_s -= last_s
    save_s -= end_s
    np.maximum(save_s, 0.0, out=save_s)
    end_s[:] = last_s
    np.minimum(restore_s, np.subtract(end_s, start_s, out=last_s), out=restore_s)
    units = nodes.view(np.int64)
    units[:] = np.multiply(nodes, float(layer.rules[0]["units"]), out=last_s)
    job = np.broadcast_to(np.int64(-1), len(units))
    return Stretches.of(job, start_s, end_s, units, restore_s=restore_s, save_s=save_s)


def _rules(agents: AgentSettings, machine: Machine, *, on_nodes: bool) -> RecordArray:
    rules = np.zeros(1, _RULES)
    for name in ("length_s", "synchronised", "shortest_slice_s", "agents_at_most", "jobs_per_agent", "margin_s"):
        rules[name] = getattr(agents, name)
    rules["preemption"] = agents.preemption
    rules["on_nodes"] = on_nodes
    rules["units"] = machine.units_of_node
    rules["memory_mib"] = agents.queue.memory_mib
    rules["save"] = _cost(agents.save)
    rules["restore"] = _cost(agents.restore)
    return rules


def _cost(settings: CostSettings) -> tuple[float, float, float]:
    return settings.constant_s, settings.node_mib_s, settings.shared_mib_s


def _finite(agents: AgentSettings, nodes: int, speed: float) -> Finite:
    """Return the state of each agent. For an endless queue, there is one endless job for each place."""
    endless = agents.queue.jobs is None
    stock = np.zeros(1, _STOCK)
    stock["next_s"] = math.inf
    slots = np.zeros(nodes, _SLOT)
    slots["order"] = np.arange(nodes)
    slots["speed"] = speed
    places = np.zeros((nodes, agents.jobs_per_agent), _PLACE)
    places["job"] = -1
    jobs = np.zeros(nodes * agents.jobs_per_agent if endless else agents.queue.jobs or 0, _JOB)
    jobs["left_s"] = math.inf if endless else agents.queue.work_s
    jobs["end_s"] = math.nan
    return Finite(
        stock=stock,
        slots=slots,
        places=places,
        groups=np.zeros(nodes + 1, _GROUP),
        jobs=jobs,
        heap_key=np.empty(len(jobs) + 1),
        heap_job=np.empty(len(jobs) + 1, np.int64),
    )
