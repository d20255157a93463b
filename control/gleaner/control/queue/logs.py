"""Logs: the lines that jobs have written in all their attempts.

Each line belongs to an attempt and is numbered throughout the job's life. A restored process has already written the
lines before its checkpoint. Therefore an attempt that continues from a checkpoint with n lines supersedes the lines
numbered n and higher of earlier attempts. Superseded lines are kept, but not shown.

The beginning of a log can be missing. When lines are added and the log exceeds its limit, the oldest lines are removed,
in the order in which `read_all` shows them (see also `retention`). The remaining lines keep their numbers.
"""

import math
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, LargeBinary, Select, and_, bindparam, case, cast, delete, func, or_, select, update
from sqlalchemy.sql.elements import ColumnElement

from gleaner.agent.messages import LogLines
from gleaner.control.models.jobs import LogPage
from gleaner.control.queue.errors import Invalid, NotCurrent, NotFound
from gleaner.control.queue.tables import ATTEMPT, JOB, LOG, LOGGED
from gleaner.control.queue.transitions import ensure_row, insert_unless_there
from gleaner.control.states import State

MISSING = "[this line was lost together with an agent, or came too fast to be kept]"
LINE_BYTES = 64
"""The bytes that are counted for each line in addition to its characters, so that a log of empty lines is also
limited."""
PAGE_BYTES = 2**20
"""The size at which a page of a log ends. In JSON, a character can be six times as long."""
REMOVED = 2000
"""The greatest number of lines that one call of `remove_oldest` removes."""
LAST_NUMBER = 2**53 - 1

_LATEST = select(JOB.c.attempt).where(JOB.c.id == bindparam("job_"))
_FROM = (
    select(ATTEMPT.c.attempt, ATTEMPT.c.log_from)
    .where(ATTEMPT.c.job == bindparam("job_"))
    .order_by(ATTEMPT.c.attempt.desc())
)


def append(db: Connection, job: int, attempt: int, lines: LogLines, *, most_bytes: int) -> None:
    """Add lines of the job's latest attempt. Lines that are already stored stay as they are.

    Lines can arrive after the attempt's end, until the job is claimed again. If all lines of the job together take more
    than `most_bytes` bytes, the oldest are removed.
    """
    latest = db.execute(_LATEST, {"job_": job}).scalar_one_or_none()
    if latest is None:
        raise NotFound(f"there is no job {job}")
    if latest != attempt or attempt < 1:
        raise NotCurrent(job, attempt, f"attempt {latest} is the latest" if latest else "it was never claimed")
    if lines.first + len(lines.lines) > LAST_NUMBER:
        raise Invalid(f"first: no job writes {lines.first} lines")
    if not lines.lines:
        return
    state = ensure_row(db, LOGGED, job=job)  # only this transaction can add to the log until its end
    if new := _new(db, job, attempt, lines, state):
        db.execute(
            insert_unless_there(db, LOG),
            [{"job": job, "attempt": attempt, "number": number, "line": line} for number, line in new.items()],
        )
    size_bytes = state.size_bytes + sum(len(line.encode()) + LINE_BYTES for line in new.values())
    db.execute(update(LOGGED).where(LOGGED.c.job == job).values(size_bytes=size_bytes))
    while size_bytes > most_bytes and (freed_bytes := remove_oldest(db, job, size_bytes - most_bytes)):
        size_bytes -= freed_bytes


def _size_bytes(db: Connection) -> ColumnElement[int]:
    """Return the SQL expression for the size of a line."""
    if db.dialect.name == "postgresql":
        return func.octet_length(LOG.c.line) + LINE_BYTES
    return func.length(cast(LOG.c.line, LargeBinary)) + LINE_BYTES


def _new(db: Connection, job: int, attempt: int, lines: LogLines, gone: Any) -> dict[int, str]:
    """Return the lines, by number, that are not stored yet and were not removed earlier."""
    last = lines.first + len(lines.lines)
    span = and_(LOG.c.job == job, LOG.c.attempt == attempt, LOG.c.number >= lines.first, LOG.c.number < last)
    there = set(db.execute(select(LOG.c.number).where(span)).scalars())
    low = gone.number if gone.attempt == attempt else 0
    return {n: line for n, line in enumerate(lines.lines, lines.first) if n >= low and n not in there}


def remove_oldest(db: Connection, job: int, excess_bytes: float = math.inf) -> int:
    """Remove the oldest lines until this many bytes are free, but only lines of one attempt, and no more than
    `REMOVED`.

    Return the bytes that were freed, or 0 if there are no lines.
    """
    oldest = select(LOG.c.attempt, LOG.c.number, _size_bytes(db).label("size_bytes")).where(LOG.c.job == job)
    rows = db.execute(oldest.order_by(LOG.c.attempt, LOG.c.number).limit(REMOVED)).all()
    freed_bytes = attempt = until = 0
    for row in rows:
        if freed_bytes and (row.attempt != attempt or freed_bytes >= excess_bytes):
            break
        attempt, until = row.attempt, row.number + 1
        freed_bytes += row.size_bytes
    past = and_(LOG.c.job == job, LOG.c.attempt == attempt, LOG.c.number < until)
    lines = db.execute(delete(LOG).where(past)).rowcount
    if lines:
        # The stored characters of a line can differ from those that were counted (`StorableText`).
        left_bytes = case((LOGGED.c.size_bytes > freed_bytes, LOGGED.c.size_bytes - freed_bytes), else_=0)
        gone = {"size_bytes": left_bytes, "attempt": attempt, "number": until, "lines": LOGGED.c.lines + lines}
        db.execute(update(LOGGED).where(LOGGED.c.job == job).values(gone))
    return freed_bytes


def read(db: Connection, job: int, first: int, limit: int) -> LogPage:
    """Return lines from number `first` on, or from the first line that still exists.

    A line that never arrived, although a later one did, is shown as `MISSING`.
    """
    state = _state(db, job)
    shown = _shown(db, job)
    first = max(first, _first_left(shown, _trimmed(db, job)))
    lines: list[str] = []
    more = False
    visible = _visible(job, shown, first)
    if visible is not None:
        rows, more = _page(db, select(LOG.c.number, LOG.c.line).where(visible).order_by(LOG.c.number), limit)
        for number, line in rows:
            lines += [MISSING] * (min(number - first, limit) - len(lines))
            if len(lines) < limit:
                lines.append(line)
            else:
                more = True
    return _answer(first, lines, state, more=more)


def last_number(db: Connection, job: int) -> int | None:
    """Return the number of the last line that `read` would show, or None if there is none."""
    visible = _visible(job, _shown(db, job), 0)
    if visible is None:
        return None
    found: int | None = db.execute(select(func.max(LOG.c.number)).where(visible)).scalar_one()
    return found


def find(db: Connection, job: int, text: str, at_most: int) -> list[tuple[int, str]]:
    """Return the last lines that contain this text, among those that `read` would show, each with its number."""
    visible = _visible(job, _shown(db, job), 0)
    if visible is None:
        return []
    rows = select(LOG.c.number, LOG.c.line).where(visible, LOG.c.line.icontains(text, autoescape=True))
    return _page(db, rows.order_by(LOG.c.number.desc()), at_most)[0][::-1]


def _visible(job: int, shown: Sequence[tuple[int, int, int | None]], first: int) -> ColumnElement[bool] | None:
    """Return the condition that a line is shown and has at least number `first`, or None if no attempt has such
    lines."""
    parts = [
        and_(LOG.c.attempt == attempt, LOG.c.number >= max(low, first), *([LOG.c.number < high] if high else []))
        for attempt, low, high in shown
        if high is None or high > first
    ]
    return and_(LOG.c.job == job, or_(*parts)) if parts else None


def read_all(db: Connection, job: int, first: int, limit: int) -> LogPage:
    """Return all lines that any attempt wrote, attempt after attempt, including superseded ones.

    `first` is a position among these lines. The page begins with the first line that still exists.
    """
    state = _state(db, job)
    trimmed = _trimmed(db, job)
    gone = trimmed.lines if trimmed else 0
    first = max(first, gone)
    rows = select(LOG.c.number, LOG.c.line).where(LOG.c.job == job).order_by(LOG.c.attempt, LOG.c.number)
    lines, more = _page(db, rows.offset(first - gone), limit)
    return _answer(first, [line for _, line in lines], state, more=more)


def _page(db: Connection, rows: Select[int, str], limit: int) -> tuple[list[tuple[int, str]], bool]:
    """Return the first lines with their numbers, up to `limit` lines or `PAGE_BYTES`, and True if more lines follow."""
    taken: list[tuple[int, str]] = []
    size_bytes = 0
    options = {"stream_results": True, "max_row_buffer": 10}  # so that the database sends little more than one page
    with db.execute(rows.limit(limit + 1), execution_options=options) as found:
        for number, line in found:
            if len(taken) == limit or size_bytes >= PAGE_BYTES:
                return taken, True
            taken.append((number, line))
            size_bytes += len(line.encode())
    return taken, False


def _answer(first: int, lines: Sequence[str], state: State, *, more: bool) -> LogPage:
    following = first + len(lines) if more else None
    return LogPage(first=first, lines=tuple(lines), next=following, ended=state is State.COMPLETE and not more)


def _state(db: Connection, job: int) -> State:
    state: State | None = db.execute(select(JOB.c.state).where(JOB.c.id == job)).scalar_one_or_none()
    if state is None:
        raise NotFound(f"there is no job {job}")
    return state


def _shown(db: Connection, job: int) -> list[tuple[int, int, int | None]]:
    """Return, for each attempt, its number and the range of lines shown, from the latest attempt back to the first.

    The range is the first number and the number before which it ends, which is None for the latest attempt.
    """
    ceiling: int | None = None
    shown: list[tuple[int, int, int | None]] = []
    for attempt, low in db.execute(_FROM, {"job_": job}):
        if ceiling is None or low < ceiling:
            shown.append((attempt, low, ceiling))
            ceiling = low
    return shown


def _trimmed(db: Connection, job: int) -> Any:
    return db.execute(select(LOGGED).where(LOGGED.c.job == job, LOGGED.c.lines > 0)).one_or_none()


def _first_left(shown: Sequence[tuple[int, int, int | None]], trimmed: Any) -> int:
    """Return the number of the first shown line that still exists."""
    if trimmed is None:
        return 0
    for attempt, low, high in shown:
        if attempt < trimmed.attempt and high is not None:
            return high
        if attempt == trimmed.attempt and trimmed.number > low:
            return int(trimmed.number if high is None else min(trimmed.number, high))
    return 0
