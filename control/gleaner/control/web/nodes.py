"""Nodes: the list, one node, agents, and drains."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from gleaner.control.api import drains, nodes
from gleaner.control.api.access import Admin, User
from gleaner.control.api.nodes import NodePath
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.policy.node_time import DAY_S
from gleaner.control.queue import node_history
from gleaner.control.queue.errors import NotFound
from gleaner.control.queue.node_history import LostSlice
from gleaner.control.web.gate import ROOT
from gleaner.control.web.listing import ListSearch, listing
from gleaner.control.web.overview import USES, use_of
from gleaner.control.web.rendering import page

router = APIRouter(prefix=ROOT)

DRAINS = 100
LOST_AT_MOST = 20
Wanted = Annotated[ListSearch, Query()]


class NodeSearch(ListSearch):
    """A search for nodes, also by their use."""

    use: str = ""


@router.get("/nodes")
def node_list(request: Request, caller: User, wanted: Annotated[NodeSearch, Query()]) -> Response:
    """Return every node, with its use and its faults."""
    cluster = nodes.cluster(caller)
    uses = {node.name: use_of(node) for node in cluster.nodes}
    found = listing([node for node in cluster.nodes if wanted.use in {"", uses[node.name]}], wanted)
    return page(request, "nodes.html", cluster=cluster, found=found, wanted=wanted, uses=uses, all_uses=USES)


@router.get("/nodes/{node}")
def show_node(request: Request, caller: User, node: NodePath) -> Response:
    """Return one node, with its agents."""
    row = next((each for each in nodes.cluster(caller).nodes if each.name == node), None)
    if row is None:
        raise NotFound(f"the scheduler has no node {node}")
    mine = [agent for agent in nodes.list_agents(caller) if agent.node == node]
    lost: list[LostSlice] = []
    if row.lost_in_day:
        since_s = caller.now_s - DAY_S
        with caller.reading() as db:
            lost = node_history.latest_lost(db, node, since_s=since_s, group=caller.group, at_most=LOST_AT_MOST)
    return page(
        request,
        "node.html",
        node=row,
        use=use_of(row),
        agents=mine[:ROWS_A_PAGE],
        lost=lost,
        lost_at_most=LOST_AT_MOST,
    )


@router.get("/agents")
def agent_list(request: Request, caller: User, wanted: Wanted) -> Response:
    """Return the agents that control knows."""
    found = listing(nodes.list_agents(caller), wanted)
    return page(request, "agents.html", found=found, wanted=wanted)


@router.get("/drains")
def drain_list(request: Request, caller: Admin, wanted: Wanted) -> Response:
    """Return the latest requests to drain or resume nodes."""
    found = listing(drains.list_drains(caller, DRAINS), wanted)
    return page(request, "drains.html", found=found, wanted=wanted)
