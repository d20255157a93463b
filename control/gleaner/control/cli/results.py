"""`glean results`, which fetches the files that jobs wrote."""

import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gleaner.agent.common.quantities import size
from gleaner.agent.system.keep_patterns import fault
from gleaner.client import Client, ClientError
from gleaner.client.unpack import Fetched
from gleaner.control.cli import render
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, exit_code_of
from gleaner.control.cli.jobs import about_job, stops_all
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.outputs import ResultRow
from gleaner.control.simulation.metrics.tables import Table

AT_ONCE = 4
"""The number of results that are fetched at the same time."""


def results(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1, help="Numbers of jobs.")] = None,
    campaign: Annotated[int | None, typer.Option(min=1, metavar="C", help="All ended jobs of this campaign.")] = None,
    to: Annotated[Path, typer.Option(metavar="DIR", help="The folder in which each job has its own folder.")] = Path(),
    only: Annotated[list[str] | None, typer.Option(metavar="PATTERN", help="Only files like this: '*.root'.")] = None,
    as_json: AsJson = False,
) -> Answer:
    """Fetch the output files of ended jobs.

    Each job has its own folder, which is DIR/job-JOB, or in a campaign DIR/campaign-C/NAME-INDEX. Results that are
    already there are not fetched again. Links are never followed or created.
    """
    if bool(jobs) == (campaign is not None):
        raise BadInput("name whose output to fetch: jobs, or --campaign C")
    for pattern in only or ():
        if why := fault(pattern):
            raise BadInput(f"--only {pattern}: {why}")
    fetched: list[Fetched] = []
    faults: list[str] = []
    code = 0
    with connect() as control:
        wanted: dict[int | ResultRow, Path] = {job: to / f"job-{job}" for job in jobs or ()}
        for row in control.results(campaign=campaign) if campaign is not None else ():
            if row.digest is not None:
                wanted[row] = to / f"campaign-{campaign}" / folder_name(row)
            else:
                faults.append(f"job {row.job} ({folder_name(row)}) has no output: it is {row.outcome or row.state}")
        for job, outcome in _fetch(control, wanted, only or ()):
            if isinstance(outcome, Fetched):
                fetched.append(outcome)
            else:
                faults.append(about_job(job, outcome))
                code = max(code, exit_code_of(outcome))
    faults += [f"job {done.job}: left out {name}" for done in fetched for name in done.skipped]
    shown = tuple(fetched) if as_json else tuple(_shown(fetched))
    return Answer(shown, as_json, tuple(faults), code or (1 if faults else 0))


def folder_name(row: ResultRow) -> str:
    """Return the folder of one job of a campaign. The job's name is safe, because the API accepts no slash in it."""
    return f"{row.name}-{row.job if row.index is None else row.index}"


def _fetch(
    control: Client, wanted: Mapping[int | ResultRow, Path], only: Sequence[str]
) -> Iterator[tuple[int, Fetched | ClientError]]:
    """Fetch several results at the same time. Yield each, in the order of the jobs, up to a failure that stops all."""
    stop = threading.Event()
    done, arrived_bytes = 0, 0

    def count(jobs: int, size_bytes: int) -> None:
        nonlocal done, arrived_bytes
        # Two threads that count at the same time can lose a count, which affects only the bar.
        done, arrived_bytes = done + jobs, arrived_bytes + size_bytes
        show_steps(done, len(wanted), f"fetching jobs ({arrived_bytes // 2**20} MiB)")
        if stop.is_set():
            raise ClientError("the fetch was stopped")

    def one(job: int | ResultRow) -> Fetched | ClientError:
        try:
            return control.fetch(job, to=wanted[job], only=only, on_bytes=partial(count, 0))
        except ClientError as failure:
            return failure
        finally:
            count(1, 0)

    with render.steps("fetching jobs") as show_steps, ThreadPoolExecutor(AT_ONCE) as threads:
        try:
            for job, outcome in zip(wanted, threads.map(one, wanted), strict=True):
                yield job if isinstance(job, int) else job.job, outcome
                if isinstance(outcome, ClientError) and stops_all(outcome):
                    return
        finally:
            stop.set()
            threads.shutdown(wait=False, cancel_futures=True)


def _shown(fetched: Sequence[Fetched]) -> Iterator[Table | str]:
    """Yield the new results, the number of results without a file, and the number of results that were already
    there."""
    new = [each for each in fetched if each.is_new]
    if new:
        yield Table.of(
            new,
            {
                "JOB": "job", "FOLDER": "folder", "FILES": "files", "SIZE": lambda row: size(row.size_bytes),
                "LEFT OUT": lambda row: len(row.skipped) or "",
            },
            right=("JOB", "FILES"),
        )  # fmt: skip
    if empty := [each.job for each in new if not each.files]:
        why = "none was written, or none matches --only or `outputs: keep`"
        yield f"without a file: {len(empty)} ({why}; see glean show {empty[0]})"
    if there := len(fetched) - len(new):
        yield f"{there} result{'s' if there > 1 else ''} already there, not fetched again"
