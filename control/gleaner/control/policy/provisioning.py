"""Provisioning: the agents to submit and to withdraw.

The module is pure. `plan` takes a `ProvisioningView` and returns a `Plan`, by these rules:

- All agents of a round end at one boundary, a multiple of the round length since a fixed origin. Therefore control
  plans the same ends after a restart. At the boundary, all nodes of a round become free at the same instant, so that a
  regular job as wide as the cluster can start. For the same reason, no agent is submitted with a later end if the time
  before the boundary is too short. Such an agent would still hold its node when the others end.
- Agents are not tied to nodes, because Slurm places them. Therefore the plan contains only a number of agents.
- A node that Slurm has planned for a waiting job is idle until that job starts, and Slurm decides whether an agent fits
  before that start. Agents that Slurm does not start soon are withdrawn. The oldest of them stays in Slurm's queue,
  because its start shows that Slurm starts agents again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from gleaner.control.policy.resources import Resources


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
    """Nodes on which these jobs cannot continue. Nodes of which nothing is known yet are tried."""


@dataclass(frozen=True, slots=True)
class ProvisioningView:
    """The input of a plan."""

    now_s: float
    rules: ProvisioningRules
    all_nodes: frozenset[str]
    """The names of all nodes, idle or not. If an agent excluded any other name, the scheduler would refuse it."""
    nodes: Mapping[str, Resources]
    """The whole nodes that the scheduler shows as idle and usable, including those that it has planned for a waiting
    job."""
    excluded: frozenset[str]
    """Nodes on which agents failed repeatedly, or that are being emptied. Some of them might no longer exist in the
    scheduler."""
    pending: tuple[PendingAgent, ...]
    running: tuple[RunningAgent, ...]
    waiting: tuple[WaitingJobs, ...]


@dataclass(frozen=True, slots=True)
class NewAgent:
    """One agent to submit. All agents of one plan are alike."""

    end_s: float
    latest_start_s: float
    exclude: tuple[str, ...]


class Why(StrEnum):
    """The reason why a pending agent is withdrawn."""

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
    """Return the end of an agent that starts now. It is one length from now or, if synchronised, the round's boundary.

    The boundary is the first instant after `now_s` that is a whole number of lengths after the origin.
    """
    if synchronised:
        end_s = origin_s + (math.floor((now_s - origin_s) / length_s) + 1) * length_s
        return end_s if end_s > now_s else end_s + length_s  # if the quotient was rounded down
    return now_s + length_s


def boundary(now_s: float, *, length_s: float, origin_s: float) -> float:
    """Return the first instant after `now_s` that is a whole number of lengths after the origin.

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
    wanted, is_work_left = _agents_to_start(view, is_too_late=end_s - view.now_s < rules.shortest_slice_s)
    exclude = (view.excluded | _of_no_use(view.waiting)) & view.all_nodes
    new = NewAgent(end_s, end_s - rules.shortest_slice_s, tuple(sorted(exclude)))
    return Plan(end_s, (new,) * wanted, _withdrawals(view, is_work_left=is_work_left))


def _agents_to_start(view: ProvisioningView, *, is_too_late: bool) -> tuple[int, bool]:
    """Return the number of agents to submit now, and True if the running agents do not have room for all waiting jobs.

    The waiting jobs are placed beside the jobs of running agents, then on idle nodes, the largest jobs and nodes first.
    Each pending agent reduces the number of idle nodes by one, because it might start on one of them.
    """
    usable = [(name, room) for name, room in view.nodes.items() if name not in view.excluded]
    idle = sorted(usable, key=lambda node: (-node[1].cpus, -node[1].memory_mib, node[0]))
    kinds = sorted(view.waiting, key=lambda kind: (-kind.cpus, -kind.memory_mib))
    left = [kind.count for kind in kinds]
    for agent in view.running:
        if agent.end_s - view.now_s >= view.rules.shortest_slice_s:
            _fill(agent.free, agent.node, kinds, left)
    is_work_left = any(left)
    useful = 0 if is_too_late else sum(any(left) and _fill(room, name, kinds, left) for name, room in idle)
    below_cap = view.rules.agents_at_most - len(view.running) - len(view.pending)
    return max(0, min(useful - len(view.pending), below_cap)), is_work_left


def _fill(free: Resources, node: str, kinds: Sequence[WaitingJobs], left: list[int]) -> bool:
    """Remove from `left` the jobs of each kind that fit into one place. Return True if there are any."""
    cpus, memory_mib = free.cpus, free.memory_mib
    is_used = False
    for at, kind in enumerate(kinds):
        if left[at] and kind.cpus <= cpus and kind.memory_mib <= memory_mib and node not in kind.misfits:
            here = min(left[at], cpus // kind.cpus, memory_mib // kind.memory_mib)
            left[at] -= here
            cpus -= here * kind.cpus
            memory_mib -= here * kind.memory_mib
            is_used = True
    return is_used


def _of_no_use(waiting: tuple[WaitingJobs, ...]) -> frozenset[str]:
    """Return the nodes on which no waiting job can continue, so that agents there would have no work.

    >>> _of_no_use((WaitingJobs(1, 1, 5, frozenset({"n1", "n2"})), WaitingJobs(2, 1, 1, frozenset({"n2"}))))
    frozenset({'n2'})
    """
    misfits = [kind.misfits for kind in waiting if kind.count > 0]
    return misfits[0].intersection(*misfits[1:]) if misfits else frozenset()


def _withdrawals(view: ProvisioningView, *, is_work_left: bool) -> tuple[Withdrawal, ...]:
    """Return the pending agents to withdraw.

    These agents still count as pending in this plan, because they might already have nodes.
    """
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
