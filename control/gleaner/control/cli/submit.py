"""The verb `submit`, and the options that describe a job."""

import os
import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias, cast

import typer

from gleaner.agent.common.quantities import duration_s, memory_mib, memory_range_mib
from gleaner.agent.job_spec import InputSpec, UrlInputSpec
from gleaner.client import Client, ClientError, ErrorKind
from gleaner.client.local_inputs import pack
from gleaner.client.uploads import FileToSend
from gleaner.control.campaigns import campaign_file as campaigns
from gleaner.control.campaigns import input_list
from gleaner.control.campaigns.given import Given
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.campaigns.parameter_files import in_folder, read_rows
from gleaner.control.cli import render
from gleaner.control.cli.connect import connect
from gleaner.control.cli.failures import BadInput, exit_code_of
from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.input_errors import InputError, one_line
from gleaner.control.models.jobs import Submission, Submitted
from gleaner.control.simulation.metrics.tables import Table

Cpus: TypeAlias = Annotated[int | None, typer.Option(help="The cores of each job.  [default: 1]")]
Memory: TypeAlias = Annotated[
    str | None, typer.Option(metavar="MIB", help="Memory in MiB, or as in 4G, or a range: 512..4G.  [default: 512]")
]
Environment: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="K=V", help="An environment variable; repeatable.")
]
SavesItself: TypeAlias = Annotated[
    str | None, typer.Option(metavar="SIGTERM[:85]", help="The program saves itself on this signal.")
]
Inputs: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="PATH|URL", help="A file or folder to read at /inputs; repeatable.")
]
Mounts: TypeAlias = Annotated[
    list[str] | None, typer.Option(metavar="FOLDER", help="A folder on the nodes to read at the same path; repeatable.")
]
FIRST_JOBS = 3
Group: TypeAlias = Annotated[str | None, typer.Option(help="For admins: the group that owns the jobs.")]


def submit(
    context: typer.Context,
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="FILE | -- COMMAND", help="A campaign file, or what to run.")
    ] = None,
    *,
    image: Annotated[str | None, typer.Option(help="The container image.")] = None,
    name: Annotated[str | None, typer.Option(help="The name of the jobs.  [default: the image's]")] = None,
    cpus: Cpus = None,
    memory_mib: Memory = None,
    nodes: Annotated[int | None, typer.Option(help="Only 1: wider jobs are simulated.", hidden=True)] = None,
    priority: Annotated[int | None, typer.Option(help="A job with a higher priority goes first.  [default: 0]")] = None,
    retries: Annotated[
        int | None, typer.Option(help="How often a job starts over after its own failure.  [default: set by the site]")
    ] = None,
    retry_on: Annotated[
        str | None, typer.Option(metavar="75,137", help="Try only these exit codes again.  [default: all]")
    ] = None,
    never_retry_on: Annotated[
        str | None, typer.Option(metavar="2,3", help="Never try these exit codes again.  [default: none]")
    ] = None,
    compute_limit: Annotated[
        str | None,
        typer.Option(metavar="2h", help="The most computing time, all slices together.  [default: no limit]"),
    ] = None,
    needs_at_least: Annotated[
        str | None, typer.Option(metavar="20m", help="Start only on an agent with this much time left.")
    ] = None,
    disk: Annotated[
        str | None, typer.Option(metavar="MIB", help="The most that it can write, in MiB, or as in 20G.")
    ] = None,
    silent_limit: Annotated[
        str | None, typer.Option(metavar="30m", help="End it if it writes nothing for this long.  [default: no limit]")
    ] = None,
    env: Environment = None,
    array: Annotated[
        str | None, typer.Option(metavar="0-11", help="Submit one job for each index, as a campaign.")
    ] = None,
    saves_itself: SavesItself = None,
    input: Inputs = None,
    mount: Mounts = None,
    keep: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="Keep only matching files of /job; repeatable.  [default: all]"),
    ] = None,
    deliver_to: Annotated[
        str | None, typer.Option(metavar="URL", help="The target to which the result is copied, with {job} in it.")
    ] = None,
    group: Group = None,
    hold: Annotated[bool, typer.Option("--hold", help="Do not start the jobs before `glean release`.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Submit nothing, but show the first jobs and what would be refused.")
    ] = False,
    as_json: AsJson = False,
) -> Answer:
    """Submit a job, an array of jobs, or a campaign file.

    Options override the file. In a campaign `{index}` becomes the job's index, and a parameter in braces its value.
    """
    given: dict[str, Given] = {}
    if image is None:
        given |= campaigns.read(_only_file(arguments or []))
    elif arguments:
        given["command"] = Given(tuple(arguments), "the command")
    given |= read_options(context.params)
    folder = Path((arguments or ["."])[0]).parent if image is None else Path()
    given = read_rows(given, in_folder(folder))
    files = pack_inputs(given, folder)
    wanted = campaigns.submission(given)
    with connect() as control:
        if dry_run:
            return _dry_run(control, wanted, as_json=as_json)
        made = submit_with_inputs(control, wanted, files)
    return Answer(made, as_json, (made.warning,) if made.warning else ())


def _dry_run(control: Client, wanted: Submission, *, as_json: bool) -> Answer:
    """Return the first jobs, and the reason if control would refuse the submission. Local inputs are not checked."""
    urls = tuple(one for one in wanted.job.inputs if isinstance(one, UrlInputSpec))
    asked = wanted.model_copy(update={"job": wanted.job.model_copy(update={"inputs": urls}), "dry_run": True})
    remark, code = "", 0
    try:
        remark = submit_with_inputs(control, asked, ()).warning
    except ClientError as failure:
        if failure.kind not in {ErrorKind.CONFLICT, ErrorKind.INVALID}:
            raise
        remark, code = f"would be refused: {failure}", exit_code_of(failure)
    first, remarks = tuple(wanted.first_jobs(FIRST_JOBS)), (remark,) if remark else ()
    if as_json:
        shown = [
            {"index": index, "parameters": each, "command": job.command, "environment": job.environment}
            for index, each, job in first
        ]
        return Answer({"first": shown, "total": wanted.count}, as_json, remarks, code)
    columns: dict[str, Callable[[Any], object]] = {
        "INDEX": lambda row: row[0],
        "RUNS": lambda row: shlex.join(row[2].command),
        "WITH": lambda row: render.environment(row[2]),
    }
    line = f"{wanted.count} job{'s' if wanted.count > 1 else ''} in all; nothing was submitted"
    return Answer((Table.of(first, columns), line), as_json, remarks, code)


def submit_with_inputs(control: Client, wanted: Submission, files: Sequence[FileToSend]) -> Submitted:
    """Upload the inputs that control lacks, and submit the jobs."""
    if files:
        with render.sending() as on_part:
            control.put_inputs(files, group=wanted.group, on_part=on_part)
    more = {name: getattr(wanted, name) for name in wanted.model_fields_set | {"dry_run"} if name != "job"}
    return control.submit(wanted.job, **more)


def pack_inputs(given: dict[str, Given], folder: Path) -> Sequence[FileToSend]:
    """Read the local inputs, and replace them with their digests. Raises `InputError`."""
    if "inputs" not in given:
        return ()
    files: list[FileToSend] = []
    specs: list[InputSpec | UrlInputSpec] = []
    with render.busy("reading the inputs"):
        for one in cast("tuple[LocalInput | UrlInputSpec, ...]", given["inputs"].value):
            if isinstance(one, UrlInputSpec):
                specs.append(one)
                continue
            path = (folder if one.where != "--input" else Path()) / Path(one.source).expanduser()
            try:
                files.append(pack(path, name=one.name))
            except ClientError as error:
                raise InputError(f"{one.where}: {error}") from None
            specs.append(InputSpec(name=one.name, content=files[-1].content, into_job=one.into_job))
    given["inputs"] = Given(tuple(specs), given["inputs"].where)
    return files


def _only_file(arguments: Sequence[str]) -> Path:
    if arguments and not Path(arguments[0]).suffix and not (len(arguments) == 1 and os.path.isfile(arguments[0])):  # noqa: PTH113 - False for the longest commands
        command = one_line(shlex.join(arguments))
        raise BadInput(
            f"say what to submit: --image IMAGE is missing before -- {command}; it names the container image"
        )
    if len(arguments) != 1:
        raise BadInput("say what to submit: a campaign file, or --image IMAGE -- COMMAND")
    return Path(arguments[0])


def read_options(options: Mapping[str, Any]) -> dict[str, Given]:
    """Return the options that the user has set, by their keys in a campaign file. Raises `BadInput`."""
    found: dict[str, Given] = {}
    for name, parse in PARSERS.items():
        value, option = options.get(name), f"--{name.replace('_', '-')}"
        if value is None or value is False or value in ([], ()):
            continue
        try:
            if name == "array":
                value, most = campaigns.at_once(value)
                found |= {} if most is None else {"max_running": Given(most, option)}
            found[KEYS.get(name, name)] = Given(value if parse is None else parse(value), option)
        except ValueError as error:
            raise BadInput(one_line(f"{option} {error}")) from None
    return found


def _indices(array: str) -> tuple[int, ...]:
    try:
        return campaigns.indices(array)
    except ValueError as error:  # the error mentions indices, but here it is one option
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
    "input": _inputs, "mount": tuple, "keep": tuple, "deliver_to": None, "hold": None,
}  # fmt: skip
"""The parsers of the options, in the order in which options are checked. None: the value is used unchanged."""
