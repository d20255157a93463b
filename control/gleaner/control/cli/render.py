"""The only module that turns values into text: tables for people, JSON for programs, progress and remarks on stderr.

On a terminal, control characters are removed from text that users or workloads wrote, so that it cannot control the
terminal.
"""

import errno
import json
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable
from rich.text import Text

from gleaner.agent.common.allowed_urls import shown
from gleaner.agent.common.quantities import in_words, memory_in_words, size
from gleaner.agent.job_spec import JobSpec
from gleaner.control.cli.output import Answer
from gleaner.control.input_errors import one_line, visible
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.campaigns import CampaignStatus, JobCounts
from gleaner.control.models.inputs import JobInput
from gleaner.control.models.jobs import AttemptRow, JobDetail, JobList, JobRow, Submitted
from gleaner.control.models.nodes import ClusterStatus, NodeRow
from gleaner.control.models.outputs import DeliveryPhase
from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.states import State

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

    from gleaner.client.uploads import OnPart

Standing = TypeVar("Standing")

PIPE_WIDTH = 100_000
"""The number of columns if stdout is not a terminal, so that nothing is cut off."""
GAP = 2
"""The width of the gap between two columns of a table."""
WORDS_WIDTH = 20
"""The minimum width for columns of words. Longer words are folded."""
OF_WORDS = frozenset({
    "REASON", "DETAIL", "REMARK", "WHY", "DECISION", "WHAT HAPPENS TO IT", "FOLDER", "NODES", "JOBS", "SEEN", "TO DO",
    "EXPECTED END", "ITS LAST LINE",
})  # fmt: skip
KEPT_UNTIL = "KEPT UNTIL"
"""The column that is shown only if a row has such a date. A site can keep all results until they are removed."""
LEAST_WANTED = (
    "SCHEDULER'S ID", "REGISTERED", "MIB", "CPUS", "PRIORITY", "GROUP", "SLICES", "SUBMITTED", KEPT_UNTIL, "CAMPAIGN",
    "RESTORE S", "SAVE S", "FROM", "CLAIMED", "LEFT OUT", "PHASE", "USER", "CLASS", "ENDS",
)  # fmt: skip
"""The columns that are omitted on a narrow terminal, in the order in which they are omitted."""


def show(answer: Answer) -> None:
    """Print the answer's value on stdout, then its remarks on stderr."""
    value = answer.value
    if value is not None and sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise OSError(errno.EBADF, "stdout is closed")
    if answer.as_json:
        sys.stdout.write(json_text(value))
    elif isinstance(value, Iterator):
        lines = cast("Iterator[str]", value)
        clean = sys.stdout.isatty()
        for line in lines:
            sys.stdout.write((visible(line) if clean else line) + "\n")
            sys.stdout.flush()
    elif value is not None:
        _print(value, width=None if sys.stdout.isatty() else PIPE_WIDTH)
    if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison]
        sys.stdout.flush()
    for text in answer.remarks:
        remark(text)


def json_text(value: object) -> str:
    """Return the value as JSON. Equal values result in equal texts."""
    try:
        return to_json(value, indent=2).decode() + "\n"
    except PydanticSerializationError:  # the name of a file might be invalid UTF-8
        return json.dumps(to_jsonable_python(value), indent=2) + "\n"


def _print(value: object, *, width: int | None) -> None:
    """Print tables and text, no wider than `width` (None: the terminal). Name the omitted columns on stderr."""
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    dropped: dict[str, None] = {}
    for part in _parts(value):
        if isinstance(part, Table):
            if part.title:
                console.print(part.title, soft_wrap=True)
            shown, left_out = _fitted(part, console)
            dropped |= dict.fromkeys(left_out)
            console.print(shown)
        else:
            console.print(part, soft_wrap=True)
    if dropped:
        sys.stdout.flush()
        columns = ", ".join(dropped)
        remark(f"left out for lack of space ({console.width} columns): {columns}; --json shows all")


def _fitted(table: Table, console: Console) -> tuple[RichTable, tuple[str, ...]]:
    """Return the table without the least important columns that do not fit on the terminal, and their names.

    Columns of words are folded before any column is omitted. Other columns are never split into letters.
    """
    cells = [[Text(visible(row[place])) for row in table.rows] for place in range(len(table.columns))]
    widths = [
        max(console.measure(cell).maximum for cell in (Text(name), *column))
        for name, column in zip(table.columns, cells, strict=True)
    ]

    def least_width(places: Sequence[int]) -> int:
        """Return the width on the terminal that these columns need if their words are folded."""
        folded = (min(widths[n], WORDS_WIDTH) if table.columns[n] in OF_WORDS else widths[n] for n in places)
        return sum(folded) + GAP * max(0, len(places) - 1)

    places = [n for n, name in enumerate(table.columns) if name != KEPT_UNTIL or any(cell.plain for cell in cells[n])]
    left_out: list[str] = []
    droppable = [name for name in LEAST_WANTED if name in {table.columns[n] for n in places}]
    while least_width(places) > console.width and droppable:
        left_out.append(droppable.pop(0))
        places = [place for place in places if table.columns[place] != left_out[-1]]
    made = RichTable(
        box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold", show_header=table.has_header
    )
    has_room = table.has_header and least_width(places) <= console.width
    for place in places:
        name = table.columns[place]
        no_wrap = has_room and name not in OF_WORDS  # a list of facts has no column names
        made.add_column(name, justify="left" if table.is_left(place) else "right", overflow="fold", no_wrap=no_wrap)
    for row in zip(*(cells[place] for place in places), strict=True):
        made.add_row(*row)
    return made, tuple(left_out)


def remark(text: str) -> None:
    """Print one line on stderr. If stderr is closed, the exit code still shows the outcome."""
    with suppress(OSError):
        sys.stderr.write(f"glean: {one_line(text)}\n")
        sys.stderr.flush()


def progress(text: str, standings: Iterable[Standing], counts: Callable[[Standing], Sequence[Any]]) -> Standing:
    """Draw a bar on a terminal while `standings` yields the states of a task. Return the last state.

    There is at least one state. `counts` returns the arguments of `steps` for each state.
    """
    last: Standing | None = None
    with steps(text) as show_steps:
        for last in standings:
            show_steps(*counts(last))
    assert last is not None  # noqa: S101 - see above
    return last


class ShowSteps(Protocol):
    """A function that shows the finished steps, all steps, and the current step on a bar."""

    def __call__(self, done: int, whole: int, now: str = ..., /) -> None: ...


@contextmanager
def sending() -> "Generator[OnPart]":
    """Draw a bar on a terminal while files are sent. Yield the function that control's client calls for each part."""
    with steps("sending") as show_steps:
        yield lambda name, at, size: show_steps(at // 2**20, size // 2**20, f"sending {one_line(name)} (MiB)")


@contextmanager
def steps(text: str) -> Generator[ShowSteps]:
    """Draw a bar on a terminal.

    Yield a function that takes the finished steps, all steps, and optionally another text.
    """
    with _on_terminal(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, whole, now=text: bar.update(task, completed=done, total=whole, description=now)


@contextmanager
def busy(text: str) -> Generator[None]:
    """Show a long task on a terminal, with its elapsed time."""
    with _on_terminal(SpinnerColumn(), TextColumn("{task.description}")) as bar:
        bar.add_task(text, total=None)
        yield


def _on_terminal(*columns: "ProgressColumn") -> Progress:
    """Return a line on the terminal with these columns and the elapsed time, or nothing if there is no terminal."""
    console = Console(stderr=True)
    return Progress(*columns, TimeElapsedColumn(), console=console, transient=True, disable=not console.is_terminal)


def standing(status: JobCounts) -> str:
    """Return the number of jobs in each state, in words, leaving out zeros."""
    keys = ("succeeded", "running", "saved", "new", "failed", "cancelled", "held")
    return ", ".join(f"{count} {key}" for key in keys if (count := getattr(status, key)))


def moment(at_s: float | None) -> str:
    """Return an instant in local time, with the day if it is not today."""
    if at_s is None:
        return ""
    try:
        then = time.localtime(at_s)
    except (OverflowError, ValueError, OSError):  # outside of the calendar
        return f"{at_s:g}"
    today = time.strftime("%Y-%m-%d") == time.strftime("%Y-%m-%d", then)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then)


def day(at_s: float | None) -> str:
    """Return the day of an instant in local time, or the time of day if it is today."""
    return moment(at_s).partition(" ")[0]


def _parts(value: object) -> Iterator[Table | str]:
    match value:
        case str():
            yield value
        case Submitted():
            yield _submitted(value)
            if sys.stdout.isatty():
                yield from _next_steps(value.jobs[0], value.campaign)
        case CampaignStatus():
            counts = ("new", "running", "saved", "succeeded", "failed", "cancelled", "held")
            yield Table.of((value,), {name.upper(): name for name in counts})
        case JobList():
            yield _jobs(value.jobs)
            if len(value.jobs) < value.total:
                yield f"{len(value.jobs)} of {value.total} jobs; --after and --limit show others"
        case JobDetail():
            yield from _job(value)
        case ClusterStatus():
            yield from _cluster(value)
        case tuple():
            yield from _rows(cast("tuple[object, ...]", value))
        case _:
            raise TypeError(f"no way to show a {type(value).__name__}")


def _rows(values: tuple[object, ...]) -> Iterator[Table | str]:
    if jobs := [value for value in values if isinstance(value, JobRow)]:
        yield _jobs(jobs)
    if agents := [value for value in values if isinstance(value, AgentRow)]:
        yield _agents(agents)
    for place, value in enumerate(value for value in values if isinstance(value, Table | str)):
        if place:
            yield ""
        yield value


def _submitted(value: Submitted) -> str:
    if value.campaign is None:
        return "job " + ", ".join(str(job) for job in value.jobs)
    first, last = value.jobs[0], value.jobs[-1]
    jobs = f"jobs {first} to {last}" if last - first == len(value.jobs) - 1 else f"{len(value.jobs)} jobs"
    return f"campaign {value.campaign}: {jobs if len(value.jobs) > 1 else f'job {first}'}"


def _next_steps(job: int, campaign: int | None) -> Iterator[str]:
    alone = (f"show {job}", f"why {job}", f"results {job}")
    together = (f"campaign show {campaign}", f"logs {job}", f"results --campaign {campaign}")
    yield from (f"  glean {step}" for step in (alone if campaign is None else together))


def environment(spec: JobSpec) -> str:
    """Return the environment variables in the syntax of a shell."""
    return shlex.join(f"{key}={value}" for key, value in spec.environment.items())


def _state(row: JobRow) -> str:
    said = str(row.state)
    if row.state is State.COMPLETE:
        said = f"{row.outcome}" + (f" ({row.exit_code})" if row.exit_code else "")
    return f"{said}, held" if row.held else said


def _jobs(rows: Sequence[JobRow]) -> Table:
    return Table.of(
        rows,
        {
            "JOB": "id", "CAMPAIGN": lambda row: "" if row.campaign is None else f"{row.campaign}[{row.index}]",
            "NAME": "name", "GROUP": "group", "STATE": _state, "PRIORITY": "priority", "CPUS": "cpus",
            "MIB": "memory_mib", "SLICES": "attempt", "NODE": "node",
            "SUBMITTED": lambda row: moment(row.submitted_s), KEPT_UNTIL: lambda row: day(row.kept_until_s),
        },
        right=("JOB", "PRIORITY", "CPUS", "MIB", "SLICES"),
    )  # fmt: skip


def _job(detail: JobDetail) -> Iterator[Table | str]:
    row, spec, itself = detail.job, detail.spec, detail.spec.saves_itself
    by = f", submitted by {row.submitter}" if row.submitter else ""
    stretch = f", {in_words(spec.needs_at_least_s)} of an agent's time" if spec.needs_at_least_s else ""
    most = f" (at most {memory_in_words(spec.most_memory_mib)})" if spec.most_memory_mib else ""
    saves = (f"{g.attempt}/{g.number} ({size(g.size_bytes)}, {moment(g.published_s)})" for g in detail.checkpoints)
    missing = f"; no file matches {', '.join(detail.unmatched)}" if detail.unmatched else ""
    limit_s, disk_mib, silent_s, output_bytes = (
        spec.compute_limit_s, spec.disk_mib, spec.silent_limit_s, detail.output_bytes
    )  # fmt: skip
    facts = {
        "job": f"{row.id} {row.name}, of group {row.group}{by}",
        "campaign": "" if row.campaign is None else f"{row.campaign}, index {row.index}",
        "parameters": ", ".join(f"{name} {value}" for name, value in (row.parameters or {}).items()),
        "state": _state(row) + (f" on {row.node}" if row.node else ""),
        "because": detail.failed_because,
        "waits": detail.waits_because,
        "last slice lost": "" if row.held else detail.unsaved_because,
        "last failure": detail.last_failure,
        "not saved": detail.not_saved_because,
        "runs": shlex.join((spec.image, *spec.command)),
        "mounts": ", ".join(spec.mounts),
        "inputs": ", ".join(map(_input, detail.inputs)),
        "keeps": ", ".join(spec.outputs.keep) if spec.outputs is not None else "",
        "delivers": _delivery(detail),
        "image": "" if detail.image_id is None else f"{detail.image_id}, pushed by the group",
        "with": environment(spec),
        "needs": f"cpus {row.cpus}, memory {row.memory_mib} MiB{most}{stretch}; priority {row.priority}",
        "computed": "" if limit_s is None else f"{in_words(detail.counted_s)} of at most {in_words(limit_s)}",
        "writes": "" if disk_mib is None else f"at most {memory_in_words(disk_mib)}",
        "ends": "" if silent_s is None else f"after {in_words(silent_s)} without output or writes",
        "saves itself": "" if itself is None else f"on {itself.signal}, with exit code {itself.exit_code}",
        "failures": f"{detail.failures} of its own; {spec.retries} retries allowed{_codes(detail)}",
        "saved as": ", ".join(saves),
        "output": "" if output_bytes is None else f"{size(output_bytes)}; glean results {row.id}{missing}",
        "kept until": moment(row.kept_until_s),
    }
    yield Table(("", ""), tuple((what, text) for what, text in facts.items() if text), left=2, has_header=False)
    if detail.attempts:
        yield ""
        yield _attempts(detail)
    if detail.events:
        yield ""
        yield Table.of(detail.events, {"WHEN": lambda event: moment(event.at_s), "WHAT": "what", "DETAIL": "detail"})


def _delivery(detail: JobDetail) -> str:
    """Return, in words, the target or the place of the result, or "" if the job names no target."""
    delivery = detail.delivery
    if delivery is None:
        return (
            ""
            if detail.spec.outputs is None or detail.spec.outputs.to is None
            else f"to {shown(detail.spec.outputs.to)}"
        )
    to = shown(delivery.to)
    match delivery.phase:
        case DeliveryPhase.DELIVERED:
            there = f"{delivery.files} files, {size(delivery.size_bytes or 0)}"
            return f"to {to}: {there}, delivered {moment(delivery.ended_s)}"
        case DeliveryPhase.FAILED:
            return f"results are kept in the storage; delivery to {to} failed: {delivery.problem}"
        case DeliveryPhase.WAITING:
            now = "under way" if delivery.agent else "waits for an agent"
    return f"to {to}: {now}" + (f"; {delivery.trouble}" if delivery.trouble else "")


def _input(one: JobInput) -> str:
    notes = ["copied"] if one.into_job else []
    if one.url is not None:
        notes.append(f"from {shown(one.url)}" + ("" if one.content else ", not fetched yet"))
    return one.name + (f" ({', '.join(notes)})" if notes else "")


def _codes(detail: JobDetail) -> str:
    """Return, in words, the exit codes that control retries, or "" if there are none."""
    only, never = (", ".join(map(str, codes or ())) for codes in (detail.spec.retry_on, detail.spec.never_retry_on))
    return (f", only on exit code {only}" if only else "") + (f", never on exit code {never}" if never else "")


def _lazy_restore(row: AttemptRow) -> str:
    """Return, in words, the times of a lazy restore, in which the job ran before all its memory had arrived, or "" for
    others.

    >>> from types import SimpleNamespace
    >>> _lazy_restore(SimpleNamespace(restore_s=0.12, memory_s=6.04)), _lazy_restore(SimpleNamespace(memory_s=0.0))
    ('restored in 0.1 s, memory complete after 6.0 s', '')
    """
    return f"restored in {row.restore_s:.1f} s, memory complete after {row.memory_s:.1f} s" if row.memory_s else ""


def _attempts(detail: JobDetail) -> Table:
    table = Table.of(
        detail.attempts,
        {
            "ATTEMPT": "attempt", "NODE": "node", "CLAIMED": lambda row: moment(row.claimed_s),
            "FROM": lambda row: row.restored_from or "the beginning",
            "START S": lambda row: f"{row.start_s:.1f}", "RESTORE S": lambda row: f"{row.restore_s:.1f}",
            "COMPUTE S": lambda row: f"{row.compute_s:.1f}",
            "SAVE S": lambda row: f"{row.save_s:.1f}", "ENDED": lambda row: row.ending or "runs",
            "DETAIL": lambda row: "; ".join(filter(None, (row.detail, _lazy_restore(row)))),
        },
        right=("ATTEMPT", "START S", "RESTORE S", "COMPUTE S", "SAVE S"),
    )  # fmt: skip
    if len(detail.attempts) > 1:
        sums = (
            sum(getattr(row, key) for row in detail.attempts) for key in ("start_s", "restore_s", "compute_s", "save_s")
        )
        total = ("all", "", "", "", *(f"{seconds:.1f}" for seconds in sums), "", "")
        table = replace(table, rows=(*table.rows, total))
    return table


def _agents(rows: Sequence[AgentRow]) -> Table:
    return Table.of(
        rows,
        {
            "AGENT": "name", "NODE": "node", "PHASE": "phase", "SCHEDULER'S ID": "scheduler_id",
            "ENDS": lambda row: moment(row.end_s if row.ended_s is None else row.ended_s),
            "REGISTERED": lambda row: moment(row.registered_s),
            "JOBS": lambda row: " ".join(str(job) for job in row.jobs), "REASON": "reason",
        },
    )  # fmt: skip


def _cluster(value: ClusterStatus) -> Iterator[Table | str]:
    if value.nodes:
        yield Table.of(
            value.nodes,
            {
                "NODE": "name", "STATE": "state", "USED BY": _used_by, "CPUS": "cpus", "MIB": "memory_mib",
                "LOST IN 24 H": _lost_in_day, "REMARK": _about_node,
            },
            right=("CPUS", "MIB"),
        )  # fmt: skip
    read = "the scheduler has not been asked yet" if value.read_s is None else f"as of {moment(value.read_s)}"
    ends = f"; the round ends at {moment(value.boundary_s)}" if value.boundary_s else ""
    yield f"{read}{', stale' if value.stale and value.read_s is not None else ''}{ends}"
    if value.waiting:
        yield one_line(value.waiting)
    if value.problem:
        yield one_line(f"problem: {value.problem}")


def _used_by(node: NodeRow) -> str:
    users = (node.agent, "regular work" if node.regular else None)
    return ", ".join(filter(None, users)) or node.unused


def _lost_in_day(node: NodeRow) -> str:
    return f"{node.lost_in_day} of {node.slices_in_day}" if node.slices_in_day else ""


def _about_node(node: NodeRow) -> str:
    note = f"agents failed here {node.failures} times in a row" if node.failures else ""
    if node.distrusted:
        until = f"excluded until {moment(node.excluded_until_s)}" if node.excluded_until_s else "gets one job"
        note = f"{until}: {node.distrusted}"
    if node.drained:
        note = f"drained {node.drained}" + (f"; {note}" if note else "")
    return "; ".join((*node.wrong, *filter(None, (note,))))
