"""The Standard Workload Format, version 2.2, of the Parallel Workloads Archive, with one line of 18 numbers per job.

If the format has two numbers for the same property of a job, this module uses:

- processors: requested (field 8), else allocated (field 5), or in the opposite order if the convention `size` requires
  it;
- limit: requested time (field 9), or the run time if there is none (see `cleaning`);
- memory: requested (field 10), else used (field 7). The file has KB per processor, which this module converts to MiB
  for the whole job.
"""

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.simulation.errors import BadTrace
from gleaner.control.simulation.model import Codes, Workload
from gleaner.control.simulation.workloads.cleaning import UNKNOWN, Records, Size, TraceEnding, differing
from gleaner.control.simulation.workloads.trace_file import Blocks

FIELDS = (
    "job number",
    "submit time",
    "wait time",
    "run time",
    "allocated processors",
    "average CPU time",
    "used memory",
    "requested processors",
    "requested time",
    "requested memory",
    "status",
    "user",
    "group",
    "executable",
    "queue",
    "partition",
    "preceding job",
    "think time",
)
_WHOLE = (0, 4, 7, 10, 11, 12)
"""The fields that are read and must be whole numbers."""
_READ = (0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11, 12)
_ENDINGS = {2: TraceEnding.PART, 3: TraceEnding.PART, 4: TraceEnding.PART, 5: TraceEnding.CANCELLED}
_COMMENT = re.compile(r"\s*;\s*(\w+)\s*:\s*(.*?)\s*$")
_KB_PER_MIB = 1024.0
_EXACT = 2.0**53
"""The number above which float64 cannot represent every whole number."""


def read_swf(path: Path, blocks: Blocks, *, size: Size) -> tuple[Records, Mapping[str, str]]:
    """Return the jobs in the lines of a file, and the value of each label in its header, such as `MaxProcs`.

    If a label occurs twice, the first one counts. Raise `BadTrace`, with file, line and field, for a line that is not
    18 numbers.
    """
    header: dict[str, str] = {}
    rows: list[NDArray[np.float64]] = []
    for first, lines in blocks:
        if any(";" in line for line in lines):
            for match in map(_COMMENT.match, lines):
                if match:
                    header.setdefault(match[1], match[2])
            # A comment is replaced by an empty line, so that lines are counted correctly.
            lines = ["\n" if line.lstrip().startswith(";") else line for line in lines]  # noqa: PLW2901
        rows.append(_numbers(path, first, lines)[:, _READ])
    whole = np.concatenate(rows) if rows else np.empty((0, len(_READ)))
    return _records(path.name, whole, size), header


def _numbers(path: Path, first: int, lines: list[str]) -> NDArray[np.float64]:
    """Return one row for each line that is not empty. Raise `BadTrace` for a bad line.

    The fields that must be whole numbers are checked.
    """
    if not any(map(str.strip, lines)):
        return np.empty((0, len(FIELDS)))
    try:
        rows = np.loadtxt([" ".join(line.split()) for line in lines], comments=None, ndmin=2)
    except ValueError:
        raise _bad_line(path, first, lines) from None
    whole = rows[:, _WHOLE] if rows.shape[1] == len(FIELDS) else rows
    # No comparison holds for NaN.
    if whole is rows or not (np.abs(rows) <= _EXACT).all() or not (np.rint(whole) == whole).all():
        raise _bad_line(path, first, lines)
    return np.asarray(rows, dtype=np.float64)


def _bad_line(path: Path, first: int, lines: list[str]) -> BadTrace:
    """Return an error about the first bad line. This function is slow, so it is called only for a bad file."""
    for number, line in enumerate(lines, first):
        found = line.split()
        for place, (name, text) in enumerate(zip(FIELDS, found, strict=False)):
            wrong = expected(text, is_whole=place in _WHOLE)
            if wrong:
                return BadTrace(f"{path}, line {number}, field {place + 1} ({name}): expected {wrong}, found {text!r}")
        if found and len(found) < len(FIELDS):
            return BadTrace(
                f"{path}, line {number}: it ends after field {len(found)} ({FIELDS[len(found) - 1]}); expected "
                f"{len(FIELDS)} fields"
            )
        if len(found) > len(FIELDS):
            return BadTrace(f"{path}, line {number}: {len(found)} fields; expected {len(FIELDS)}")
    raise AssertionError(f"{path}: a line was refused that nothing is wrong with")


def expected(text: str, *, is_whole: bool) -> str:
    """Return a description of the expected text, or an empty text if the given one is valid."""
    try:
        value = float(text)
    except ValueError:
        return "a number"
    if not np.isfinite(value) or "_" in text or not text.isascii():
        return "a number"
    if is_whole and value != round(value):
        return "a whole number"
    return "" if abs(value) <= _EXACT else "a number of at most 15 digits"


def _records(name: str, rows: NDArray[np.float64], size: Size) -> Records:
    column: dict[str, NDArray[np.float64]] = {FIELDS[place]: rows[:, i].copy() for i, place in enumerate(_READ)}
    requested, allocated = column["requested processors"], column["allocated processors"]
    processors = _of_two(requested, allocated) if size == "requested" else _of_two(allocated, requested)
    kb = _of_two(column["requested memory"], column["used memory"])
    ending = np.zeros(len(rows), np.int8)
    for code, meaning in _ENDINGS.items():
        ending[column["status"] == code] = meaning
    users, user = _names(column["user"])
    groups, group = _names(column["group"])
    jobs = Workload(
        name=name,
        job=column["job number"].astype(np.int64),
        submit_s=column["submit time"],
        run_s=column["run time"],
        limit_s=column["requested time"],
        processors=processors.astype(np.int64),
        memory_mib=np.where(kb > 0, kb * np.maximum(processors, 0) / _KB_PER_MIB, float(UNKNOWN)),
        user=user,
        group=group,
        job_class=np.full(len(rows), JobClass.NON_PREEMPTIBLE, np.int8),
        users=users,
        groups=groups,
    )
    told = ((differing(size), (requested > 0) & (allocated > 0) & (requested != allocated)),)
    return Records(jobs, column["wait time"], ending, told=told)


def _of_two(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(first > 0, first, second)


def _names(numbers: NDArray[np.float64]) -> tuple[tuple[str, ...], Codes]:
    """Return the names, and the index of each job's name. The numbers in the format are used as names."""
    values, codes = np.unique(numbers, return_inverse=True)
    return tuple("unknown" if value < 0 else f"{value:.0f}" for value in values), codes.astype(np.int32)
