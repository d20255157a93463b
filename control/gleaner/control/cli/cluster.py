"""The verbs on the cluster: agents and nodes."""

from typing import Annotated

import typer

from gleaner.control.cli.connect import connect
from gleaner.control.cli.output import Answer, AsJson


def agents(as_json: AsJson = False) -> Answer:
    """List the agents, with their nodes, their ends and their jobs."""
    with connect() as control:
        return Answer(control.agents(), as_json)


def nodes(
    *,
    forget: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="Forget what has failed on this node and use it again at once. Admins only."),
    ] = None,
    as_json: AsJson = False,
) -> Answer:
    """List the nodes as the scheduler sees them."""
    with connect() as control:
        return Answer(control.nodes() if forget is None else control.trust(forget), as_json)
