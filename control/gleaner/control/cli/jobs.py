"""The verbs on jobs and campaigns: list, status, show, hold, release, cancel, migrate, priority."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import typer
from pydantic import ValidationError

from gleaner.control.cli.client import connect
from gleaner.control.cli.failures import BadInput, Conflict, Failure, NoToken, Unreachable
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.input_errors import complaint
from gleaner.control.models.jobs import Change, JobFilter, JobRow, MigrateRequest
from gleaner.control.states import State

Job = Annotated[int, typer.Argument(metavar="JOB", min=1)]
Jobs = Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1)]
Campaign = Annotated[int | None, typer.Option(min=1, metavar="C", help="All jobs of this campaign.")]


def list_jobs(
    *,
    state: Annotated[State | None, typer.Option(case_sensitive=False, help="Only jobs in this state.")] = None,
    campaign: Campaign = None,
    group: Annotated[str | None, typer.Option(help="Only jobs of this group.")] = None,
    held: Annotated[bool | None, typer.Option("--held/--not-held", help="Only jobs that are held, or are not.")] = None,
    after: Annotated[int, typer.Option(metavar="JOB", help="Only jobs with a higher number.")] = 0,
    limit: Annotated[int, typer.Option(help="At most this many, up to 1000.")] = 100,
    as_json: AsJson = False,
) -> Answer:
    """List jobs, the oldest first."""
    try:
        wanted = JobFilter(state=state, campaign=campaign, group=group, held=held, after=after, limit=limit)
    except ValidationError as error:
        first = error.errors()[0]
        raise BadInput(complaint(f"--{first['loc'][0]}", first)) from None
    with connect() as control:
        found = control.jobs(wanted)
        if campaign is not None and not found.jobs:
            control.campaign(campaign)  # says it if there is none
        return Answer(found, as_json)


def status(campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """Count jobs by state: all that you may see, or a campaign's."""
    with connect() as control:
        return Answer(control.status() if campaign is None else control.campaign(campaign), as_json)


def show(job: Job, as_json: AsJson = False) -> Answer:
    """Show a job: why it waits, where it ran, and what happened to it."""
    with connect() as control:
        return Answer(control.job(job), as_json)


def hold(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """Keep jobs from starting. A running job is saved at once, and then waits."""
    return _act("hold", jobs, campaign, as_json=as_json)


def release(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """Let held jobs go on."""
    return _act("release", jobs, campaign, as_json=as_json)


def cancel(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """End jobs for good; their checkpoints are deleted. A job that has already ended does not stop the others."""
    return _act("cancel", jobs, campaign, as_json=as_json)


def migrate(
    job: Job,
    to: Annotated[
        str | None, typer.Option(metavar="NODE", help="Node on which the job goes on.  [default: any other]")
    ] = None,
    as_json: AsJson = False,
) -> Answer:
    """Save a running job now, and let it go on elsewhere."""
    try:
        wanted = MigrateRequest(to=to)
    except ValidationError as error:
        raise BadInput(complaint("--to", error.errors()[0])) from None
    with connect() as control:
        return Answer((control.migrate(job, wanted),), as_json)


def deliver(jobs: Annotated[list[int], typer.Argument(metavar="JOB", min=1)], as_json: AsJson = False) -> Answer:
    """Copy results to the targets of their jobs once more."""
    with connect() as control:
        return one_by_one(jobs, lambda job: control.act(job, "deliver"), as_json=as_json)


def priority(
    numbers: Annotated[list[int], typer.Argument(metavar="[JOB] N", help="Higher goes first.")],
    campaign: Campaign = None,
    as_json: AsJson = False,
) -> Answer:
    """Change a job's or a campaign's priority."""
    *jobs, number = numbers
    if len(jobs) != (campaign is None) or min(jobs, default=1) < 1:
        raise BadInput("say JOB N, or --campaign C N: the higher N goes first")
    if not -1_000_000 <= number <= 1_000_000:
        raise BadInput(f"priority must be between -1000000 and 1000000, found {number}")
    change = Change(priority=number)
    with connect() as control:
        if campaign is not None:
            return Answer(control.change_campaign(campaign, change), as_json)
        return Answer((control.change(jobs[0], change),), as_json)


def _act(verb: str, jobs: Sequence[int] | None, campaign: int | None, *, as_json: bool) -> Answer:
    if bool(jobs) == (campaign is not None):
        raise BadInput(f"say what to {verb}: jobs, or --campaign C")
    with connect() as control:
        if campaign is not None:
            return Answer(control.act_on_campaign(campaign, verb), as_json)

        def look(job: int) -> JobRow:
            return control.job(job).job

        if verb == "cancel":
            return one_by_one(jobs or (), lambda job: control.act(job, verb), as_json=as_json, look=look)
        return one_by_one(jobs or (), lambda job: control.act(job, verb), as_json=as_json)


def one_by_one(
    jobs: Sequence[int],
    act: Callable[[int], JobRow],
    *,
    as_json: bool,
    look: Callable[[int], JobRow] | None = None,
) -> Answer:
    """Call `act` for each job. A refusal for one job does not stop the others, and a lost connection does.

    `look` is given where a job that has ended needs no `act`: such a job is shown as it is. It is a failure only if
    there is no other job.
    """
    done: list[JobRow] = []
    remarks: list[str] = []
    code = ended = 0
    for job in dict.fromkeys(jobs):
        try:
            done.append(act(job))
        except (Unreachable, NoToken) as failure:
            remarks.append(about_job(job, failure))
            return Answer(tuple(done), as_json, tuple(remarks), failure.exit_code)
        except Failure as failure:
            row = _if_ended(job, failure, look)
            if row is None:
                remarks.append(about_job(job, failure))
                code = max(code, failure.exit_code)
            else:
                done.append(row)
                ended += 1
                remarks.append(f"job {job} had ended already: {row.outcome}")
    nothing_done = bool(ended) and ended == len(done)
    return Answer(tuple(done), as_json, tuple(remarks), max(code, 1) if nothing_done else code)


def about_job(job: int, failure: Failure) -> str:
    """Return the failure in one line that names its job, once.

    >>> about_job(37, Failure("job 37: cannot cancel")), about_job(3, Failure("the storage is gone"))
    ('job 37: cannot cancel', 'job 3: the storage is gone')
    """
    said = str(failure)
    return said if re.search(rf"\bjob {job}\b", said) else f"job {job}: {said}"


def _if_ended(job: int, failure: Failure, look: Callable[[int], JobRow] | None) -> JobRow | None:
    """Return the job as it is, if the refusal came because the job has ended; None otherwise."""
    if look is None or not isinstance(failure, Conflict):
        return None
    try:
        row = look(job)
    except Failure:
        return None
    return row if row.state is State.COMPLETE else None
