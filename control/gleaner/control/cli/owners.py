"""The verb on the owners of the partitions with entitlements."""

from gleaner.control.cli.connect import connect
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.models.owners import OwnersStatus, WaitingRow
from gleaner.control.simulation.metrics.tables import Table


def owners(as_json: AsJson = False) -> Answer:
    """List the owners with entitlements, and who waits for what.

    The list says what each owner is entitled to and what it has.
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
