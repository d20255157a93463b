"""`/metrics` for Prometheus.

Names of jobs, users and nodes are not used as labels, because their number has no limit.
"""

from dataclasses import asdict

from fastapi import APIRouter, Response
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from sqlalchemy import Connection

from gleaner.control.api.access import Caller, Metrics
from gleaner.control.api.instruments import Family, gauges
from gleaner.control.api.problems import documented
from gleaner.control.policy.harm import harm
from gleaner.control.policy.node_time import DAY_S, RESOLUTIONS, NodeTime, shares_of_agents
from gleaner.control.queue import leader, node_health, node_history, queries

router = APIRouter(tags=["metrics"])
agents_router = APIRouter(tags=["metrics"])
_DOCUMENTED = documented() | {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}


# the response_class has no media type, because that would also apply to the errors
@agents_router.get("/metrics", response_class=Response, responses=_DOCUMENTED)
def agents_metrics(caller: Metrics) -> Response:
    """Return the metrics of the agents' port in the text format of Prometheus."""
    return Response(generate_latest(caller.meters.registry), media_type=CONTENT_TYPE_LATEST)


@router.get("/metrics", response_class=Response, responses=_DOCUMENTED)
def metrics(caller: Metrics) -> Response:
    """Return the metrics of the people's port and the state of the whole system, in the text format of Prometheus."""
    text = generate_latest(caller.meters.registry) + generate_latest(gauges(_families(caller)))
    return Response(text, media_type=CONTENT_TYPE_LATEST)


def _node_seconds(db: Connection, begin_s: float, end_s: float) -> dict[str, float]:
    steps = node_history.times(db, begin_s=begin_s, end_s=end_s, step_s=RESOLUTIONS[-1].step_s)
    nodes = sum(steps.values(), NodeTime())
    others = {"regular": nodes.regular_node_s, "idle": nodes.idle_node_s, "unusable": nodes.unusable_node_s}
    return others | shares_of_agents(nodes)


def _one(meaning: str, value: float) -> Family:
    """Return a metric without labels."""
    return meaning, "", {"": value}


def _families(caller: Caller) -> dict[str, Family]:
    state, now_s = caller.state, caller.now_s
    with caller.reading() as db:
        jobs = queries.status(db)
        phases = queries.agent_phases(db, now_s=now_s)
        excluded = len(node_health.excluded_nodes(db, now_s))
        distrusted = sum(bool(node.reason) for node in node_health.distrusted_nodes(db).values())
        used = _node_seconds(db, now_s - DAY_S, now_s)
        paid = harm(node_history.delays_s(db, begin_s=now_s - DAY_S, end_s=now_s))
        stored = state.stored.bytes_by_owner(db)
        mtbf_s = node_health.node_mtbf_s(db, state.settings.rates.rules)
        leads = leader.leader(db, now=state.database_clock()) is not None if state.follows else state.is_leader
    states = jobs.model_dump(include={"new", "running", "saved", "succeeded", "failed", "cancelled"})
    groups = {group: size for (group, user), size in stored.items() if not user}
    families: dict[str, Family] = {
        "gleaner_jobs": ("Jobs by state, complete ones by outcome", "state", states),
        "gleaner_jobs_held": _one("Jobs that are held", jobs.held),
        "gleaner_agents": ("Agents by phase", "phase", phases),
        "gleaner_nodes_excluded": _one("Nodes that are excluded because agents or jobs failed there", excluded),
        "gleaner_nodes_distrusted": _one("Nodes that get no job or one, until a job has run well there", distrusted),
        "gleaner_nodes_clock_wrong": _one("Nodes whose clock differs by more than a second", len(state.wrong_clocks)),
        "gleaner_leader": _one("1 if a control program leads", int(leads)),
        "gleaner_node_mtbf_seconds": _one("Mean time between losses of an agent without notice", mtbf_s),
        "gleaner_step_failures": ("Rounds of control's steps that failed by a bug", "step", dict(state.faults.rounds)),
        "gleaner_step_age_seconds": ("Since the last good round of each of control's steps", "step", state.loop_ages_s),
        "gleaner_stored_bytes": ("Checkpoints and results in the storage, by group", "group", groups),
        "gleaner_round_end_seconds": _one("When the current round ends, since the epoch", state.boundary_s),
        "gleaner_node_seconds_day": ("Node seconds by use in the last 24 hours", "use", used),
        "gleaner_regular_delay_day": (
            "Lower bound of the delays of regular jobs that took nodes from agents in 24 hours: jobs, and seconds",
            "figure",
            asdict(paid),
        ),
    }
    if state.cluster is not None:
        age_s = now_s - state.cluster.read_s
        families["gleaner_last_poll_age_seconds"] = _one("Since the last successful look at the cluster", age_s)
    return families
