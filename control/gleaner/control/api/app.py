"""The HTTP API of one `ControlState`, on two ports.

It contains no SQL, which is in the queue, and no decisions, which are made by the policies.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from fastapi import FastAPI

from gleaner.agent.common.installed_version import installed_version
from gleaner.control.api import (
    agents,
    attempts,
    campaigns,
    decisions,
    drains,
    health,
    images,
    inputs,
    jobs,
    metrics,
    nodes,
    owners,
    problems,
    report,
    secrets,
    tokens,
    uploads,
)
from gleaner.control.api.access import OPEN_PATH, Anyone, Gate
from gleaner.control.api.audit import Audit, AuditFile, RequestRecord
from gleaner.control.api.instruments import Instruments
from gleaner.control.control_state import ControlState


class Door(StrEnum):
    """A port with its own routes, served by its own process."""

    PEOPLE = "people"
    AGENTS = "agents"


_PEOPLES = (jobs, campaigns, decisions, drains, nodes, owners, images, inputs, report, tokens, uploads, secrets)
_ROUTERS = {
    Door.PEOPLE: (*(noun.router for noun in _PEOPLES), tokens.web_codes, images.site, metrics.router),
    Door.AGENTS: (agents.router, attempts.router, metrics.agents_router),
}
"""The apps share the routes of these routers. Including the routers would cost each app a tenth of a second at its
first request."""


def create_app(state: ControlState, doors: Collection[Door] = tuple(Door)) -> FastAPI:
    """Return the app for these ports. Its OpenAPI document is at `/openapi.json`, for every caller with a token."""
    routers = [health.router, *(router for door in doors for router in _ROUTERS[door])]
    app = FastAPI(
        title="Gleaner",
        summary="Harvests the idle node time of a cluster",
        version=installed_version(),
        openapi_url=None,  # FastAPI's own route would bypass the routers, so we add one below
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        routes=[route for router in routers for route in router.routes],
    )
    meters = Instruments()
    app.state.control_state = state
    app.state.meters = meters
    # The middleware that is added last is the outermost.
    app.add_middleware(Gate, state=state, meters=meters, takes_munge=Door.PEOPLE in doors)
    app.state.audit = Audit(state, AuditFile(state.settings.audit))
    app.add_middleware(RequestRecord, audit=app.state.audit, meters=meters)
    problems.install(app)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(_caller: Anyone) -> dict[str, Any]:
        return described(app)

    return app


def described(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document, which declares the token that every call except `/health` needs."""
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    document["paths"][OPEN_PATH]["get"]["security"] = []
    return document
