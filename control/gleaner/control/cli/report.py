"""The verb on the report of a month."""

from typing import Annotated

import typer

from gleaner.agent.common.quantities import in_words
from gleaner.control.cli.client import connect
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.report import MonthReport, RegularWaits
from gleaner.control.simulation.metrics.tables import Table, number


def report(
    month: Annotated[
        str, typer.Option(metavar="YYYY-MM", help="The month, as in 2026-10; this month by default.")
    ] = "",
    accounting: Annotated[
        bool, typer.Option("--accounting", help="For admins: ask Slurm for the waits of regular jobs, too.")
    ] = False,
    as_json: AsJson = False,
) -> Answer:
    """Show a month's node time, and who got the harvest.

    Users see the jobs of their group, admins those of all groups.
    """
    with connect() as control:
        found = control.report(month, accounting=accounting)
    return Answer(found if as_json else _shown(found), as_json)


def _shown(found: MonthReport) -> tuple[Table | str, ...]:
    """Return tables of the nodes' time and of the jobs' time, in hours."""
    nodes = (
        ("regular jobs", found.regular_node_h),
        ("agents", found.agents_node_h),
        ("idle", found.idle_node_h),
        ("idle, had there been no Gleaner", found.idle_without_node_h),
        ("not usable", found.unusable_node_h),
    )
    rows = [(what, number(value)) for what, value in nodes]
    whose = "all groups" if found.group is None else f"group {found.group}"
    how = "measured by Slurm" if found.energy_is_measured else "an estimate"
    power = [] if found.energy_kwh is None else [f"energy, {how}: {found.energy_kwh:,.1f} kWh"]
    who = Table.of(
        (*found.rows,),
        {
            "GROUP": "group", "USER": "user", "SLICES": "slices", "HARVESTED": lambda row: number(row.harvested_core_h),
            "SAVING": lambda row: number(row.saving_core_h), "RESTORING": lambda row: number(row.restoring_core_h),
            "LOST": lambda row: number(row.lost_core_h),
        },
        right=("SLICES", "HARVESTED", "SAVING", "RESTORING", "LOST"),
        title=f"core hours of the jobs of {whose}, of slices that ended in {found.month}",
    )  # fmt: skip
    sums = (found.harvested_core_h, found.saving_core_h, found.restoring_core_h, found.lost_core_h)
    total = ("all", "", f"{sum(row.slices for row in found.rows)}", *(number(value) for value in sums))
    title = f"node hours in {found.month}; control saw the nodes for {found.seen_h:,.1f} h of it"
    return (
        Table(("NODES", "HOURS"), tuple(rows), left=1, title=title),
        Table(who.columns, (*who.rows, total), left=2, title=who.title),
        *power,
        *([] if found.regular is None else [_waits(found.regular)]),
    )


def _waits(regular: RegularWaits) -> str:
    """Return one line on the waits of regular jobs."""
    if regular.mean_wait_s is None or regular.median_wait_s is None or regular.late_wait_s is None:
        return "no regular job started, by Slurm's accounting"
    mean, median, late = (in_words(each) for each in (regular.mean_wait_s, regular.median_wait_s, regular.late_wait_s))
    return (
        f"{regular.jobs:,} regular jobs started; they waited {mean} on average, half of them {median} at most,"
        f" one in twenty more than {late}"
    )
