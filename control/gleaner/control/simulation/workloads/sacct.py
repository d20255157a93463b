r"""Slurm's accounting as `sacct --parsable2` prints it, with a header line that names the columns, and one line per
job.

    TZ=UTC sacct --allusers --allocations --parsable2 --noconvert --starttime 2026-01-01 --endtime 2026-04-01 \
        --format JobIDRaw,Submit,Eligible,Start,ElapsedRaw,TimelimitRaw,AllocCPUS,NNodes,ReqMem,User,Account,State

The columns can be in any order, and there can be others. The required ones are JobIDRaw (which differs for each task of
an array), Submit, Start, ElapsedRaw (or Elapsed), TimelimitRaw (or Timelimit), State, and a column with a job's size:

- AllocCPUS (or NCPUS) is the number that the job held. If the job held none, ReqCPUS, the requested number, is used.
  The convention `size` can reverse this order.
- Without either of these columns, NNodes is used, and the sizes are numbers of nodes.

The other columns are optional. With End, jobs that ended before they started are left out. Without Eligible, a job
counts as ready when it was submitted. Without ReqMem, a job has no memory. Without User and Account, there is one user
and one group. Without `TZ=UTC`, the hour in which clocks are set back would occur twice. Files of several months can be
joined, because header lines after the first are skipped. The components of a heterogeneous job have separate numbers,
and count as separate jobs here.
"""

import functools
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import compress
from pathlib import Path

import numpy as np

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadTrace
from gleaner.control.simulation.model import Classes, Codes, Counts, Seconds, Workload
from gleaner.control.simulation.workloads.cleaning import UNKNOWN, Mask, Records, Size, TraceEnding, differing
from gleaner.control.simulation.workloads.trace_file import Blocks

ASK = "ask sacct as docs/simulate/workloads.md does"
"""The advice to a user whose file cannot be read. None of the columns that the page requests contains a text that users
choose."""
_NEEDED = ("JobIDRaw", "Submit", "Start", "ElapsedRaw", "TimelimitRaw", "State")
_SIZES = ("AllocCPUS", "ReqCPUS", "NNodes")
_ALSO = {"NCPUS": "AllocCPUS", "Elapsed": "ElapsedRaw", "Timelimit": "TimelimitRaw", "AllocNodes": "NNodes"}
"""Other names of columns, and the columns that have the same content."""
_DAY_S = 86400.0
_NO_LIMIT_S = 365 * _DAY_S
"""The limit that Slurm's own backfill assumes if neither the job nor its partition has one, which is a year."""
_PARTITION_LIMIT = -2.0
"""The mark for a job with its partition's limit, which the accounting does not show."""
_RUNNING = {"RUNNING", "SUSPENDED", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_GIVEN_UP = {"CANCELLED", "DEADLINE", "REVOKED"}
_REQUEUED = {"REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD", "PREEMPTED", "NODE_FAIL"}
_QUEUED_AGAIN_WITHIN_S = 3600.0
"""The longest time for which Slurm cleans the nodes of a run before it queues the job again."""
_UNKNOWN_TIMES = {"Unknown", "None", "N/A", ""}
_INVALID = "INVALID"
"""Slurm's word for a time that makes no sense, such as an end before the start."""
_MAY_BE_INVALID = ("Submit", "Eligible", "Start", "End", "ElapsedRaw", "TimelimitRaw")
_NAMES = {"User", "Account", "Cluster"}
_HOUR_S = 3600.0
_MIB = {"K": 1 / 1024, "": 1.0, "M": 1.0, "G": 1024.0, "T": 1024.0**2, "P": 1024.0**3}
_TIMES_1024 = {"": 1, "K": 1024, "M": 1024**2}
_PER_PROCESSOR, _PER_NODE = 1.0, 2.0
_OF = {"c": _PER_PROCESSOR, "n": _PER_NODE}
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
"""The number of digits that float64 can always represent."""
_COUNT = re.compile(r"(\d{1,9})([KM]?)", re.ASCII)
_MEMORY = re.compile(r"(\d{1,15}(?:\.\d+)?)([KMGTP]?)([cn]?)", re.ASCII)
_SPAN = re.compile(r"(?:(\d{1,7})-)?(\d{1,9}):(\d\d):(\d\d)", re.ASCII)
_STATE = re.compile(r"[A-Z_]+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d", re.ASCII)
_EPOCH = datetime(1970, 1, 1)


@dataclass(frozen=True, slots=True)
class _Block:
    """The columns of those lines in a block that describe jobs, and the number of each line in the file."""

    path: Path
    lines: list[int]
    columns: Mapping[str, Sequence[str]]


@dataclass(slots=True)
class _Log:
    """The columns of a log as numbers, block by block."""

    numbers: dict[str, list[Seconds]] = field(default_factory=dict[str, list[Seconds]])
    """The blocks of each column. The column `ReqMem of` shows whether each `ReqMem` is per processor, per node or per
    job."""
    codes: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])
    """The numbers that stand for names, for each column of names."""
    passed_over: Counter[str] = field(default_factory=Counter[str])
    """The rules by which lines were left out, with their counts."""

    def column(self, name: str) -> Seconds:
        """Return the whole column. If the file does not have it, the value is `UNKNOWN` for each job."""
        blocks = self.numbers.get(name)
        if blocks is None:
            return np.full(sum(map(len, self.numbers.get("JobIDRaw", []))), float(UNKNOWN))
        return np.concatenate(blocks)

    def owners(self, name: str) -> tuple[tuple[str, ...], Codes]:
        """Return the names in a column, and the index of each job's name.

        The names are in alphabetical order, so that they do not depend on the order of the lines.
        """
        codes = self.codes.get(name)
        if codes is None:
            return ("all",), np.zeros(len(self.column(name)), np.int32)
        names = tuple(sorted(codes))
        place = np.empty(len(names), np.int32)
        place[[codes[name] for name in names]] = np.arange(len(names))
        return names, place[self.column(name).astype(np.int64)]


def read_sacct(path: Path, lines: Blocks, *, size: Size) -> Records:
    """Return the jobs in the lines of a file.

    Their times are seconds since the midnight (UTC) before the first job was submitted. Job steps and jobs with invalid
    times are left out. If a job was requeued, only its last run is kept. Raise `BadTrace`, with file, line and column,
    for a value that Slurm does not write.
    """
    log = _Log()
    for block in _blocks(path, lines, log):
        for name in block.columns:
            _put(log, block, name)
    return _records(path.name, log, size)


def _blocks(path: Path, blocks: Blocks, log: _Log) -> Iterator[_Block]:
    header = ""
    places: dict[str, int] = {}
    width = 0
    for first, lines in blocks:
        rows = [line.rstrip("\r\n ") for line in lines]
        if not header:
            header = next(filter(None, rows), "")
            places, width = _places(path, first + rows.index(header), header.split("|")), header.count("|") + 1
        if not lines[-1].endswith("\n") and rows[-1] not in {"", header}:
            log.passed_over["the last line has no line end, so it may be cut short"] += 1
            rows[-1] = ""
        numbers = [number for number, row in enumerate(rows, first) if row and row != header]
        rows = [rows[number - first] for number in numbers]
        for number, row in zip(numbers, rows, strict=True):
            if row.count("|") != width - 1:
                wrong = f"expected {width} columns as in the header, found {row.count('|') + 1}"
                raise BadTrace(f"{path}, line {number}: {wrong}; a name may hold '|' or a line end: {ASK}")
        # A single split of the whole block is much faster than one per line.
        texts = "|".join(rows).split("|") if rows else []
        block = _Block(path, numbers, {name: texts[place::width] for name, place in places.items()})
        yield _jobs(block, log)


def _jobs(block: _Block, log: _Log) -> _Block:
    """Return the block without the lines that do not describe jobs or whose times are not known. These lines are
    counted.

    `101.batch` and `101.0` are steps of job 101.
    """
    block = _without("a step of a job", ["." in text for text in block.columns["JobIDRaw"]], block, log)
    times = [block.columns[name] for name in _MAY_BE_INVALID if _INVALID in block.columns.get(name, ())]
    is_invalid = [_INVALID in one for one in zip(*times, strict=True)]
    block = _without("a time that Slurm calls INVALID", is_invalid, block, log)
    return _without("no time of submission", [text in _UNKNOWN_TIMES for text in block.columns["Submit"]], block, log)


def _without(rule: str, is_met: Sequence[bool], block: _Block, log: _Log) -> _Block:
    if not any(is_met):
        return block
    log.passed_over[rule] += sum(is_met)
    stays = list(map(operator.not_, is_met))
    columns = {name: list(compress(texts, stays)) for name, texts in block.columns.items()}
    return _Block(block.path, list(compress(block.lines, stays)), columns)


def _places(path: Path, line: int, header: Sequence[str]) -> dict[str, int]:
    """Return the place of each column that is used. Raise `BadTrace` if the header lacks a column, or if there is no
    header.

    Every job's number begins with a digit, and no column's name does.
    """
    if any(name[:1].isdecimal() for name in header):
        raise BadTrace(f"{path}, line {line}: the header with the columns' names is missing: {ASK}, without --noheader")
    places = {_ALSO.get(name, name): place for place, name in reversed(list(enumerate(header)))}
    missing = [name for name in _NEEDED if name not in places]
    if not any(name in places for name in _SIZES):
        missing.append(_SIZES[0])
    if missing:
        lacks = f"the header has no column {', '.join(missing)}"
        raise BadTrace(f"{path}, line {line}: {lacks}; {ASK}")
    return {name: place for name, place in places.items() if name in {*_PARSERS, *_NAMES}}


def _put(log: _Log, block: _Block, name: str) -> None:
    texts = block.columns[name]
    if name in _NAMES:
        codes = log.codes.setdefault(name, {})
        values = np.array([codes.setdefault(text or "unknown", len(codes)) for text in texts], np.float64)
        if name == "Cluster" and len(codes) > 1:
            some = " and ".join(sorted(codes)[:2])
            raise BadTrace(f"{block.path}: it has jobs of several clusters ({some}): ask sacct for --clusters=ONE")
    else:
        parse, expected = _PARSERS[name]
        values = np.array(list(map(parse, texts)), np.float64)
        for bad in np.flatnonzero(np.isnan(values))[:1]:
            place = f"{block.path}, line {block.lines[bad]}, column {name}"
            raise BadTrace(f"{place}: expected {expected}, found {texts[bad]!r}")
    log.numbers.setdefault(name, []).append(values)
    if name == "ReqMem":
        log.numbers.setdefault("ReqMem of", []).append(np.array([_OF.get(text[-1:], 0.0) for text in texts]))


def _time_s(text: str) -> float:
    """Return the seconds since 1970 from a date or a number of seconds (`SLURM_TIME_FORMAT=%s`), or NaN for any other
    text.

    Dates before 1970 are refused, because Slurm did not exist then.
    """
    if _DATE.fullmatch(text):
        try:
            since_s = (datetime.fromisoformat(text) - _EPOCH).total_seconds()
        except ValueError:
            return math.nan
        return since_s if since_s >= 0 else math.nan
    if text in _UNKNOWN_TIMES:
        return UNKNOWN
    return float(text) if _NUMBER.fullmatch(text) else math.nan


@functools.cache
def _count(text: str) -> float:
    """Return a number of processors or nodes, or NaN for any other text. By default, Slurm writes 2048 as `2K`.

    >>> _count("2K")
    2048.0
    """
    match = _COUNT.fullmatch(text)
    return float(int(match[1]) * _TIMES_1024[match[2]]) if match else math.nan


def _job(text: str) -> float:
    return float(text) if _NUMBER.fullmatch(text) else math.nan


def _span_s(text: str) -> float:
    """Return a duration in seconds. The raw columns contain seconds, and the other columns
    `days-hours:minutes:seconds`.

    >>> _span_s("90"), _span_s("1-00:01:30")
    (90.0, 86490.0)
    """
    if _NUMBER.fullmatch(text):
        return float(text)
    match = _SPAN.fullmatch(text)
    if not match:
        return UNKNOWN if text in _UNKNOWN_TIMES else math.nan
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return days * _DAY_S + hours * 3600.0 + minutes * 60.0 + seconds


@functools.cache
def _limit_s(text: str) -> float:
    """Return a limit in seconds. The raw column contains minutes.

    >>> _limit_s("90"), _limit_s("01:30:00")
    (5400.0, 5400.0)
    """
    match text:
        case "UNLIMITED":
            return _NO_LIMIT_S
        case "Partition_Limit":
            return _PARTITION_LIMIT
        case _:
            return float(text) * 60 if _NUMBER.fullmatch(text) else _span_s(text)


@functools.cache
def _memory_mib(text: str) -> float:
    """Return the MiB of a size with a unit, or NaN for any other text.

    The size is that of each processor (`c`), of each node (`n`) or of the whole job.

    >>> _memory_mib("2Gc"), _memory_mib("512K"), _memory_mib("")
    (2048.0, 0.5, 0.0)
    """
    match = _MEMORY.fullmatch(text)
    if not match:
        return 0.0 if text in {"", "?"} else math.nan
    return float(match[1]) * _MIB[match[2]]


@functools.cache
def _ending(text: str) -> float:
    state = text.split(" ", 1)[0]  # "CANCELLED by 1000"
    if not _STATE.fullmatch(state):
        return math.nan
    if state == "PENDING":
        return TraceEnding.WAITING
    if state in _GIVEN_UP:
        return TraceEnding.CANCELLED
    if state in _REQUEUED:
        return TraceEnding.REQUEUED
    return TraceEnding.RUNNING if state in _RUNNING else TraceEnding.ENDED


_PARSERS: dict[str, tuple[Callable[[str], float], str]] = {
    "JobIDRaw": (_job, "a job's number"),
    **dict.fromkeys(("Submit", "Eligible", "Start", "End"), (_time_s, "a time such as 2026-01-31T12:00:00")),
    "ElapsedRaw": (_span_s, "seconds, or days-hours:minutes:seconds"),
    "TimelimitRaw": (_limit_s, "minutes, UNLIMITED or Partition_Limit"),
    "AllocCPUS": (_count, "a number of processors"),
    "ReqCPUS": (_count, "a number of processors"),
    "NNodes": (_count, "a number of nodes"),
    "ReqMem": (_memory_mib, "a size such as 4000M, 16Gn or 2Gc"),
    "State": (_ending, "a state of Slurm such as COMPLETED"),
}


def _records(name: str, log: _Log, size: Size) -> Records:
    job = log.column("JobIDRaw").astype(np.int64)
    submitted_s, eligible_s, start_s = (log.column(column) for column in ("Submit", "Eligible", "Start"))
    submit_s: Seconds = np.maximum(submitted_s, eligible_s)
    midnight_s = float(submit_s.min() // _DAY_S * _DAY_S) if len(job) else 0.0
    processors, nodes, differ = _sizes(log, size)
    of, memory_mib = log.column("ReqMem of"), log.column("ReqMem")
    factor: Counts = np.where(of == _PER_PROCESSOR, processors, np.where(of == _PER_NODE, nodes, 1))
    limit_s, is_partitions = _with_partition_limits(log.column("TimelimitRaw"))
    told: tuple[tuple[str, Mask], ...] = (
        ("changed: submitted only when it could start at all (a dependency, a begin time)", eligible_s > submitted_s),
        ("changed: its limit was its partition's; the longest of the log stands for it", is_partitions),
        (differing(size), differ),
    )
    users, user = log.owners("User")
    groups, group = log.owners("Account")
    jobs = Workload(
        name=name,
        job=job,
        submit_s=submit_s - midnight_s,
        run_s=log.column("ElapsedRaw"),
        limit_s=limit_s,
        processors=processors,
        memory_mib=memory_mib * factor,
        user=user,
        group=group,
        job_class=np.full(len(job), JobClass.NON_PREEMPTIBLE, np.int8),
        users=users,
        groups=groups,
    )
    wait_s = np.where(start_s >= submit_s, start_s - submit_s, float(UNKNOWN))
    stop_s, ending = log.column("End"), _endings(log.column("State"), (start_s == UNKNOWN) & (jobs.run_s <= 0))
    is_backwards = (stop_s != UNKNOWN) & (start_s != UNKNOWN) & (stop_s < start_s)
    is_twice = is_backwards & (stop_s + _HOUR_S - start_s == jobs.run_s)
    told += (("changed: it ended in the hour that comes twice; ask sacct with TZ=UTC", is_twice),)
    ending[is_backwards & ~is_twice] = TraceEnding.BACKWARDS
    records = Records(jobs, wait_s, ending, tuple(log.passed_over.items()), told)
    end_s = np.where(start_s == UNKNOWN, submitted_s, start_s) + np.maximum(jobs.run_s, 0)
    return _last_runs(records, submitted_s, end_s)


def _endings(ending: Seconds, is_without_start: Mask) -> Classes:
    """Return the way in which each job ended. A job that was queued again and has not started since is still
    waiting."""
    waits = is_without_start & (ending == TraceEnding.REQUEUED)
    ended = is_without_start & (ending == TraceEnding.ENDED)
    return np.select([waits, ended], [TraceEnding.WAITING, TraceEnding.NEVER_STARTED], ending).astype(np.int8)


def _sizes(log: _Log, size: Size) -> tuple[Counts, Counts, Mask]:
    """Return each job's processors and nodes, and a mask of the jobs whose allocated and requested processors differ.

    If the file has no column of processors, the nodes count as processors.
    """
    allocated, requested, nodes = (log.column(column) for column in _SIZES)
    first, second = (requested, allocated) if size == "requested" else (allocated, requested)
    processors: Seconds = np.where(first > 0, first, second)
    if not {"AllocCPUS", "ReqCPUS"} & log.numbers.keys():
        processors = nodes
    differ = (allocated > 0) & (requested > 0) & (allocated != requested)
    return processors.astype(np.int64), np.maximum(nodes, 1).astype(np.int64), differ


def _with_partition_limits(limit_s: Seconds) -> tuple[Seconds, Mask]:
    """Return the limits with those of partitions filled in, and a mask of the latter.

    The limit of a partition is not in the accounting, so the longest limit that a job has requested is used instead.
    """
    is_partitions = limit_s == _PARTITION_LIMIT
    named = limit_s[(limit_s > 0) & (limit_s < _NO_LIMIT_S)]
    longest_s = float(named.max()) if len(named) else _NO_LIMIT_S
    return np.where(is_partitions, longest_s, limit_s), is_partitions


def _last_runs(records: Records, submitted_s: Seconds, end_s: Seconds) -> Records:
    """Return only the last run of each job. Two jobs can have the same number, because Slurm reuses numbers after its
    highest one.

    Two lines with the same number and time of submission are the same run, for example if it is in two joined files. A
    job that Slurm queues again has a new time of submission, as soon as its nodes have been cleaned.
    """
    lines = np.lexsort((submitted_s, records.jobs.job))  # equal lines stay in the order of the file
    line, following = lines[:-1], lines[1:]
    after_s = submitted_s[following] - end_s[line]
    is_queued_again = (
        (records.ending[line] == TraceEnding.REQUEUED)
        & (records.ending[following] != TraceEnding.BACKWARDS)
        & (records.jobs.user[line] == records.jobs.user[following])
        & (after_s >= 0)
        & (after_s <= _QUEUED_AGAIN_WITHIN_S)
    )
    is_one_run = submitted_s[line] == submitted_s[following]
    earlier = line[(records.jobs.job[line] == records.jobs.job[following]) & (is_one_run | is_queued_again)]
    if not len(earlier):
        return records
    resized = int((records.ending[earlier] == TraceEnding.RUNNING).sum())
    rules = {
        "an earlier run of a job that was requeued": len(earlier) - resized,
        "an earlier line of a job that was resized": resized,
    }
    stays = np.ones(len(records.jobs), bool)
    stays[earlier] = False
    counted = ((rule, count) for rule, count in rules.items() if count)
    return replace(records.only(stays), passed_over=(*records.passed_over, *counted))
