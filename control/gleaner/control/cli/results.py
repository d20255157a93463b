"""`glean results`, which fetches the files that jobs wrote."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from gleaner.agent.common.quantities import size
from gleaner.client import ClientError
from gleaner.client.unpack import Fetched
from gleaner.control.cli import render
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, exit_code_of
from gleaner.control.cli.jobs import about_job, stops_all
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.jobs import JobRow
from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.states import State


def results(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1)] = None,
    campaign: Annotated[int | None, typer.Option(min=1, metavar="C", help="Every ended job of this campaign.")] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="Folder in which each job's folder is made.")] = Path(),
    force: Annotated[bool, typer.Option("--force", help="Overwrite existing files.")] = False,
    as_json: AsJson = False,
) -> Answer:
    """Fetch the output files of ended jobs.

    Each job gets its own folder: DIR/job-JOB, or in a campaign DIR/campaign-C/NAME-INDEX. Links are never followed
    or created.
    """
    if bool(jobs) == (campaign is not None):
        raise BadInput("say whose output: jobs, or --campaign C")
    fetched: list[Fetched] = []
    remarks: list[str] = []
    code = 0
    with connect() as control:
        wanted = {job: to / f"job-{job}" for job in jobs or ()}
        if campaign is not None:
            control.campaign(campaign)
            for row in control.all_jobs(campaign=campaign):
                if row.state is State.COMPLETE:
                    wanted[row.id] = to / f"campaign-{campaign}" / folder_name(row)
                else:
                    remarks.append(f"job {row.id} ({row.name} {row.index}) has no output yet: it is {row.state}")
        for job, folder in wanted.items():
            try:
                with render.busy(f"fetching job {job}"):
                    fetched.append(control.fetch(job, to=folder, overwrite=force))
            except ClientError as failure:
                remarks.append(about_job(job, failure))
                code = max(code, exit_code_of(failure))
                if stops_all(failure):
                    break
    remarks += [f"job {done.job}: left out {name}" for done in fetched for name in done.skipped]
    shown = tuple(fetched) if as_json or not fetched else (_table(fetched),)
    return Answer(shown, as_json, tuple(remarks), code or (1 if remarks else 0))


def folder_name(row: JobRow) -> str:
    """Return the folder of one job of a campaign. The job's name is safe, because the API accepts no slash in it."""
    return f"{row.name}-{row.id if row.index is None else row.index}"


def _table(rows: Sequence[Fetched]) -> Table:
    return Table.of(
        rows,
        {
            "JOB": "job", "FOLDER": "folder", "FILES": "files", "SIZE": lambda row: size(row.size_bytes),
            "LEFT OUT": lambda row: len(row.skipped) or "",
        },
        right=("JOB", "FILES"),
    )  # fmt: skip
