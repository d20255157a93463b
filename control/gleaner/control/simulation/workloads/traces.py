"""The reading of traces in all formats. Other modules read traces only through this one."""

import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from gleaner.control.simulation.errors import BadTrace
from gleaner.control.simulation.model import Cleaning, Seconds, Workload
from gleaner.control.simulation.workloads.cleaning import USUAL, Conventions, clean
from gleaner.control.simulation.workloads.sacct import ASK, read_sacct
from gleaner.control.simulation.workloads.swf import expected, read_swf
from gleaner.control.simulation.workloads.trace_file import Blocks, Progress, lines_of, nobody


@dataclass(frozen=True, slots=True)
class Trace:
    """A cleaned log, and the size of its machine."""

    workload: Workload
    cleaning: Cleaning
    processors: int | None
    """The number of the machine's processors according to the header, or None if it has none."""
    wait_s: Seconds
    """The time that each job of the workload waited in the log, or NaN if it is not known."""


def read(
    path: Path,
    *,
    processors: int | None = None,
    conventions: Conventions = USUAL,
    progress: Progress = nobody,
) -> Trace:
    """Return the jobs of a file that can be simulated.

    The file is in Standard Workload Format or comes from `sacct --parsable2`. `processors` is the size of the simulated
    machine. Larger jobs are left out. Without `processors`, the size in the header is used, if there is one. `progress`
    is called with MiB. Raise `BadTrace` if the file has neither format, if a line is malformed, or if no job fits.
    """
    blocks = lines_of(path, progress)
    is_sacct, looked_at = _is_sacct(path, blocks)
    blocks = chain(looked_at, blocks)
    of_header = None
    if is_sacct:
        records = read_sacct(path, blocks, size=conventions.size or "allocated")
    else:
        records, header = read_swf(path, blocks, size=conventions.size or "requested")
        of_header = _positive(header.get("MaxProcs")) or _positive(header.get("MaxNodes"))
    workload, wait_s, cleaning = clean(path, records, processors=processors or of_header, conventions=conventions)
    return Trace(workload, cleaning, of_header, wait_s)


def _is_sacct(path: Path, blocks: Blocks) -> tuple[bool, list[tuple[int, list[str]]]]:
    """Return True if the first line that is not empty is sacct's header, and the blocks that were read to find out.

    Raise `BadTrace` if the line has neither format, or if the file is empty.
    """
    looked_at: list[tuple[int, list[str]]] = []
    for block in blocks:
        looked_at.append(block)
        for line in block[1]:
            if line.strip():
                return _is_header_of_sacct(path, line.strip()), looked_at
    raise BadTrace(f"{path}: it is empty")


def _is_header_of_sacct(path: Path, line: str) -> bool:
    if line.startswith(";"):
        return False
    if "JobID" in line and "|" not in line:
        raise BadTrace(f"{path}: its columns are not separated by '|': {ASK}, without --delimiter")
    if line.replace("\t", " ").isprintable():
        if "|" in line:
            return True
        words = line.split()
        if 2 * sum(not expected(word, is_whole=False) for word in words) >= len(words):
            return False
    raise BadTrace(
        f"{path}: expected Standard Workload Format or the output of sacct --parsable2; it starts with {line[:32]!r};"
        f" {ASK}"
    )


def _positive(text: str | None) -> int | None:
    """Return the positive number with which a header's value starts, or None if there is none. -1 and 0 mean
    unknown."""
    number = re.match(r"[0-9]{1,15}(?=\s|$)", text or "")
    return int(number[0]) or None if number else None
