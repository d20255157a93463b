"""What agents ask for themselves: register, claim, beat, farewell. Each only under its own name."""

from typing import Annotated

from fastapi import APIRouter, Response
from pydantic import BaseModel

from gleaner.agent.protocol import Ask, Assignments, Beat, Farewell, Orders, Registration, Welcome
from gleaner.control.api import examples
from gleaner.control.api.access import OwnAgent, User
from gleaner.control.api.problems import documented
from gleaner.control.api.shapes import AgentRow
from gleaner.control.queue import agents, moves, rates, reads

router = APIRouter(prefix="/v1/agents", tags=["agents"])


def _answer(message: BaseModel) -> Response:
    """The message as it is: FastAPI would check it once more, and write it in one more turn of its thread pool."""
    return Response(message.model_dump_json(), media_type="application/json")


@router.get("", responses=documented())
def list_agents(caller: User) -> list[AgentRow]:
    """All agents that control knows, the newest first."""
    with caller.reading() as db:
        return list(reads.agent_rows(db, now_s=caller.now_s))


@router.post("/{name}/register", responses=documented(404, 409, 413, 422))
def register(caller: OwnAgent, registration: Annotated[Registration, examples.A_REGISTRATION]) -> Welcome:
    """Say what the node is and when the agent will be gone. Saying it again is no error."""
    queue = caller.site.settings.queue
    with caller.writing() as db:
        agents.register(db, caller.identity.name, registration, lease_s=queue.lease_s, now_s=caller.now_s)
        return Welcome(
            heartbeat_s=queue.heartbeat_s,
            lease_s=queue.lease_s,
            rates=rates.of_node(db, registration.facts.node),
            node_mtbf_s=rates.node_mtbf_s(db, caller.site.settings.rates.rules),
        )


@router.post("/{name}/claim", response_model=Assignments, responses=documented(404, 409, 413, 422))
def claim(caller: OwnAgent, ask: Annotated[Ask, examples.AN_ASK]) -> Response:
    """Take as many waiting jobs as fit, each under a new attempt. Empty if nothing fits."""
    site = caller.site
    with caller.writing() as db:
        assignments = moves.claim(
            db,
            caller.identity.name,
            ask,
            now_s=caller.now_s,
            shares=lambda db: site.tally.shares(db, site.share_rules),
            may_record=site.tally.may_record,
            limits=site.allowed,
        )
    site.tally.handed_out(assignments.jobs)
    caller.meters.claimed.inc(len(assignments.jobs))
    return _answer(assignments)


@router.post("/{name}/beat", response_model=Orders, responses=documented(404, 409, 413, 422))
def beat(caller: OwnAgent, beat: Annotated[Beat, examples.A_BEAT]) -> Response:
    """Renew the lease of the agent and of the attempts named, and hear what to do with each."""
    lease_s = caller.site.settings.queue.lease_s
    with caller.writing() as db:
        orders = agents.beat(db, caller.identity.name, beat, lease_s=lease_s, now_s=caller.now_s)
    return _answer(orders)


@router.post("/{name}/farewell", status_code=204, responses=documented(404, 409, 413, 422))
def farewell(caller: OwnAgent, farewell: Annotated[Farewell, examples.A_FAREWELL]) -> None:
    """The agent's last words."""
    rounds = caller.site.settings.rounds
    with caller.writing() as db:
        end_s = agents.farewell(
            db,
            caller.identity.name,
            farewell,
            now_s=caller.now_s,
            failures_until_avoided=rounds.failures_until_avoided,
            avoid_s=rounds.avoid_s,
        )
        if end_s is not None:
            rules = caller.site.settings.rates.rules
            rates.left(db, caller.identity.name, vanished=False, rules=rules, now_s=caller.now_s)
            rates.learn_end(db, caller.identity.name, farewell)
    if end_s is not None:
        caller.meters.lateness.observe(farewell.ended_s - end_s)
