"""The verbs on jobs and campaigns: submit, list, status, show, hold, release, cancel, migrate, priority."""

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError
from typer.core import TyperCommand

from gleaner.agent.common.quantities import duration_s, memory_mib, memory_range_mib
from gleaner.control.campaigns import campaign_file as campaigns
from gleaner.control.campaigns import input_list
from gleaner.control.campaigns.campaign_file import Given
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.cli import render
from gleaner.control.cli.client import connect
from gleaner.control.cli.failures import BadInput, Conflict, Failure, NoToken, Unreachable
from gleaner.control.cli.local_inputs import PackedInput, pack, send
from gleaner.control.cli.option_groups import with_option_groups
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.input_errors import complaint, one_line
from gleaner.control.models.inputs import InputSpec, UrlInputSpec
from gleaner.control.models.jobs import Change, JobFilter, JobRow, MigrateRequest
from gleaner.control.states import State

Job = Annotated[int, typer.Argument(metavar="JOB", min=1)]
Jobs = Annotated[list[int] | None, typer.Argument(metavar="JOB", min=1)]
AFTER_DASHES = "gleaner.control.cli.after_dashes"
Campaign = Annotated[int | None, typer.Option(min=1, metavar="C", help="All jobs of this campaign.")]


class SubmitCommand(TyperCommand):
    """A command that remembers whether `--` set the program to run apart. Nothing else would tell that."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Record whether there is a `--`, and parse the arguments. (The context's own type is private to Typer.)"""
        ctx.meta[AFTER_DASHES] = "--" in args
        return super().parse_args(ctx, args)


@dataclass(frozen=True, slots=True)
class SubmitOptions:
    """The options that say what a job is. Those of a campaign file have the same names, but for `array` and `env`."""

    image: Annotated[str | None, typer.Option(help="Container image.")] = None
    name: Annotated[str | None, typer.Option(help="Name of the job.  [default: the image's]")] = None
    cpus: Annotated[int | None, typer.Option(help="Cores.  [default: 1]")] = None
    memory_mib: Annotated[
        str | None, typer.Option(metavar="MIB", help="Memory in MiB, or as in 4G, or a range: 512..4G.  [default: 512]")
    ] = None
    nodes: Annotated[int | None, typer.Option(help="Only 1: wider jobs are simulated.", hidden=True)] = None
    priority: Annotated[int | None, typer.Option(help="Higher goes first.  [default: 0]")] = None
    retries: Annotated[
        int | None, typer.Option(help="How often the job may start over after a failure of its own.")
    ] = None
    retry_on: Annotated[
        str | None, typer.Option(metavar="75,137", help="Only these exit codes are tried again.  [default: all]")
    ] = None
    never_retry_on: Annotated[
        str | None, typer.Option(metavar="2,3", help="These exit codes end the job, whatever retries are left.")
    ] = None
    compute_limit: Annotated[
        str | None,
        typer.Option(metavar="2h", help="How long it may compute, all slices together.  [default: no limit]"),
    ] = None
    needs_at_least: Annotated[
        str | None, typer.Option(metavar="20m", help="Only agents that have so much time left get it.")
    ] = None
    disk: Annotated[str | None, typer.Option(metavar="MIB", help="How much it may write, in MiB, or as in 20G.")] = None
    silent_limit: Annotated[
        str | None, typer.Option(metavar="30m", help="How long it may compute and print or write nothing.")
    ] = None
    env: Annotated[list[str] | None, typer.Option(metavar="K=V", help="An environment variable; repeatable.")] = None
    array: Annotated[str | None, typer.Option(metavar="0-11", help="Submit a campaign: one job for each index.")] = None
    saves_itself: Annotated[
        str | None, typer.Option(metavar="SIGTERM[:85]", help="The program saves itself on this signal.")
    ] = None
    input: Annotated[
        list[str] | None, typer.Option(metavar="PATH|URL", help="A file or folder to read at /inputs; repeatable.")
    ] = None
    mount: Annotated[
        list[str] | None, typer.Option(metavar="FOLDER", help="A folder of the nodes to read; repeatable.")
    ] = None
    group: Annotated[str | None, typer.Option(help="For admins: the group that owns the jobs.")] = None
    hold: Annotated[bool, typer.Option("--hold", help="Do not start before `glean release`.")] = False


@with_option_groups
def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="FILE | -- COMMAND", help="A campaign file, or what to run.")
    ] = None,
    *,
    options: SubmitOptions,
    as_json: AsJson = False,
) -> Answer:
    """Submit a job, an array of jobs, or a campaign file.

    Options override the file. `{index}` in the command and in environment values becomes the job's index.
    """
    given: dict[str, Given] = {}
    if options.image is None:
        given |= campaigns.read(_only_file(arguments or [], is_command=bool(context.meta.get(AFTER_DASHES))))
    elif arguments:
        given["command"] = Given(tuple(arguments), "the command")
    given |= options_given(options)
    folder = Path((arguments or ["."])[0]).parent if options.image is None else Path()
    packed = pack_inputs(given, folder)
    wanted = campaigns.submission(given)
    with connect() as control:
        send(control, packed, wanted.group)
        return Answer(control.submit(wanted), as_json)


def pack_inputs(given: dict[str, Given], folder: Path) -> Sequence[PackedInput]:
    """Read the local inputs, and put their digests in their place. Raises `InputError`."""
    if "inputs" not in given:
        return ()
    packed: list[PackedInput] = []
    specs: list[InputSpec | UrlInputSpec] = []
    with render.busy("reading the inputs"):
        for one in cast("tuple[LocalInput | UrlInputSpec, ...]", given["inputs"].value):
            if isinstance(one, LocalInput):
                packed.append(pack(one, folder if one.where != "--input" else Path()))
            specs.append(packed[-1].spec if isinstance(one, LocalInput) else one)
    given["inputs"] = Given(tuple(specs), given["inputs"].where)
    return packed


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


def priority(
    job: Job, number: Annotated[int, typer.Argument(metavar="N", help="Higher goes first.")], as_json: AsJson = False
) -> Answer:
    """Change a job's priority."""
    if not -1_000_000 <= number <= 1_000_000:
        raise BadInput(f"priority must be between -1000000 and 1000000, found {number}")
    with connect() as control:
        return Answer((control.change(job, Change(priority=number)),), as_json)


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


def _only_file(arguments: Sequence[str], *, is_command: bool) -> Path:
    if is_command and arguments and not (len(arguments) == 1 and _is_file(arguments[0])):
        command = one_line(shlex.join(arguments))
        raise BadInput(
            f"say what to submit: --image IMAGE is missing before -- {command}; it names the container image"
        )
    if len(arguments) != 1:
        raise BadInput("say what to submit: a campaign file, or --image IMAGE -- COMMAND")
    return Path(arguments[0])


def _is_file(name: str) -> bool:
    """Return True if there is such a file. A command in one argument may be longer than any file's name."""
    try:
        return Path(name).is_file()
    except OSError:
        return False


def options_given(options: SubmitOptions) -> dict[str, Given]:
    """Return the options that were given, by their keys in a campaign file. Raises `BadInput`."""
    found: dict[str, Given] = {}
    for name, parse in PARSERS.items():
        value, option = getattr(options, name), f"--{name.replace('_', '-')}"
        if value is None or value is False or value == []:
            continue
        try:
            found[KEYS.get(name, name)] = Given(value if parse is None else parse(value), option)
        except ValueError as error:
            raise BadInput(one_line(f"{option} {error}")) from None
    return found


def _indices(array: str) -> tuple[int, ...]:
    try:
        return campaigns.indices(array)
    except ValueError as error:  # the error speaks of indices, and this of one option
        raise ValueError(re.sub(r"^(hold|name)\b", r"\1s", str(error))) from None


def _environment(pairs: Sequence[str]) -> dict[str, str]:
    environment: dict[str, str] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not key or not equals:
            raise ValueError(f"must be like K=V, found {pair!r}")
        environment[key] = value
    return environment


def _inputs(paths: Sequence[str]) -> tuple[LocalInput | UrlInputSpec, ...]:
    return tuple(input_list.parsed({"from": path}, "--input") for path in paths)


KEYS = {"array": "indices", "env": "environment", "input": "inputs", "mount": "mounts"}
PARSERS: dict[str, Callable[[Any], object] | None] = {
    "image": None, "name": None, "cpus": None, "memory_mib": memory_range_mib, "nodes": None, "priority": None,
    "retries": None, "retry_on": campaigns.exit_codes, "never_retry_on": campaigns.exit_codes,
    "compute_limit": duration_s, "needs_at_least": duration_s, "silent_limit": duration_s, "disk": memory_mib,
    "saves_itself": campaigns.self_save, "group": None, "array": _indices, "env": _environment,
    "input": _inputs, "mount": tuple, "hold": None,
}  # fmt: skip
"""The parsers of the options, in the order in which options are checked. None: the value is taken as it is."""
