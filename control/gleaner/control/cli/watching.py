"""`glean wait` and `glean logs`, which look at control again and again until something has ended."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, TypeVar

import typer

from gleaner.control.cli import render
from gleaner.control.cli.client import Control, connect
from gleaner.control.cli.failures import BadInput, Unreachable
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.campaigns import CampaignStatus
from gleaner.control.models.jobs import JobRow
from gleaner.control.states import Outcome, State

Seen = TypeVar("Seen")

POLL_S = 2.0
FOLLOW_S = 1.0
PATIENCE_S = 600.0
"""The longest absence of control (a restart, say) before a verb that watches fails."""
PAGE = 1000


def patient(look: Callable[[], Seen]) -> Callable[[], Seen]:
    """Return a look that, after its first success, waits for a control program that is away for a while."""
    last_s: float | None = None

    def looking() -> Seen:
        nonlocal last_s
        told = False
        while True:
            try:
                seen = look()
            except Unreachable:
                if last_s is None or time.monotonic() - last_s > PATIENCE_S:
                    raise
                if not told:
                    render.remark("control does not answer; still trying")
                told = True
                time.sleep(POLL_S)
            else:
                last_s = time.monotonic()
                return seen

    return looking


def usage_cache(rows: Sequence[JobRow], campaign: int | None = None) -> CampaignStatus:
    """Return the number of these jobs in each state."""

    def count(state: State, outcome: Outcome | None = None) -> int:
        return sum(row.state is state and row.outcome is outcome for row in rows)

    return CampaignStatus(
        campaign=campaign,
        new=count(State.NEW),
        running=count(State.RUNNING),
        saved=count(State.SAVED),
        succeeded=count(State.COMPLETE, Outcome.SUCCEEDED),
        failed=count(State.COMPLETE, Outcome.FAILED),
        cancelled=count(State.COMPLETE, Outcome.CANCELLED),
        held=sum(row.held for row in rows),
    )


def unfinished(status: CampaignStatus) -> int:
    """Return the number of jobs that have not ended."""
    return status.new + status.running + status.saved


def _look_at_jobs(control: Control, jobs: Sequence[int]) -> Callable[[], CampaignStatus]:
    rows: dict[int, JobRow] = {}

    def look() -> CampaignStatus:
        for job in dict.fromkeys(jobs):
            if job not in rows or rows[job].state is not State.COMPLETE:
                rows[job] = control.job(job).job
        return usage_cache(tuple(rows.values()))

    return look


def _standings(look: Callable[[], CampaignStatus], timeout_s: float | None) -> Iterator[CampaignStatus]:
    """Yield the standing again and again, until every job has ended or the time is over."""
    began_s = time.monotonic()
    told = False
    while True:
        seen = look()
        yield seen
        left = unfinished(seen)
        over = timeout_s is not None and time.monotonic() - began_s >= timeout_s
        if left == 0 or over:
            return
        if not told and left == seen.held:
            render.remark("every job that is left is held; they go on only after `glean release`")
            told = True
        rest_s = POLL_S if timeout_s is None else min(POLL_S, began_s + timeout_s - time.monotonic())
        time.sleep(max(0.0, rest_s))


def wait(
    jobs: Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1, help="Jobs to wait for.")] = None,
    campaign: Annotated[int | None, typer.Option(min=1, help="Wait for every job of this campaign.")] = None,
    timeout: Annotated[float | None, typer.Option(metavar="SECONDS", min=0, help="Give up after this long.")] = None,
    as_json: AsJson = False,
) -> Answer:
    """Wait until jobs have ended. The exit code is 0 only if every one of them succeeded."""
    if bool(jobs) == (campaign is not None):
        raise BadInput("say what to wait for: jobs, or --campaign C")
    with connect() as control:
        look = _look_at_jobs(control, jobs or ()) if campaign is None else lambda: control.campaign(campaign)
        last = render.progress(_standings(patient(look), timeout))
    left = unfinished(last)
    remarks: list[str] = []
    if left:
        remarks.append(f"{left} not ended after {timeout:g} s")
    if last.failed or last.cancelled:
        remarks.append(f"{last.failed} failed, {last.cancelled} cancelled")
    return Answer(last, as_json, tuple(remarks), exit_code=1 if remarks else 0)


def logs(
    job: Annotated[int, typer.Argument(metavar="JOB", min=1)],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job has ended.")] = False,
    everything: Annotated[bool, typer.Option("--all", help="Include what lost attempts wrote.")] = False,
) -> Answer:
    """Print what a job wrote, over all its slices."""
    return Answer(_lines(job, follow=follow, everything=everything))


def _lines(job: int, *, follow: bool, everything: bool) -> Iterator[str]:
    first = 0
    with connect() as control:
        look = patient(lambda: control.log(job, first=first, limit=PAGE, everything=everything))
        while True:
            page = look()
            if page.first > first:
                render.remark(f"{page.first - first} earlier lines are no longer kept")
            new = page.lines[max(0, first - page.first) :]  # lines that came before are neither printed again nor news
            yield from new
            first = max(first, page.first + len(page.lines))
            if new:
                continue
            if page.ended or not follow:
                return
            time.sleep(FOLLOW_S)
