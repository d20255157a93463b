"""The verbs on the cluster: agents and nodes."""

from typing import Annotated

import typer

from gleaner.control.cli.answer import Answer, AsJson
from gleaner.control.cli.client import connect


def agents(as_json: AsJson = False) -> Answer:
    """List the agents. Where they are, until when, and with which jobs."""
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
