"""The verbs for jobs and campaigns: list, status, show, hold, release, cancel, migrate, priority."""

import re
from collections.abc import Callable, Sequence
from typing import Annotated

import typer

from gleaner.agent.common import quantities
from gleaner.client import ClientError, ErrorKind
from gleaner.control.campaigns import campaign_file
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, exit_code_of, parsed
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.models.jobs import JobRow
from gleaner.control.states import Outcome, State

Job = Annotated[int, typer.Argument(metavar="JOB", min=1, help="The job's number.")]
Jobs = Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1, help="Numbers of jobs.")]
Campaign = Annotated[int | None, typer.Option(min=1, metavar="C", help="All jobs of this campaign.")]


def list_jobs(
    *,
    state: Annotated[State | None, typer.Option(case_sensitive=False, help="Only jobs in this state.")] = None,
    campaign: Campaign = None,
    group: Annotated[str | None, typer.Option(help="Only jobs of this group.")] = None,
    held: Annotated[bool | None, typer.Option("--held/--not-held", help="Only held jobs, or only the others.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only jobs that have failed.")] = False,
    mine: Annotated[bool, typer.Option("--mine", help="Only jobs that you have submitted.")] = False,
    name: Annotated[str, typer.Option(metavar="TEXT", help="Only with this in the name or user, or as number.")] = "",
    newest: Annotated[bool, typer.Option("--newest", help="List the newest jobs first.")] = False,
    after: Annotated[int, typer.Option(metavar="JOB", help="Only jobs with a higher number.")] = 0,
    limit: Annotated[int, typer.Option(help="How many jobs to list, up to 1000.")] = 100,
    as_json: AsJson = False,
) -> Answer:
    """List jobs, the oldest first."""
    with connect() as control:
        found = control.jobs(
            state=state, campaign=campaign, group=group, held=held, outcome=Outcome.FAILED if failed else None,
            mine=mine, text=name, order="-id" if newest else "id", after=after, limit=limit,
        )  # fmt: skip
        if campaign is not None and not found.jobs:
            control.campaign(campaign)  # fails if the campaign does not exist
        return Answer(found, as_json)


def status(as_json: AsJson = False) -> Answer:
    """Count by state all jobs that you can see."""
    with connect() as control:
        return Answer(control.status(), as_json)


def show(job: Job, as_json: AsJson = False) -> Answer:
    """Show a job: why it waits, where it ran, what happened to it."""
    with connect() as control:
        return Answer(control.job(job), as_json)


def hold(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """Keep jobs from starting. A running job is saved at once, and then waits."""
    return _act("hold", jobs, campaign, as_json=as_json)


def release(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """Let held jobs continue."""
    return _act("release", jobs, campaign, as_json=as_json)


def cancel(jobs: Jobs = None, campaign: Campaign = None, as_json: AsJson = False) -> Answer:
    """End jobs permanently, and delete their checkpoints. A job that has already ended does not stop the others."""
    return _act("cancel", jobs, campaign, as_json=as_json)


def rerun(
    jobs: Jobs = None,
    *,
    campaign: Annotated[int | None, typer.Option(min=1, metavar="C", help="Jobs of this campaign.")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="All failed jobs of the campaign.")] = False,
    only: Annotated[str | None, typer.Option(metavar="17,42", help="Only jobs with these indices.")] = None,
    memory_mib: Annotated[str | None, typer.Option(metavar="MIB", help="Other memory in MiB, or as in 4G.")] = None,
    image: Annotated[str | None, typer.Option(help="Another image.")] = None,
    as_json: AsJson = False,
) -> Answer:
    """Run jobs again that have failed or were cancelled.

    They start from the beginning, and keep their numbers and indices. Their old results are deleted.
    """
    if bool(jobs) == (campaign is not None) or (campaign is not None) != (failed + (only is not None)):
        raise BadInput("say what to run again: jobs, or --campaign C with --failed or --only 17,42")
    mib = None if memory_mib is None else parsed("--memory-mib", quantities.memory_mib, memory_mib)
    indices = None if only is None else parsed("--only", campaign_file.indices, only)
    with connect() as control:
        if campaign is None:
            return one_by_one(jobs or (), lambda job: control.rerun(job, memory_mib=mib, image=image), as_json=as_json)
        made = control.rerun_campaign(campaign, only=indices, memory_mib=mib, image=image)
    return Answer(made, as_json, (f"they run again; `glean wait --campaign {campaign}` waits until they have ended",))


def remove(
    jobs: Jobs = None,
    campaign: Campaign = None,
    yes: Annotated[bool, typer.Option("--yes", help="Confirm that a whole campaign is removed.")] = False,
    as_json: AsJson = False,
) -> Answer:
    """Remove ended jobs from all lists, with their results and logs. Their node time still counts in reports."""
    if campaign is not None and not yes:
        raise BadInput(f"--yes removes all jobs of campaign {campaign}: see `glean campaign show {campaign}` first")
    return _act("remove", jobs, campaign, as_json=as_json)


def migrate(
    job: Job,
    to: Annotated[
        str | None, typer.Option(metavar="NODE", help="The node on which the job continues.  [default: any other]")
    ] = None,
    as_json: AsJson = False,
) -> Answer:
    """Save a running job now, and let it continue elsewhere."""
    with connect() as control:
        return Answer((control.migrate(job, to=to),), as_json)


def deliver(jobs: Annotated[list[int], typer.Argument(metavar="JOB", min=1)], as_json: AsJson = False) -> Answer:
    """Copy results to the targets of their jobs again."""
    with connect() as control:
        return one_by_one(jobs, control.deliver, as_json=as_json)


def priority(
    numbers: Annotated[list[int], typer.Argument(metavar="[JOB] N", help="A job with a higher N goes first.")],
    campaign: Campaign = None,
    as_json: AsJson = False,
) -> Answer:
    """Change a job's or a campaign's priority."""
    *jobs, number = numbers
    if len(jobs) != (campaign is None) or min(jobs, default=1) < 1:
        raise BadInput("give JOB N, or --campaign C N: a higher N goes first")
    if not -1_000_000 <= number <= 1_000_000:
        raise BadInput(f"priority must be between -1000000 and 1000000, found {number}")
    with connect() as control:
        if campaign is not None:
            return Answer(control.set_campaign_priority(campaign, priority=number), as_json)
        return Answer((control.set_priority(jobs[0], priority=number),), as_json)


def _act(verb: str, jobs: Sequence[int] | None, campaign: int | None, *, as_json: bool) -> Answer:
    if bool(jobs) == (campaign is not None):
        raise BadInput(f"say what to {verb}: jobs, or --campaign C")
    with connect() as control:
        if campaign is not None:
            return Answer(getattr(control, f"{verb}_campaign")(campaign), as_json)
        return one_by_one(jobs or (), getattr(control, verb), as_json=as_json)


def one_by_one(jobs: Sequence[int], act: Callable[[int], JobRow], *, as_json: bool) -> Answer:
    """Call `act` for each job. A refusal for one job does not stop the others, but a lost connection does."""
    done: list[JobRow] = []
    remarks: list[str] = []
    code = 0
    for job in dict.fromkeys(jobs):
        try:
            done.append(act(job))
        except ClientError as failure:
            remarks.append(about_job(job, failure))
            code = max(code, exit_code_of(failure))
            if stops_all(failure):
                break
    return Answer(tuple(done), as_json, tuple(remarks), code)


def stops_all(failure: ClientError) -> bool:
    """Return True if the failure would be the same for all other jobs, because control refuses or does not answer."""
    return failure.is_away or failure.kind is ErrorKind.NO_PROOF


def about_job(job: int, failure: Exception) -> str:
    """Return the failure in one line that names its job exactly once.

    >>> about_job(37, Exception("job 37: cannot cancel")), about_job(3, Exception("the storage is gone"))
    ('job 37: cannot cancel', 'job 3: the storage is gone')
    """
    said = str(failure)
    return said if re.search(rf"\bjob {job}\b", said) else f"job {job}: {said}"
