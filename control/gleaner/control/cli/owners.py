"""The verb on the owners of the partitions with entitlements."""

from gleaner.control.cli.client import connect
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import moment
from gleaner.control.models.owners import OwnersStatus
from gleaner.control.simulation.metrics.tables import Table


def owners(as_json: AsJson = False) -> Answer:
    """List the owners with entitlements: what they are entitled to and have, and who waits for what."""
    with connect() as control:
        found = control.owners()
    remarks = (found.problem,) if found.problem else ()
    return Answer(found if as_json else _shown(found), as_json, remarks)


def _shown(found: OwnersStatus) -> str | tuple[Table, ...]:
    if found.mode == "off":
        return "entitlements are off: Slurm alone decides (see [entitlements] in control's settings)"
    dry = ", a dry run: nothing is done" if found.mode == "dry-run" else ""
    title = f"{found.idle_cpus} of {found.cpus} CPUs idle at {moment(found.read_s)}{dry}"
    tables = [
        Table(
            ("OWNER", "ENTITLED", "USED", "LEAVING", "JOBS WAITING", "THEIR CPUS"),
            tuple(
                (row.owner, *map(str, (row.entitled_cpus, row.used_cpus, row.leaving_cpus)),
                 str(row.waiting_jobs), str(row.waiting_cpus))
                for row in found.owners
            ),
            title,
        )
    ]  # fmt: skip
    if found.waiting:
        tables.append(
            Table(
                ("JOB", "OWNER", "CLASS", "CPUS", "DECISION", "WHY"),
                tuple(
                    (row.job, row.owner, row.job_class, str(row.cpus), _decision(row.verdict, row.victims), row.why)
                    for row in found.waiting
                ),
                "waiting jobs",
                left=3,
                words=("DECISION", "WHY"),
            )
        )
    return tuple(tables)


def _decision(verdict: str, victims: tuple[str, ...]) -> str:
    return f"{verdict}; preempts {', '.join(victims)}" if victims else verdict
