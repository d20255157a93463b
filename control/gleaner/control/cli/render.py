"""The one place where values become text: tables for people, JSON for programs, progress and remarks on stderr.

Text that users or workloads wrote is shown without control characters on a terminal, so that it cannot control the
terminal.
"""

import errno
import json
import shlex
import sys
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import cast

from pydantic_core import PydanticSerializationError, to_json, to_jsonable_python
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column, Table
from rich.text import Text

from gleaner.agent.common.quantities import in_words
from gleaner.agent.common.validation_messages import one_line
from gleaner.control.cli.output import Answer, Configuration, Fetched
from gleaner.control.cli.settings_toml import toml
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.campaigns import CampaignStatus
from gleaner.control.models.drains import DrainRow
from gleaner.control.models.jobs import JobDetail, JobList, JobRow, Submitted
from gleaner.control.models.nodes import ClusterStatus
from gleaner.control.simulation.metrics.tables import Table as Sheet
from gleaner.control.states import State

PIPE_WIDTH = 100_000
"""The number of columns when stdout is not a terminal, so that nothing is cut off."""
GAP = 2
"""The width of the gap between two columns of a table."""
WORDS_WIDTH = 20
"""The least number of the terminal's columns for words; longer words are folded."""
OF_WORDS = frozenset({"REASON", "DETAIL", "REMARK", "WHY", "DECISION", "WHAT HAPPENS TO IT", "FOLDER", "NODES", "JOBS"})
LEAST_WANTED = (
    "SCHEDULER'S ID", "REGISTERED", "MIB", "CPUS", "PRIORITY", "GROUP", "SLICES", "SUBMITTED", "CAMPAIGN",
    "RESTORE S", "SAVE S", "FROM", "CLAIMED", "LEFT OUT", "PHASE", "USER", "CLASS", "ENDS",
)  # fmt: skip
"""The columns that a narrow terminal does without, in the order in which they are left out."""


def show(answer: Answer) -> None:
    """Print the answer's value on stdout, then its remarks on stderr."""
    value = answer.value
    if value is not None and sys.stdout is None:  # pyright: ignore[reportUnnecessaryComparison]
        raise OSError(errno.EBADF, "stdout is closed")
    if answer.as_json:
        sys.stdout.write(_json(value) + "\n")
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


def _json(value: object) -> str:
    try:
        return to_json(value, indent=2).decode()
    except PydanticSerializationError:  # the name of a file may be no UTF-8
        return json.dumps(to_jsonable_python(value), indent=2)


def _print(value: object, *, width: int | None) -> None:
    """Print tables and text, no wider than `width` (None: the terminal). Name columns without room on stderr."""
    console = Console(highlight=False, markup=False, emoji=False, width=width)
    dropped: dict[str, None] = {}
    for part in _parts(value):
        if isinstance(part, Table):
            shown, left_out = fitted(part, console)
            dropped |= dict.fromkeys(left_out)
            console.print(shown)
        else:
            console.print(part, soft_wrap=True)
    if dropped:
        sys.stdout.flush()
        columns = ", ".join(dropped)
        remark(f"left out for want of room ({console.width} columns): {columns}; --json has all")


def fitted(table: Table, console: Console) -> tuple[Table, tuple[str, ...]]:
    """Return the table without the least wanted columns for which the terminal has no room, and their names.

    Columns of words are folded before any column is left out. Other columns are never cut into letters.
    """
    columns = list(table.columns)
    left_out: list[str] = []
    droppable = [name for name in LEAST_WANTED if any(column.header == name for column in columns)]
    while _least_width(columns, console) > console.width and droppable:
        name = droppable.pop(0)
        columns = [column for column in columns if column.header != name]
        left_out.append(name)
    made = _table()
    made.show_header = table.show_header
    has_room = made.show_header and _least_width(columns, console) <= console.width
    for column in columns:
        is_of_words = _is_of_words(column)
        made.add_column(column.header, justify=column.justify, overflow="fold", no_wrap=has_room and not is_of_words)
    for cells in zip(*(column.cells for column in columns), strict=True):
        made.add_row(*cells)
    return made, tuple(left_out)


def _is_of_words(column: Column) -> bool:
    """Return True if the cells of the column may be folded. A list of facts names no columns."""
    return column.header in OF_WORDS


def _least_width(columns: Sequence[Column], console: Console) -> int:
    """Return the number of the terminal's columns that these need, with their words folded."""
    widths = (max(_cell_widths(column, console), default=0) for column in columns)
    folded = (min(w, WORDS_WIDTH) if _is_of_words(c) else w for c, w in zip(columns, widths, strict=True))
    return sum(folded) + GAP * max(0, len(columns) - 1)


def _cell_widths(column: Column, console: Console) -> Iterator[int]:
    yield from (console.measure(cell).maximum for cell in (column.header, *column.cells))


def remark(text: str) -> None:
    """Print one line of ours on stderr. If stderr takes none, the exit code still tells the outcome."""
    with suppress(OSError):
        sys.stderr.write(f"glean: {one_line(text)}\n")
        sys.stderr.flush()


def progress(standings: Iterable[CampaignStatus]) -> CampaignStatus:
    """Draw a bar on a terminal while the standings come. Return the last standing; there is at least one."""
    last: CampaignStatus | None = None
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("waiting", total=None)
        for last in standings:
            done = last.succeeded + last.failed + last.cancelled
            total = done + last.new + last.running + last.saved
            bar.update(task, completed=done, total=total, description=standing(last))
    assert last is not None  # noqa: S101 - see above
    return last


def drain_progress(standings: Iterable[DrainRow]) -> DrainRow:
    """Draw a bar on a terminal while nodes are emptied. Return the last standing; there is at least one."""
    last: DrainRow | None = None
    with steps("draining") as show_steps:
        for last in standings:
            show_steps(sum(job.at_first - job.left for job in last.jobs), sum(job.at_first for job in last.jobs))
    assert last is not None  # noqa: S101 - see above
    return last


@contextmanager
def steps(text: str) -> Generator[Callable[[int, int], None]]:
    """Draw a bar on a terminal. Yield a function that takes the number of steps done, and that of all steps."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(text, total=None)
        yield lambda done, whole: bar.update(task, completed=done, total=whole)


@contextmanager
def busy(text: str) -> Generator[None]:
    """Show on a terminal the work that takes long, and the time that it has taken."""
    console = Console(stderr=True)
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        bar.add_task(text, total=None)
        yield


def standing(status: CampaignStatus) -> str:
    """Return the counts that are not zero, in words."""
    counts = {key: getattr(status, key) for key in ("running", "saved", "new", "failed", "cancelled", "held")}
    return ", ".join(f"{count} {key}" for key, count in counts.items() if count) or f"{status.succeeded} succeeded"


def visible(text: str) -> str:
    r"""Return the text with control characters, except tabs, shown as escapes.

    >>> visible("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def moment(at_s: float | None) -> str:
    """Return an instant in local time, with the day only if it is not today."""
    if at_s is None:
        return ""
    try:
        then = time.localtime(at_s)
    except (OverflowError, ValueError, OSError):  # no calendar has it
        return f"{at_s:g}"
    today = time.strftime("%Y-%m-%d") == time.strftime("%Y-%m-%d", then)
    return time.strftime("%H:%M:%S" if today else "%Y-%m-%d %H:%M:%S", then)


def size(size_bytes: int) -> str:
    """Return a size for people.

    >>> size(3 * 1024 * 1024)
    '3.0 MiB'
    """
    amount = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if amount < 1024:
            return f"{amount:.0f} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} TiB"


def _parts(value: object) -> Iterator[Table | str]:
    match value:
        case str():
            yield value
        case Submitted():
            yield _submitted(value)
        case CampaignStatus():
            yield _status(value)
        case JobList():
            yield _jobs(value.jobs)
            if len(value.jobs) < value.total:
                yield f"{len(value.jobs)} of {value.total} jobs; --after and --limit show others"
        case JobDetail():
            yield from _job(value)
        case ClusterStatus():
            yield from _cluster(value)
        case Configuration():
            yield toml(value)
        case tuple():
            yield from _rows(cast("tuple[object, ...]", value))
        case _:
            raise TypeError(f"no way to show a {type(value).__name__}")


def _rows(values: tuple[object, ...]) -> Iterator[Table | str]:
    jobs = [value for value in values if isinstance(value, JobRow)]
    agents = [value for value in values if isinstance(value, AgentRow)]
    fetched = [value for value in values if isinstance(value, Fetched)]
    if jobs:
        yield _jobs(jobs)
    if agents:
        yield _agents(agents)
    if fetched:
        yield _fetched(fetched)
    for place, value in enumerate(value for value in values if isinstance(value, Sheet | str)):
        if place:
            yield ""
        if isinstance(value, str):
            yield value
            continue
        if value.title:
            yield value.title
        yield _sheet(value)


def _table(*columns: str, right: Sequence[str] = ()) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, GAP, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def _add(table: Table, *cells: object) -> None:
    table.add_row(*(Text("" if cell is None else visible(str(cell))) for cell in cells))


def _sheet(sheet: Sheet) -> Table:
    right = [name for place, name in enumerate(sheet.columns) if not sheet.is_left(place)]
    table = _table(*sheet.columns, right=right)
    for row in sheet.rows:
        _add(table, *row)
    return table


def _submitted(value: Submitted) -> str:
    if value.campaign is None:
        return "job " + ", ".join(str(job) for job in value.jobs)
    first, last = value.jobs[0], value.jobs[-1]
    jobs = f"jobs {first} to {last}" if last - first == len(value.jobs) - 1 else f"{len(value.jobs)} jobs"
    return f"campaign {value.campaign}: {jobs if len(value.jobs) > 1 else f'job {first}'}"


def _status(value: CampaignStatus) -> Table:
    table = _table("NEW", "RUNNING", "SAVED", "SUCCEEDED", "FAILED", "CANCELLED", "HELD")
    _add(table, value.new, value.running, value.saved, value.succeeded, value.failed, value.cancelled, value.held)
    return table


def _state(row: JobRow) -> str:
    said = str(row.state)
    if row.state is State.COMPLETE:
        said = f"{row.outcome}" + (f" ({row.exit_code})" if row.exit_code else "")
    return f"{said}, held" if row.held else said


def _jobs(rows: Sequence[JobRow]) -> Table:
    columns = ("JOB", "CAMPAIGN", "NAME", "GROUP", "STATE", "PRIORITY", "CPUS", "MIB", "SLICES", "NODE", "SUBMITTED")
    table = _table(*columns, right=("JOB", "PRIORITY", "CPUS", "MIB", "SLICES"))
    for row in rows:
        campaign = "" if row.campaign is None else f"{row.campaign}[{row.index}]"
        facts = (row.priority, row.cpus, row.memory_mib, row.attempt, row.node, moment(row.submitted_s))
        _add(table, row.id, campaign, row.name, row.group, _state(row), *facts)
    return table


def _job(detail: JobDetail) -> Iterator[Table | str]:
    row = detail.job
    facts = _table("", "")
    facts.show_header = False
    by = f", submitted by {row.submitter}" if row.submitter else ""
    _add(facts, "job", f"{row.id} {row.name}, of group {row.group}{by}")
    if row.campaign is not None:
        _add(facts, "campaign", f"{row.campaign}, index {row.index}")
    _add(facts, "state", _state(row) + (f" on {row.node}" if row.node else ""))
    unsaved = "" if row.held else detail.unsaved_because
    reasons = {"because": detail.failed_because, "waits": detail.waits_because, "last slice lost": unsaved}
    for what, reason in reasons.items():
        if reason:
            _add(facts, what, reason)
    _add(facts, "runs", shlex.join((detail.image, *detail.command)))
    if detail.image_id is not None:
        _add(facts, "image", f"{detail.image_id}, pushed by the group")
    if detail.environment:
        _add(facts, "with", shlex.join(f"{key}={value}" for key, value in detail.environment.items()))
    stretch = f", {in_words(detail.needs_at_least_s)} of an agent's time" if detail.needs_at_least_s else ""
    _add(facts, "needs", f"cpus {row.cpus}, memory {row.memory_mib} MiB{stretch}; priority {row.priority}")
    if detail.compute_limit_s is not None:
        _add(facts, "computed", f"{in_words(detail.counted_s)} of at most {in_words(detail.compute_limit_s)}")
    if detail.saves_itself:
        _add(facts, "saves itself", f"on {detail.saves_itself.signal}, with exit code {detail.saves_itself.exit_code}")
    _add(facts, "failures", f"{detail.failures} of its own; {detail.retries} retries allowed{_codes(detail)}")
    if detail.checkpoints:
        saves = (f"{g.attempt}/{g.number} ({size(g.size_bytes)}, {moment(g.published_s)})" for g in detail.checkpoints)
        _add(facts, "saved as", ", ".join(saves))
    if detail.output_bytes is not None:
        _add(facts, "output", f"{size(detail.output_bytes)}; glean results {row.id}")
    yield facts
    if detail.attempts:
        yield ""
        yield _attempts(detail)
    if detail.events:
        yield ""
        events = _table("WHEN", "WHAT", "DETAIL")
        for event in detail.events:
            _add(events, moment(event.at_s), event.what, event.detail)
        yield events


def _codes(detail: JobDetail) -> str:
    """Return the exit codes on which the retries depend, in words; empty if they depend on none."""
    only, never = (", ".join(map(str, codes or ())) for codes in (detail.retry_on, detail.never_retry_on))
    return (f", only on exit code {only}" if only else "") + (f", never on exit code {never}" if never else "")


def _attempts(detail: JobDetail) -> Table:
    columns = ("ATTEMPT", "NODE", "CLAIMED", "FROM", "RESTORE S", "COMPUTE S", "SAVE S", "ENDED", "DETAIL")
    table = _table(*columns, right=("ATTEMPT", "RESTORE S", "COMPUTE S", "SAVE S"))
    for row in detail.attempts:
        seconds = (f"{row.restore_s:.1f}", f"{row.compute_s:.1f}", f"{row.save_s:.1f}")
        ending = row.ending or "runs"
        origin = row.restored_from or "the beginning"
        _add(table, row.attempt, row.node, moment(row.claimed_s), origin, *seconds, ending, row.detail)
    if len(detail.attempts) > 1:
        sums = (sum(getattr(row, key) for row in detail.attempts) for key in ("restore_s", "compute_s", "save_s"))
        _add(table, "all", "", "", "", *(f"{seconds:.1f}" for seconds in sums), "", "")
    return table


def _agents(rows: Sequence[AgentRow]) -> Table:
    table = _table("AGENT", "NODE", "PHASE", "SCHEDULER'S ID", "ENDS", "REGISTERED", "JOBS", "REASON")
    for row in rows:
        jobs = " ".join(str(job) for job in row.jobs)
        ends = moment(row.end_s) if row.ended_s is None else moment(row.ended_s)
        _add(table, row.name, row.node, row.phase, row.scheduler_id, ends, moment(row.registered_s), jobs, row.reason)
    return table


def _cluster(value: ClusterStatus) -> Iterator[Table | str]:
    table = _table("NODE", "STATE", "USED BY", "CPUS", "MIB", "REMARK", right=("CPUS", "MIB"))
    for node in value.nodes:
        users = [node.agent] if node.agent else []
        users += ["regular work"] if node.regular else []
        note = f"left alone until {moment(node.avoided_until_s)}" if node.avoided_until_s else ""
        if not note and node.failures:
            note = f"agents failed here {node.failures} times in a row"
        if node.doubted:
            note = f"{note or 'gets one job at a time'}: {node.doubted}"
        if node.drained:
            note = f"drained {node.drained}" + (f"; {note}" if note else "")
        note = "; ".join((*node.wrong, *filter(None, (note,))))
        used = ", ".join(users) or ("idle" if node.idle else "")
        _add(table, node.name, node.state, used, node.cpus, node.memory_mib, note)
    if value.nodes:
        yield table
    read = "the scheduler has not been asked yet" if value.read_s is None else f"as of {moment(value.read_s)}"
    ends = f"; the round ends at {moment(value.boundary_s)}" if value.boundary_s else ""
    yield f"{read}{', stale' if value.stale and value.read_s is not None else ''}{ends}"
    if value.problem:
        yield one_line(f"problem: {value.problem}")


def _fetched(rows: Sequence[Fetched]) -> Table:
    table = _table("JOB", "FOLDER", "FILES", "SIZE", "LEFT OUT", right=("JOB", "FILES"))
    for row in rows:
        _add(table, row.job, row.folder, row.files, size(row.size_bytes), len(row.skipped) or "")
    return table
