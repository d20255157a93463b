"""The HTTP API: one app for one `Site`. It holds no SQL and decides nothing that the queue or a policy decides."""

from typing import Any

from fastapi import FastAPI

from gleaner.control.api import (
    agents,
    attempts,
    campaigns,
    decisions,
    drains,
    health,
    jobs,
    metrics,
    nodes,
    owners,
    problems,
    tokens,
)
from gleaner.control.api.access import OPEN_PATH, Anyone, Gate
from gleaner.control.api.audit import Audit, AuditFile
from gleaner.control.api.meters import Meters, Stopwatch
from gleaner.control.site import Site


def create_app(site: Site) -> FastAPI:
    """The app for this site. Its OpenAPI document is at `/openapi.json`, for whoever has a token."""
    app = FastAPI(
        title="Gleaner",
        summary="Harvests the idle node time of a cluster",
        version=health.installed_version(),
        openapi_url=None,  # FastAPI's own route would sit outside the routers; ours follows below
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    meters = Meters()
    app.state.site = site
    app.state.meters = meters
    app.state.pulse = health.Pulse(site)
    # The last one added is the outermost.
    app.add_middleware(Gate, site=site, meters=meters)
    app.add_middleware(Audit, site=site, file=AuditFile(site.settings.audit))
    app.add_middleware(Stopwatch, meters=meters)
    problems.install(app)
    for noun in (agents, attempts, jobs, campaigns, decisions, drains, nodes, owners, tokens, health, metrics):
        app.include_router(noun.router)

    @app.get("/openapi.json", include_in_schema=False)
    async def openapi(_caller: Anyone) -> dict[str, Any]:
        return described(app)

    return app


def described(app: FastAPI) -> dict[str, Any]:
    """The OpenAPI document, with the token that every call but health needs."""
    document = app.openapi()
    document.setdefault("components", {})["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
    document["security"] = [{"token": []}]
    document["paths"][OPEN_PATH]["get"]["security"] = []
    return document
