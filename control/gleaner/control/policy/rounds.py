"""Which agents to submit and which to withdraw: the planner.

Pure: everything it may know is in a `RoundView`, the answer is a `Plan`. The live loop and the simulator call
the same function. What it keeps:

- All agents of a round end at one boundary, a multiple of the round length since a fixed origin, so a
  restarted control program plans the same ends. Then all of a round's nodes are free at one instant, and a
  regular job as wide as the cluster can start. For the same reason nothing is submitted past the boundary
  when the time left before it is too short: such an agent would hold its node when the others let go.
- Agents are not tied to nodes: Slurm places them. So the planner counts.
"""

import math
from dataclasses import dataclass
from enum import StrEnum


@dataclass(frozen=True, slots=True)
class RoundRules:
    """What the admin has set; see `settings.RoundSettings`."""

    length_s: float
    origin_s: float
    synchronised: bool
    shortest_slice_s: float
    pending_limit_s: float
    agents_at_most: int


@dataclass(frozen=True, slots=True)
class Room:
    """Cores and memory that are free on a node, or in an agent's hands."""

    cpus: int
    memory_mib: int


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A whole node that the scheduler calls idle and usable. `planned`: it is kept for a waiting regular job."""

    name: str
    room: Room
    planned: bool = False


@dataclass(frozen=True, slots=True)
class PendingAgent:
    """An agent that was submitted and has not started, as far as is known."""

    name: str
    submitted_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """An agent on a node, with what its jobs leave free there."""

    end_s: float
    free: Room
    node: str = ""


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """So many waiting jobs of one size."""

    cpus: int
    memory_mib: int
    count: int
    misfits: frozenset[str] = frozenset()
    """Nodes on which they cannot go on. A node that nobody knows yet is worth a try."""


@dataclass(frozen=True, slots=True)
class RoundView:
    """All that the planner may know."""

    now_s: float
    rules: RoundRules
    nodes: tuple[IdleNode, ...]
    avoided: frozenset[str]
    """Nodes on which agents kept failing."""
    pending: tuple[PendingAgent, ...]
    running: tuple[RunningAgent, ...]
    waiting: tuple[WaitingJobs, ...]


@dataclass(frozen=True, slots=True)
class NewAgent:
    """One agent to submit. All of one plan are alike."""

    end_s: float
    latest_start_s: float
    avoid: tuple[str, ...]


class Why(StrEnum):
    """Why a pending agent is withdrawn."""

    PENDED_TOO_LONG = "it did not start soon"
    TOO_LATE = "what is left of its round is too short"
    NO_WORK = "nothing waits for it"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """One pending agent to take back."""

    name: str
    why: Why


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do now. `boundary_s` is the end that agents submitted now have, or would have."""

    boundary_s: float
    submit: tuple[NewAgent, ...]
    withdraw: tuple[Withdrawal, ...]


def boundary(now_s: float, *, length_s: float, origin_s: float) -> float:
    """The first instant after `now_s` that is a whole number of lengths from the origin.

    >>> boundary(3599.5, length_s=3600, origin_s=0), boundary(3600, length_s=3600, origin_s=0)
    (3600, 7200)
    """
    return origin_s + (math.floor((now_s - origin_s) / length_s) + 1) * length_s


def round_end(now_s: float, rules: RoundRules) -> float:
    """When an agent submitted now would end."""
    if rules.synchronised:
        return boundary(now_s, length_s=rules.length_s, origin_s=rules.origin_s)
    return now_s + rules.length_s


def plan(view: RoundView) -> Plan:
    """What to submit and to withdraw, given this view."""
    end_s = round_end(view.now_s, view.rules)
    waiting = _Waiting(view.waiting)
    for agent in view.running:
        if agent.end_s - view.now_s >= view.rules.shortest_slice_s:
            waiting.place_in(agent.free, agent.node)
    withdraw = _withdrawals(view, is_work_left=not waiting.is_empty)
    if end_s - view.now_s < view.rules.shortest_slice_s:
        return Plan(end_s, (), withdraw)
    usable = sorted(
        (node for node in view.nodes if not node.planned and node.name not in view.avoided),
        key=lambda node: (-node.room.cpus, -node.room.memory_mib, node.name),
    )
    useful = 0
    for node in usable:
        if waiting.is_empty:
            break
        useful += waiting.place_in(node.room, node.name)
    below_cap = view.rules.agents_at_most - len(view.running) - len(view.pending)
    wanted = max(0, min(useful - len(view.pending), below_cap))
    avoid = view.avoided | _of_no_use(view.waiting)
    new = NewAgent(end_s, end_s - view.rules.shortest_slice_s, tuple(sorted(avoid)))
    return Plan(end_s, (new,) * wanted, withdraw)


def _of_no_use(waiting: tuple[WaitingJobs, ...]) -> frozenset[str]:
    """The nodes on which none of the waiting jobs can go on: an agent there would find nothing to do.

    >>> _of_no_use((WaitingJobs(1, 1, 5, frozenset({"n1", "n2"})), WaitingJobs(2, 1, 1, frozenset({"n2"}))))
    frozenset({'n2'})
    """
    misfits = [kind.misfits for kind in waiting if kind.count > 0]
    return misfits[0].intersection(*misfits[1:]) if misfits else frozenset()


def _withdrawals(view: RoundView, *, is_work_left: bool) -> tuple[Withdrawal, ...]:
    """The pending agents to take back. They still count as pending in this plan: their nodes may be taken already."""
    withdrawals: list[Withdrawal] = []
    for agent in view.pending:
        if view.now_s > agent.end_s - view.rules.shortest_slice_s:
            withdrawals.append(Withdrawal(agent.name, Why.TOO_LATE))
        elif view.now_s - agent.submitted_s > view.rules.pending_limit_s:
            withdrawals.append(Withdrawal(agent.name, Why.PENDED_TOO_LONG))
        elif not is_work_left:
            withdrawals.append(Withdrawal(agent.name, Why.NO_WORK))
    return tuple(withdrawals)


class _Waiting:
    """The waiting jobs that are not placed yet, largest first, for one call of `plan`."""

    def __init__(self, waiting: tuple[WaitingJobs, ...]) -> None:
        kinds = sorted(waiting, key=lambda kind: (-kind.cpus, -kind.memory_mib))
        self._left = [(Room(kind.cpus, kind.memory_mib), kind.misfits, kind.count) for kind in kinds if kind.count > 0]

    @property
    def is_empty(self) -> bool:
        return not self._left

    def place_in(self, room: Room, node: str) -> bool:
        """Put as many jobs as fit into `room` on the node; whether any did."""
        cpus, memory_mib, is_used = room.cpus, room.memory_mib, False
        left: list[tuple[Room, frozenset[str], int]] = []
        for size, misfits, count in self._left:
            fit = 0 if node in misfits else min(count, cpus // size.cpus, memory_mib // size.memory_mib)
            if fit > 0:
                cpus, memory_mib, is_used = cpus - fit * size.cpus, memory_mib - fit * size.memory_mib, True
            if count > max(fit, 0):
                left.append((size, misfits, count - max(fit, 0)))
        self._left = left
        return is_used
