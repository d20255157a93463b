"""`glean wait` and `glean logs`, which ask control repeatedly until something has ended."""

from collections.abc import Iterator
from typing import Annotated

import typer

from gleaner.control.cli import render
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.campaigns import CampaignStatus


def wait(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1, help="Numbers of jobs.")] = None,
    campaign: Annotated[int | None, typer.Option(min=1, metavar="C", help="All jobs of this campaign.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after this time.")] = None,
    as_json: AsJson = False,
) -> Answer:
    """Wait until jobs have ended. The exit code is 0 only if every one of them succeeded."""
    if bool(jobs) == (campaign is not None):
        raise BadInput("say what to wait for: jobs, or --campaign C")
    with connect() as control:
        standings = control.standings(jobs=jobs or (), campaign=campaign, timeout_s=timeout)
        last = render.progress("waiting", standings, _counts)
    remarks: list[str] = []
    if last.unfinished:
        remarks.append(f"{last.unfinished} not ended after {timeout:g} s")
    if last.failed or last.cancelled:
        remarks.append(f"{last.failed} failed, {last.cancelled} cancelled")
    return Answer(last, as_json, tuple(remarks), exit_code=1 if remarks else 0)


def _counts(status: CampaignStatus) -> tuple[int, int, str]:
    return status.jobs - status.unfinished, status.jobs, render.standing(status)


def logs(
    job: Annotated[int, typer.Argument(metavar="JOB", min=1, help="The job's number.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the output until the job has ended.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Include the output of lost attempts.")] = False,
) -> Answer:
    """Print what a job wrote, over all its slices."""
    return Answer(_lines(job, follow=follow, everything=everything))


def _lines(job: int, *, follow: bool, everything: bool) -> Iterator[str]:
    with connect() as control:
        yield from control.log_lines(job, follow=follow, everything=everything)
