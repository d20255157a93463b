"""The verbs for the cluster: agents, nodes, the owners with entitlements, and the web page's address."""

import webbrowser
from typing import Annotated

import typer

from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import CliError
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.models.owners import OwnersStatus, WaitingRow
from gleaner.control.simulation.metrics.tables import Table


def agents(as_json: AsJson = False) -> Answer:
    """List the agents, with their nodes, their ends and their jobs."""
    with connect() as control:
        return Answer(control.agents(), as_json)


def nodes(
    *,
    forget: Annotated[
        str | None,
        typer.Option(metavar="NODE", help="For admins: forget the failures of this node, and use it again at once."),
    ] = None,
    as_json: AsJson = False,
) -> Answer:
    """List the nodes as the scheduler sees them."""
    with connect() as control:
        return Answer(control.nodes() if forget is None else control.trust(forget), as_json)


def web(
    opens: Annotated[
        bool, typer.Option("--open", help="Open the address in this machine's browser instead of printing it.")
    ] = False,
) -> Answer:
    """Print the address of the web page. It signs one browser in as you, once, within a minute."""
    with connect() as control:
        address = control.web_address()
    if not opens:
        return Answer(address)
    if not webbrowser.open(address):
        raise CliError("no browser could be started here: leave out --open, and open the address on your own machine")
    return Answer(None)


def owners(as_json: AsJson = False) -> Answer:
    """List the owners with entitlements, and their waiting jobs.

    The list shows the CPUs to which each owner is entitled, and those that it uses.
    """
    with connect() as control:
        found = control.owners()
    remarks = (found.problem,) if found.problem else ()
    return Answer(found if as_json else _shown(found), as_json, remarks)


def _shown(found: OwnersStatus) -> str | tuple[Table, ...]:
    if found.mode == "off":
        return "entitlements are off: Slurm alone decides (see [entitlements] in control's settings)"
    dry = ", a dry run: nothing is done" if found.mode == "dry-run" else ""
    title = f"{found.idle_cpus} of {found.cpus} CPUs idle at {moment(found.read_s)}{dry}"
    owners = {
        "OWNER": "owner", "ENTITLED": "entitled_cpus", "USED": "used_cpus", "LEAVING": "leaving_cpus",
        "JOBS WAITING": "waiting_jobs", "THEIR CPUS": "waiting_cpus",
    }  # fmt: skip
    tables = (Table.of(found.owners, owners, right=tuple(owners)[1:], title=title),)
    if not found.waiting:
        return tables
    waiting = Table.of(
        found.waiting,
        {"JOB": "job", "OWNER": "owner", "CLASS": "job_class", "CPUS": "cpus", "DECISION": _decision, "WHY": "why"},
        right=("CPUS",),
        title="waiting jobs",
    )
    return (*tables, waiting)


def _decision(row: WaitingRow) -> str:
    return f"{row.verdict}; preempts {', '.join(row.victims)}" if row.victims else row.verdict
