"""The verbs on the cluster: agents and nodes."""

from gleaner.control.cli.answer import Answer, AsJson
from gleaner.control.cli.client import connect


def agents(as_json: AsJson = False) -> Answer:
    """List the agents. Where they are, until when, and with which jobs."""
    with connect() as control:
        return Answer(control.agents(), as_json)


def nodes(as_json: AsJson = False) -> Answer:
    """List the nodes as the scheduler sees them."""
    with connect() as control:
        return Answer(control.nodes(), as_json)
