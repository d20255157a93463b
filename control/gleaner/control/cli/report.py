"""The verb for the report of a month."""

from typing import Annotated

import typer

from gleaner.agent.common.quantities import in_words
from gleaner.client import ClientError
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.report import MonthReport, RegularWaits
from gleaner.control.simulation.metrics.tables import Table, number

MIB = 2**20


def report(
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="The month, as in 2026-10.  [default: this month]")
    ] = "",
    accounting: Annotated[
        bool, typer.Option("--accounting", help="For admins: also ask Slurm for the waits of regular jobs.")
    ] = False,
    as_json: AsJson = False,
) -> Answer:
    """Show a month's node time, and which users got the harvest.

    Users see the jobs of their group, admins those of all groups.
    """
    with connect() as control:
        try:
            found = control.report(month=month, accounting=accounting)
        except ClientError as error:
            if error.option != "month":
                raise
            raise BadInput(f"--month: expected a month as in 2026-10, found {month}") from None
    return Answer(found if as_json else _shown(found), as_json)


def _shown(found: MonthReport) -> tuple[Table | str, ...]:
    """Return tables of the nodes' time and of the jobs' time, in hours."""
    nodes = (
        ("regular jobs", found.regular_node_h),
        ("harvested", found.harvested_node_h),
        ("saving", found.saving_node_h),
        ("restoring", found.restoring_node_h),
        ("starting, inputs and images", found.starting_node_h),
        ("lost", found.lost_node_h),
        ("agents without a job", found.unused_node_h),
        ("idle", found.idle_node_h),
        ("idle, had there been no Gleaner", found.idle_without_node_h),
        ("not usable", found.unusable_node_h),
    )
    rows = [(what, number(value)) for what, value in nodes]
    whose = "all groups" if found.group is None else f"group {found.group}"
    how = "measured by Slurm" if found.energy_is_measured else "an estimate"
    power = [] if found.energy_kwh is None else [f"energy, {how}: {found.energy_kwh:,.1f} kWh"]
    kinds = ("harvested", "saving", "restoring", "starting", "lost")
    who = [
        (row.group, row.user, f"{row.slices}", *(number(getattr(row, f"{kind}_core_h")) for kind in kinds))
        for row in found.rows
    ]
    sums = (number(getattr(found, f"{kind}_core_h")) for kind in kinds)
    who.append(("all", "", f"{sum(row.slices for row in found.rows)}", *sums))
    title_of_who = f"core hours of the jobs of {whose}, of slices that ended in {found.month}"
    title = f"node hours in {found.month}; control saw the nodes for {found.seen_h:,.1f} h of it"
    return (
        found.summary,
        Table(("NODES", "HOURS"), tuple(rows), left=1, title=title),
        Table(("GROUP", "USER", "SLICES", *map(str.upper, kinds)), tuple(who), left=2, title=title_of_who),
        _harm(found),
        Table(
            ("GROUP", "STORED MIB"),
            tuple((group, f"{size / MIB:,.1f}") for group, size in sorted(found.stored_bytes.items())),
            left=1,
            title="checkpoints and results in the storage now",
        ),
        *power,
        *([] if found.regular is None else [_waits(found.regular)]),
    )


def _harm(found: MonthReport) -> Table:
    """Return the delays of regular jobs, in a day and in the month."""
    rows = tuple(
        (when, f"{one.jobs}", *(f"{seconds:.1f}" for seconds in (one.sum_s, one.largest_s, one.late_s)))
        for when, one in (("the last 24 hours", found.harm_day), (found.month, found.harm_month))
    )
    title = "regular jobs that waited for agents to leave their nodes: at least these seconds"
    return Table(("STARTED IN", "JOBS", "SUM", "LARGEST", "95 %"), rows, left=1, title=title)


def _waits(regular: RegularWaits) -> str:
    """Return one line on the waiting times of regular jobs."""
    if regular.mean_wait_s is None or regular.median_wait_s is None or regular.late_wait_s is None:
        return "no regular job started, by Slurm's accounting"
    mean, median, late = (in_words(each) for each in (regular.mean_wait_s, regular.median_wait_s, regular.late_wait_s))
    return (
        f"{regular.jobs:,} regular jobs started; they waited {mean} on average, half of them {median} at most,"
        f" one in twenty more than {late}"
    )
