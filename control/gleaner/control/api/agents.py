"""The requests of agents, such as claims and heartbeats. An agent can act only under its own name."""

from fastapi import APIRouter, Response
from pydantic import BaseModel
from sqlalchemy import Connection

from gleaner.agent.messages import (
    Assignment,
    Assignments,
    ClaimRequest,
    CredentialGiven,
    Delivery,
    DeliveryOffer,
    DeliveryReport,
    Deregistration,
    Heartbeat,
    Orders,
    Registration,
    UrlInput,
    Welcome,
)
from gleaner.control.api.access import Caller, OwnAgent
from gleaner.control.api.problems import documented
from gleaner.control.models.outputs import for_group
from gleaner.control.policy.node_clocks import is_wrong, wrong_clocks
from gleaner.control.queue import agents, claims, deliveries, node_health, secrets

LATE_REPORT_S = 60.0
"""The time after a delivery's time limit in which the agent can still report the outcome."""

router = APIRouter(prefix="/v1/agents", tags=["agents"])


def _answer(message: BaseModel) -> Response:
    """Return the message as a response, which FastAPI does not validate again in its thread pool."""
    return Response(message.model_dump_json(), media_type="application/json")


def _as_fetched(caller: Caller, db: Connection, job: Assignment) -> Assignment:
    """Return the job with the data that its agent needs to fetch its inputs: the rules and its group's secrets."""
    if not any(isinstance(one, UrlInput) for one in job.inputs):
        return job
    inputs = tuple(
        one.model_copy(update={"credential": _secret(caller, db, job.group, one.url)})
        if isinstance(one, UrlInput)
        else one
        for one in job.inputs
    )
    return job.model_copy(update={"inputs": inputs, "fetch_rules": caller.state.settings.inputs.fetch_rules})


def _secret(caller: Caller, db: Connection, group: str, url: str) -> CredentialGiven | None:
    found = secrets.find(db, group, url, caller.state.settings.queue.secret_key_file)
    if found is not None:
        caller.about.append(f"group {group}, a secret for {found.url}")
    return found


@router.post("/{name}/register", responses=documented(404, 409, 413, 422))
def register(caller: OwnAgent, registration: Registration) -> Welcome:
    """Register the agent with the properties of its node and its planned end. Registering again is not an error."""
    queue = caller.state.settings.queue
    with caller.writing() as db:
        agents.register(db, caller.name, registration, lease_s=queue.lease_s, now_s=caller.now_s)
        return Welcome(
            heartbeat_s=queue.heartbeat_s,
            lease_s=queue.lease_s,
            rates=node_health.rates_of(db, registration.facts.node),
            node_mtbf_s=node_health.node_mtbf_s(db, caller.state.settings.rates.rules),
        )


@router.post("/{name}/claim", response_model=Assignments, responses=documented(404, 409, 413, 422))
def claim(caller: OwnAgent, ask: ClaimRequest) -> Response:
    """Claim as many waiting jobs as fit, each under a new attempt. The answer is empty if no job fits."""
    state = caller.state
    with caller.writing() as db:
        assignments = claims.claim(
            db,
            caller.name,
            ask,
            now_s=caller.now_s,
            shares=lambda db: state.usage_cache.shares(db, state.share_rules),
            may_record=state.usage_cache.may_record,
            limits=state.allowed,
        )
        assignments = Assignments(jobs=tuple(_as_fetched(caller, db, job) for job in assignments.jobs))
    state.usage_cache.record_claims(assignments.jobs)
    caller.meters.claimed.inc(len(assignments.jobs))
    return _answer(assignments)


@router.post("/{name}/beat", response_model=Orders, responses=documented(404, 409, 413, 422))
def record_heartbeat(caller: OwnAgent, heartbeat: Heartbeat) -> Response:
    """Renew the lease of the agent and of the named attempts. Return the instruction for each attempt."""
    state, lease_s = caller.state, caller.state.settings.queue.lease_s
    with caller.writing() as db:
        orders = agents.record_heartbeat(db, caller.name, heartbeat, lease_s=lease_s, now_s=caller.now_s)
        if state.settings.outputs.urls and deliveries.is_due(db, now_s=caller.now_s):
            orders = orders.model_copy(update={"deliveries": True})
        ahead_s = heartbeat.clock_ahead_s
        if ahead_s is not None and (is_wrong(ahead_s) or state.wrong_clocks):  # otherwise nothing needs to be changed
            node = agents.node_of(db, caller.name)
            state.wrong_clocks = wrong_clocks(state.wrong_clocks, node, ahead_s)
    return _answer(orders)


@router.post("/{name}/deliver", response_model=DeliveryOffer, responses=documented(404, 409, 413, 422))
def take_delivery(caller: OwnAgent) -> Response:
    """Take a result that waits for delivery, with the group's secret for its target. The answer is null if no result
    waits."""
    outputs, name = caller.state.settings.outputs, caller.name
    lease_s, tries = outputs.deliver_s + LATE_REPORT_S, outputs.tries
    with caller.writing() as db:
        row = deliveries.take(db, name, lease_s=lease_s, most_failures=tries, now_s=caller.now_s)
        if row is None:
            return _answer(DeliveryOffer())
        credential = _secret(caller, db, row.group, row.to)
    return _answer(
        DeliveryOffer(
            delivery=Delivery(
                job=row.job,
                attempt=row.attempt,
                number=row.tries,
                digest=row.output_digest,
                to=row.to,
                keep=row.document.resolved(
                    job=row.job, campaign=row.campaign, index=row.run, parameters=row.parameters
                ).keep,
                allowed=for_group(outputs.urls, row.group),
                total_s=outputs.deliver_s,
                silent_s=outputs.silent_s,
                credential=credential,
            )
        )
    )


@router.post("/{name}/delivered", status_code=204, responses=documented(404, 409, 413, 422))
def end_delivery(caller: OwnAgent, report: DeliveryReport) -> None:
    """Record the outcome of one try to deliver a result. A report about an older try is refused (409)."""
    tries = caller.state.settings.outputs.tries
    with caller.writing() as db:
        deliveries.record_end(db, report, agent=caller.name, most_failures=tries, now_s=caller.now_s)


@router.post("/{name}/farewell", status_code=204, responses=documented(404, 409, 413, 422))
def deregister(caller: OwnAgent, deregistration: Deregistration) -> None:
    """Record the end of the agent, with its last message."""
    rounds = caller.state.settings.rounds
    with caller.writing() as db:
        end_s = agents.record_deregistration(
            db,
            caller.name,
            deregistration,
            now_s=caller.now_s,
            faults_until_excluded=rounds.failures_until_excluded,
            rates=caller.state.settings.rates.rules,
        )
    if end_s is not None:
        caller.meters.lateness.observe(deregistration.ended_s - end_s)
