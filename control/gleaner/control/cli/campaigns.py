"""`glean campaigns`, which lists campaigns, and `glean campaign show`, which shows the progress and failures of one."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gleaner.agent.common.quantities import in_words, size
from gleaner.control.campaigns.campaign_file import as_submitted
from gleaner.control.cli.connect import connect
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.cli.render import KEPT_UNTIL, day, moment, standing
from gleaner.control.models.campaigns import CampaignDetail, CampaignList, CampaignRow
from gleaner.control.simulation.metrics.tables import Table, number

app = typer.Typer(no_args_is_help=True, help="Show a campaign.")


@app.callback()
def root() -> None:
    """Show a campaign."""


def campaigns(
    *,
    name: Annotated[str, typer.Option(metavar="TEXT", help="Only with this in the name or user, or as number.")] = "",
    mine: Annotated[bool, typer.Option("--mine", help="Only campaigns that you have submitted.")] = False,
    group: Annotated[str | None, typer.Option(help="Only campaigns of this group.")] = None,
    limit: Annotated[int, typer.Option(help="How many to list, up to 1000.")] = 50,
    as_json: AsJson = False,
) -> Answer:
    """List campaigns, the newest first, with their expected ends."""
    with connect() as control:
        found = control.campaigns(text=name, mine=mine, group=group, limit=limit)
    return Answer(found if as_json else tuple(listed(found)), as_json)


@app.command()
def show(campaign: Annotated[int, typer.Argument(metavar="C", min=1)], as_json: AsJson = False) -> Answer:
    """Show what was submitted, how far it is, and what failed."""
    with connect() as control:
        detail = control.campaign_detail(campaign)
    return Answer(detail if as_json else tuple(_detail(detail)), as_json)


def listed(found: CampaignList) -> Iterator[Table | str]:
    """Yield the table of campaigns, and their total number if the table does not contain all of them."""
    yield Table.of(
        found.campaigns,
        {
            "CAMPAIGN": "id", "NAME": "name", "USER": "submitter", "SUBMITTED": lambda row: moment(row.submitted_s),
            "JOBS": standing, "EXPECTED END": _end, KEPT_UNTIL: lambda row: day(row.kept_until_s),
        },
        right=("CAMPAIGN",),
    )  # fmt: skip
    if len(found.campaigns) < found.total:
        yield f"{len(found.campaigns)} of {found.total} campaigns; --name and --limit show others"


def _end(row: CampaignRow) -> str:
    """Return the end of a campaign, or the interval in which it is expected, or "" if that is not known."""
    if row.ended_s is not None:
        return f"ended {moment(row.ended_s)}"
    expected = row.expected
    return "" if expected.unknown_because else f"{moment(expected.earliest_s)} to {moment(expected.latest_s)}"


def _detail(detail: CampaignDetail) -> Iterator[Table | str]:
    expected, use, left = detail.expected, detail.use, detail.failures_left
    facts = {
        "campaign": f"{detail.id} {detail.name}, of group {detail.group}",
        "submitted": f"{moment(detail.submitted_s)} by {detail.submitter}",
        "at once": "" if detail.max_running is None else f"at most {detail.max_running} jobs",
        "tried first": f"{detail.try_left} more must succeed before the others start" if detail.try_left else "",
        "may fail": "" if left is None else f"{max(0, left)} more, then the rest is held",
        "jobs": f"{detail.jobs}: {standing(detail)}",
        "rate": f"{number(expected.jobs_per_h)} jobs ended an hour, in the last {in_words(expected.over_s)}",
        "expected end": _end(detail) or f"not known: {expected.unknown_because}",
    }
    if use is not None:
        facts["slices"] = f"{use.slices} ended, {detail.lost_slices} of them lost"
        hours = use.harvested_core_h, use.lost_core_h, use.starting_core_h + use.restoring_core_h + use.saving_core_h
        kept, lost, overhead = map(number, hours)
        facts["node time"] = f"{kept} core hours kept, {lost} lost, {overhead} to start, restore and save"
    facts |= {"results": size(detail.result_bytes), "kept until": moment(detail.kept_until_s)}
    yield Table(("", ""), tuple((what, text) for what, text in facts.items() if text), left=2, has_header=False)
    yield as_submitted(detail.spec)
    values = tuple((name, value, detail.last_job.get(name, "")) for name, value in detail.first_job.items())
    yield Table(("PARAMETER", "FIRST JOB", "LAST JOB"), values, left=3)
    if detail.causes:
        columns = {"FAILED": "jobs", "WHY": "cause", "FIRST": "first_job", "ITS LAST LINE": "last_line"}
        yield Table.of(detail.causes, columns, right=("FAILED", "FIRST"))
