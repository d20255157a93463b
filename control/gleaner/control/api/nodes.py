"""The cluster as control last saw it, and its agents."""

from typing import Annotated

from fastapi import APIRouter, Path

from gleaner.control.api.access import Admin, User
from gleaner.control.api.problems import documented
from gleaner.control.control_state import ControlState
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.drains import DrainRow
from gleaner.control.models.nodes import ClusterStatus, NodeRow
from gleaner.control.policy.lossy_nodes import SliceCounts
from gleaner.control.policy.node_clocks import wrong_clock
from gleaner.control.policy.node_time import DAY_S
from gleaner.control.policy.resources import NO_REAL_MEMORY, lacks_real_memory
from gleaner.control.queue import drains, node_health, node_history, queries
from gleaner.control.queue.errors import NotFound
from gleaner.control.slurm.agents_view import agent_phase, regular_nodes, waits_for
from gleaner.control.slurm.snapshot import JobPhase, SlurmNode, Snapshot

router = APIRouter(prefix="/v1", tags=["nodes"])

NodePath = Annotated[str, Path(max_length=63, description="The node's name", examples=["node1"])]

POLLS_UNTIL_STALE = 3
LOST_FRESH_S = 60.0
"""The time for which the counts of lost slices are kept."""


def is_stale(state: ControlState, now_s: float) -> bool:
    """Return True if the last snapshot of the cluster is too old to be trusted."""
    return state.cluster is None or now_s - state.cluster.read_s > POLLS_UNTIL_STALE * state.settings.rounds.poll_s


def _wrong(node: SlurmNode, clock_ahead_s: float | None) -> tuple[str, ...]:
    memory = (NO_REAL_MEMORY,) if lacks_real_memory(node.memory_mib) else ()
    return memory if clock_ahead_s is None else (*memory, wrong_clock(clock_ahead_s))


def _waiting(view: Snapshot) -> str:
    count = sum(agent_phase(agent) is JobPhase.PENDING for agent in view.jobs)
    return f"agents that wait for Slurm: {count}{waits_for(view)}" if count else ""


def _drained(drain: DrainRow) -> str:
    left = sum(job.gone_s is None for job in drain.jobs)
    return f"by {drain.by}" + (f", {left} left there" if left and not drain.is_over else "")


@router.get("/agents", responses=documented())
def list_agents(caller: User) -> list[AgentRow]:
    """Return all agents that control knows, the newest first, with the jobs that the caller is allowed to see."""
    with caller.reading() as db:
        return list(queries.agent_rows(db, now_s=caller.now_s, group=caller.group))


@router.get("/nodes", responses=documented())
def cluster(caller: User) -> ClusterStatus:
    """Return every node with its state in the scheduler, its users, and Gleaner's own records of it."""
    state, now_s = caller.state, caller.now_s
    view = state.cluster
    with caller.reading() as db:
        failures = node_health.distrusted_nodes(db)
        drained = drains.drain_by_node(db)
        since_s = now_s - DAY_S
        counts = state.lost_slices.get(
            None, lambda: node_history.count_slices(db, since_s=since_s), fresh_s=LOST_FRESH_S
        )
    agent_on = {agent.node: agent.name for agent in view.jobs} if view else {}
    regular = regular_nodes(view) if view else frozenset[str]()
    rows: list[NodeRow] = []
    for node in view.nodes.values() if view else ():
        count = counts.get(node.name, SliceCounts())
        failed = failures.get(node.name)
        excluded_until_s = failed.excluded_until_s if failed else None
        rows.append(
            NodeRow(
                name=node.name,
                cpus=node.cpus,
                memory_mib=node.memory_mib,
                state=node.state,
                idle=node.is_idle,
                regular=node.name in regular,
                agent=agent_on.get(node.name),
                failures=failed.faults if failed else 0,
                excluded_until_s=excluded_until_s if excluded_until_s and excluded_until_s > now_s else None,
                distrusted=failed.reason if failed else "",
                drained=_drained(drained[node.name]) if node.name in drained and "drain" in node.state else "",
                wrong=_wrong(node, state.wrong_clocks.get(node.name)),
                slices_in_day=count.slices,
                lost_in_day=count.lost,
            )
        )
    return ClusterStatus(
        read_s=view.read_s if view else None,
        stale=is_stale(state, now_s),
        problem=state.problem,
        boundary_s=state.boundary_s,
        waiting=_waiting(view) if view else "",
        nodes=tuple(rows),
    )


@router.post("/nodes/{node}/trust", responses=documented(404, 409, 422))
def trust(caller: Admin, node: NodePath) -> ClusterStatus:
    """Trust a repaired node again at once, despite its earlier failures. Return the updated cluster."""
    with caller.writing() as db:
        if not node_health.forget(db, node):
            raise NotFound(f"nothing is held against node {node}: see `glean nodes`")
    return cluster(caller)
