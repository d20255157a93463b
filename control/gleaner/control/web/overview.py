"""The overview: jobs by state, nodes by use, groups with their targets, and problems that need attention."""

import math
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gleaner.agent.common.quantities import in_words
from gleaner.control.api import campaigns, nodes
from gleaner.control.api.access import Caller, User
from gleaner.control.models.nodes import ClusterStatus, NodeRow
from gleaner.control.models.searches import CampaignFilter
from gleaner.control.policy.lossy_nodes import SliceCounts, conspicuous
from gleaner.control.policy.node_time import DAY_S, BandStep, band
from gleaner.control.queue import node_history, queries
from gleaner.control.queue.queries import SilentAgents
from gleaner.control.web.band_chart import HOUR_S, RANGES, BandChart, band_chart
from gleaner.control.web.gate import ROOT
from gleaner.control.web.rendering import page

router = APIRouter()

LOSING_AT_MOST = 5
OWN_CAMPAIGNS = 5
USES = ("regular jobs", "agent", "idle", "not in use", "planned for another job")

WantedRange = Annotated[Literal["hours", "days", "weeks"], Query(alias="band")]


@dataclass(frozen=True, slots=True)
class GroupUse:
    """The cores of one group, and its target."""

    group: str
    holds_cpus: int
    target_cpus: float
    waits: bool


@dataclass(frozen=True, slots=True)
class NodeUse:
    """The number of nodes with one use, and their cores."""

    use: str
    nodes: int
    cpus: int


@dataclass(frozen=True, slots=True)
class DayHarvest:
    """The harvest of a day (UTC), in core hours and as a fraction of the time of all nodes."""

    day: str
    harvested_core_h: float
    share: float


@dataclass(frozen=True, slots=True)
class Attention:
    """A problem, and its remedy."""

    what: str
    todo: str
    path: str


@router.get(ROOT)
def overview(request: Request, caller: User, wanted: WantedRange = "hours") -> Response:
    """Return the overview page."""
    cluster, status = nodes.cluster(caller), campaigns.status(caller)
    phases: dict[str, int] = {}
    for agent in nodes.list_agents(caller):
        phases[agent.phase] = phases.get(agent.phase, 0) + 1
    return page(
        request,
        "overview.html",
        mine=campaigns.list_campaigns(caller, CampaignFilter(mine=True, limit=OWN_CAMPAIGNS)),
        jobs=status,
        cluster=cluster,
        uses=node_uses(cluster.nodes),
        phases=phases,
        groups=_groups(caller),
        band=_band(caller, wanted),
        yesterday=_yesterday(caller),
        ranges=RANGES,
        wanted=wanted,
        round_s=caller.state.settings.rounds.length_s,
        attention=needs_attention(cluster, caller.state.faults.now, held=status.held, silent=_silent(caller)),
    )


def _band(caller: Caller, wanted: str) -> BandChart | None:
    """Return the nodes' time as a picture. All users can see it, as in Slurm."""
    chosen, now_s = RANGES[wanted], caller.now_s
    end_s = math.ceil(now_s / chosen.step_s) * chosen.step_s
    begin_s = end_s - chosen.length_s
    with caller.reading() as db:
        times = node_history.times(db, begin_s=begin_s, end_s=end_s, step_s=chosen.stored_step_s)
    return band_chart(band(times, begin_s=begin_s, end_s=end_s, step_s=chosen.step_s), now_s=now_s)


def _silent(caller: Caller) -> tuple[SilentAgents, float] | None:
    """Return the silent agents, and how long the first of them has been silent, or None if there are none."""
    with caller.reading() as db:
        found = queries.silent_agents(db, now_s=caller.now_s)
    lease_s = caller.state.settings.queue.lease_s  # a heartbeat renewed the lease for this long
    return None if found is None else (found, caller.now_s - found.since_s + lease_s)


def _yesterday(caller: Caller) -> DayHarvest | None:
    """Return the harvest of the last whole day, from the coarsest steps, which are kept longest."""
    end_s = int(caller.now_s // DAY_S * DAY_S)
    begin_s = end_s - DAY_S
    with caller.reading() as db:
        times = node_history.times(db, begin_s=begin_s, end_s=end_s, step_s=RANGES["weeks"].stored_step_s)
    (whole,) = band(times, begin_s=begin_s, end_s=end_s, step_s=DAY_S)
    return day_harvest(whole)


def day_harvest(whole: BandStep) -> DayHarvest | None:
    """Return a day's harvest and its fraction of all core hours that control saw, or None if it saw none."""
    if not whole.cores_s:
        return None
    day = datetime.fromtimestamp(whole.begin_s, UTC).strftime("%Y-%m-%d")
    return DayHarvest(day, whole.harvested / HOUR_S, whole.harvested / whole.cores_s)


def _groups(caller: Caller) -> tuple[GroupUse, ...]:
    """Return the groups that the caller is allowed to see."""
    state = caller.state
    with caller.reading() as db:
        shares = state.usage_cache.shares(db, state.share_rules)
    names = {*shares.holds_cpus, *shares.waiting, *shares.rules.entitled}
    seen = sorted(names if caller.group is None else names & {caller.group})
    targets = shares.target_cpus(seen)
    return tuple(GroupUse(name, shares.holds_cpus.get(name, 0), targets[name], name in shares.waiting) for name in seen)


def use_of(node: NodeRow) -> str:
    """Return the use of a node. The first use that applies is chosen, as in the list of nodes."""
    if node.agent is not None:
        return "agent"
    if node.regular:
        return "regular jobs"
    return node.unused or "not in use"


def node_uses(rows: tuple[NodeRow, ...]) -> tuple[NodeUse, ...]:
    """Return the number of nodes with each use."""
    return tuple(
        NodeUse(use, len(cpus), sum(cpus))
        for use in USES
        for cpus in [[node.cpus for node in rows if use_of(node) == use]]
    )


def needs_attention(
    cluster: ClusterStatus, failing: tuple[str, ...], *, held: int, silent: tuple[SilentAgents, float] | None = None
) -> tuple[Attention, ...]:
    """Return all problems that need attention, the most urgent first."""
    found = [Attention(f"control's step '{step}' fails", "control's log shows how", ROOT) for step in failing]
    if cluster.problem:
        found.append(Attention(cluster.problem, "see that control reaches the scheduler", f"{ROOT}/nodes"))
    elif cluster.stale:
        found.append(Attention("the scheduler has not answered lately", "see that it runs", f"{ROOT}/nodes"))
    for node in cluster.nodes:
        path = f"{ROOT}/nodes/{node.name}"
        found += [Attention(f"node {node.name}: {fault}", "an admin has to repair this", path) for fault in node.wrong]
        if node.excluded_until_s is not None:
            todo = "repair the node, then tell Gleaner to trust it"
            found.append(Attention(f"node {node.name} is excluded: {node.distrusted}", todo, path))
        elif node.distrusted:
            found.append(Attention(f"node {node.name} gets one job: {node.distrusted}", "look at the node", path))
    found += _losing(cluster.nodes)
    if silent is not None:
        who, for_s = silent
        agents = "1 agent" if who.agents == 1 else f"{who.agents:,} agents"
        nodes = "1 node" if who.nodes == 1 else f"{who.nodes:,} nodes"
        has = "has" if who.agents == 1 else "have"
        todo = "see that the nodes run and reach control; the agents' jobs continue elsewhere from their last save"
        what = f"{agents} on {nodes} {has} not been heard from for {in_words(for_s)}"
        found.append(Attention(what, todo, f"{ROOT}/agents?text=silent"))
    if held:
        some = "1 job is held" if held == 1 else f"{held:,} jobs are held"
        found.append(Attention(some, "find out why, then release or cancel", f"{ROOT}/jobs?held=true"))
    return tuple(found)


def _losing(nodes: tuple[NodeRow, ...]) -> list[Attention]:
    """Return a line for each node that loses an unusually large number of slices.

    If there are many such nodes, only the worst are included.
    """
    counts = {node.name: SliceCounts(node.slices_in_day, node.lost_in_day) for node in nodes}
    todo = "look at the node and at its lost slices; drain it if this continues"
    bad = conspicuous(counts)
    found = [
        Attention(
            f"node {name} lost {counts[name].lost:,} of {counts[name].slices:,} slices in 24 hours, more than others",
            todo,
            f"{ROOT}/nodes/{name}",
        )
        for name in bad[:LOSING_AT_MOST]
    ]
    if len(bad) > LOSING_AT_MOST:
        rest = f"{len(bad) - LOSING_AT_MOST:,} more nodes lost many slices"
        found.append(Attention(rest, "see the list of nodes", f"{ROOT}/nodes?order=-lost_in_day"))
    return found
