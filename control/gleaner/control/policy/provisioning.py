"""Provisioning: the agents to submit and to withdraw.

Pure: `plan` gets a `ProvisioningView` and returns a `Plan`. Its cores are `agent_end` and `agents_to_start`, two plain
functions over numbers and arrays: `plan` calls them as they are, and the simulator compiles the same functions. The
rules of a plan:

- All agents of a round end at one boundary, a multiple of the round length since a fixed origin, so a
  restarted control program plans the same ends. Then all of a round's nodes are free at one instant, and a
  regular job as wide as the cluster can start. For the same reason nothing is submitted past the boundary
  when the time left before it is too short: such an agent would hold its node when the others end.
- Agents are not tied to nodes, since Slurm places them. So the plan has a number of agents.
- A node that Slurm has planned for a waiting job is idle until that job starts, and Slurm decides whether an agent fits
  before that start. Agents that Slurm does not start soon are withdrawn. The oldest of them stays in Slurm's queue,
  because its start shows that Slurm starts agents again.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy.resources import Resources

_Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ProvisioningRules:
    """The rules that the admin has set; see `settings.RoundSettings`."""

    length_s: float
    origin_s: float
    synchronised: bool
    shortest_slice_s: float
    pending_limit_s: float
    agents_at_most: int


@dataclass(frozen=True, slots=True)
class IdleNode:
    """A whole node that the scheduler calls idle and usable, also one that it has planned for a waiting job later."""

    name: str
    room: Resources


@dataclass(frozen=True, slots=True)
class PendingAgent:
    """An agent that was submitted and is not known to have started."""

    name: str
    submitted_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class RunningAgent:
    """An agent on a node, with the resources that its jobs leave free."""

    end_s: float
    free: Resources
    node: str = ""


@dataclass(frozen=True, slots=True)
class WaitingJobs:
    """A number of waiting jobs of one size."""

    cpus: int
    memory_mib: int
    count: int
    misfits: frozenset[str] = frozenset()
    """Nodes on which these jobs cannot continue. A node that is not known yet is tried."""


@dataclass(frozen=True, slots=True)
class ProvisioningView:
    """The input of a plan."""

    now_s: float
    rules: ProvisioningRules
    known: frozenset[str]
    """The names of all nodes, idle or not. No other name may be told to the scheduler: it would refuse every agent."""
    nodes: tuple[IdleNode, ...]
    excluded: frozenset[str]
    """Nodes on which agents kept failing, or that are being emptied. The scheduler may have forgotten some of them."""
    pending: tuple[PendingAgent, ...]
    running: tuple[RunningAgent, ...]
    waiting: tuple[WaitingJobs, ...]


@dataclass(frozen=True, slots=True)
class NewAgent:
    """One agent to submit. All of one plan are alike."""

    end_s: float
    latest_start_s: float
    exclude: tuple[str, ...]


class Why(StrEnum):
    """The reason that a pending agent is withdrawn."""

    PENDED_TOO_LONG = "it did not start soon"
    TOO_LATE = "what is left of its round is too short"
    NO_WORK = "nothing waits for it"


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """One pending agent to withdraw."""

    name: str
    why: Why


@dataclass(frozen=True, slots=True)
class Plan:
    """The actions of a plan. `boundary_s` is the end of agents that are, or would be, submitted now."""

    boundary_s: float
    submit: tuple[NewAgent, ...]
    withdraw: tuple[Withdrawal, ...]


def agent_end(now_s: float, length_s: float, origin_s: float, synchronised: bool) -> float:
    """Return the end of an agent that starts now: one length from now, or (synchronised) at the round's boundary.

    The boundary is the first instant after `now_s` that is a whole number of lengths from the origin.
    """
    if synchronised:
        end_s = origin_s + (math.floor((now_s - origin_s) / length_s) + 1) * length_s
        return end_s if end_s > now_s else end_s + length_s  # where the quotient was rounded down
    return now_s + length_s


def agents_to_start(  # noqa: PLR0913, PLR0917 - numba takes no keywords
    slice_s: float,
    shortest_slice_s: float,
    at_most: int,
    pending: int,
    running: int,
    held: int,
    room_cpus: NDArray[np.int64],
    room_memory_mib: NDArray[np.int64],
    room_count: NDArray[np.int64],
    job_cpus: NDArray[np.int64],
    job_memory_mib: NDArray[np.int64],
    job_count: NDArray[np.int64],
    fits: NDArray[np.bool_],
) -> tuple[int, bool]:
    """Return the number of agents to submit now, and True if running agents leave a waiting job without a place.

    An agent submitted now would have `slice_s` seconds. `pending` and `running` agents count against `at_most`.
    Pending agents also count against the idle nodes, which they may take.

    `room_*` are kinds of places in the order in which they are filled: the free resources, and the number of places
    that are alike. The first `held` kinds are on the nodes of running agents, the others are idle nodes. `job_*` are
    kinds of waiting jobs in the order in which they are placed. `fits[room, job]` is True if such a job can continue
    in such a place at all, whatever its size.

    The time of a call grows with the number of kinds and hardly with the number of places: places that are filled in
    the same way are filled in one step.
    """
    kinds = len(job_count)
    left = np.empty(kinds, np.int64)
    here = np.empty(kinds, np.int64)  # in one place
    unplaced = 0
    for job in range(kinds):  # by loops: compiled, they take a tenth of what whole arrays take to compile
        left[job] = job_count[job]
        unplaced += left[job]
    useful = 0
    for room in range(len(room_count)):
        if room >= held and slice_s < shortest_slice_s:
            break
        places = room_count[room]
        while places > 0:
            cpus = room_cpus[room]
            memory_mib = room_memory_mib[room]
            alike = places  # so many in a row are filled with what this one is filled with
            is_used = False
            for job in range(kinds):
                here[job] = 0
                if left[job] > 0 and fits[room, job]:
                    here[job] = min(left[job], cpus // job_cpus[job], memory_mib // job_memory_mib[job])
                if here[job] > 0:
                    cpus -= here[job] * job_cpus[job]
                    memory_mib -= here[job] * job_memory_mib[job]
                    alike = min(alike, left[job] // here[job])
                    is_used = True
            if not is_used:
                break
            for job in range(kinds):
                left[job] -= alike * here[job]
                if room < held:
                    unplaced -= alike * here[job]
            places -= alike
            if room >= held:
                useful += alike
    return max(0, min(useful - pending, at_most - running - pending)), unplaced > 0


def boundary(now_s: float, *, length_s: float, origin_s: float) -> float:
    """Return the first instant after `now_s` that is a whole number of lengths from the origin.

    >>> boundary(3599.5, length_s=3600, origin_s=0), boundary(3600, length_s=3600, origin_s=0)
    (3600, 7200)
    """
    return agent_end(now_s, length_s, origin_s, synchronised=True)


def round_end(now_s: float, rules: ProvisioningRules) -> float:
    """Return the end of an agent that is submitted now."""
    return agent_end(now_s, rules.length_s, rules.origin_s, rules.synchronised)


def plan(view: ProvisioningView) -> Plan:
    """Return the agents to submit and to withdraw, given this view."""
    rules = view.rules
    end_s = round_end(view.now_s, rules)
    usable = (node for node in view.nodes if node.name not in view.excluded)
    idle = sorted(usable, key=lambda node: (-node.room.cpus, -node.room.memory_mib, node.name))
    lasting = [agent for agent in view.running if agent.end_s - view.now_s >= rules.shortest_slice_s]
    held = _alike([(agent.free, agent.node) for agent in lasting], view.waiting)
    wanted, is_work_left = agents_to_start(
        end_s - view.now_s,
        rules.shortest_slice_s,
        rules.agents_at_most,
        len(view.pending),
        len(view.running),
        len(held),
        *_arrays(held + _alike([(node.room, node.name) for node in idle], view.waiting), view.waiting),
    )
    exclude = (view.excluded | _of_no_use(view.waiting)) & view.known
    new = NewAgent(end_s, end_s - rules.shortest_slice_s, tuple(sorted(exclude)))
    return Plan(end_s, (new,) * wanted, _withdrawals(view, is_work_left=is_work_left))


@dataclass(frozen=True, slots=True)
class _Alike:
    """Places in a row that are alike, and their number. `takes` has one entry a kind of waiting jobs, largest first."""

    count: int
    free: Resources
    takes: tuple[bool, ...]


def _alike(places: Sequence[tuple[Resources, str]], waiting: tuple[WaitingJobs, ...]) -> list[_Alike]:
    """Return these places (free resources and node) in their order, with those that are alike together."""
    misfits = [kind.misfits for kind in _largest_first(waiting)]
    kinds = groupby((free, tuple(node not in names for names in misfits)) for free, node in places)
    return [_Alike(len(list(all_of_it)), free, takes) for (free, takes), all_of_it in kinds]


def _arrays(
    rooms: Sequence[_Alike], waiting: tuple[WaitingJobs, ...]
) -> tuple[_Counts, _Counts, _Counts, _Counts, _Counts, _Counts, NDArray[np.bool_]]:
    """Return the places and the waiting jobs as `agents_to_start` takes them."""
    kinds = _largest_first(waiting)
    return (
        np.array([room.free.cpus for room in rooms], np.int64),
        np.array([room.free.memory_mib for room in rooms], np.int64),
        np.array([room.count for room in rooms], np.int64),
        np.array([kind.cpus for kind in kinds], np.int64),
        np.array([kind.memory_mib for kind in kinds], np.int64),
        np.array([kind.count for kind in kinds], np.int64),
        np.array([room.takes for room in rooms], np.bool_).reshape(len(rooms), len(kinds)),
    )


def _largest_first(waiting: tuple[WaitingJobs, ...]) -> list[WaitingJobs]:
    return sorted((kind for kind in waiting if kind.count > 0), key=lambda kind: (-kind.cpus, -kind.memory_mib))


def _of_no_use(waiting: tuple[WaitingJobs, ...]) -> frozenset[str]:
    """Return the nodes on which no waiting job can continue: an agent there would have no work.

    >>> _of_no_use((WaitingJobs(1, 1, 5, frozenset({"n1", "n2"})), WaitingJobs(2, 1, 1, frozenset({"n2"}))))
    frozenset({'n2'})
    """
    misfits = [kind.misfits for kind in waiting if kind.count > 0]
    return misfits[0].intersection(*misfits[1:]) if misfits else frozenset()


def _withdrawals(view: ProvisioningView, *, is_work_left: bool) -> tuple[Withdrawal, ...]:
    """Return the pending agents to withdraw. They count as pending in this plan: their nodes may be taken already."""
    withdrawals: list[Withdrawal] = []
    oldest = min(view.pending, key=lambda agent: (agent.submitted_s, agent.name), default=None)
    for agent in view.pending:
        if view.now_s > agent.end_s - view.rules.shortest_slice_s:
            withdrawals.append(Withdrawal(agent.name, Why.TOO_LATE))
        elif view.now_s - agent.submitted_s > view.rules.pending_limit_s and agent is not oldest:
            withdrawals.append(Withdrawal(agent.name, Why.PENDED_TOO_LONG))
        elif not is_work_left:
            withdrawals.append(Withdrawal(agent.name, Why.NO_WORK))
    return tuple(withdrawals)
