"""Reading a trace, whatever its format: the one door."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.control.simulation.failures import BadTrace
from gleaner.control.simulation.workload import Cleaning, Seconds, Workload
from gleaner.control.simulation.workloads.cleaning import Records, clean
from gleaner.control.simulation.workloads.sacct import read_sacct
from gleaner.control.simulation.workloads.source import lines_of
from gleaner.control.simulation.workloads.swf import read_swf


@dataclass(frozen=True, slots=True)
class Trace:
    """A log, cleaned, and what else its file says."""

    workload: Workload
    cleaning: Cleaning
    processors: int | None
    """What the header says the machine has."""
    wait_s: Seconds
    """What each job of the workload waited in the log; NaN where that is not known."""
    starts_at: float | None = None
    """Second 0 of the workload, in seconds since 1970, if the file says so."""
    header: Mapping[str, str] = field(default_factory=dict[str, str])


def read(path: Path, *, processors: int | None = None) -> Trace:
    """The jobs of a file in Standard Workload Format, or of `sacct --parsable2`, that can be simulated.

    `processors` is the size of the simulated machine; larger jobs are left out. Without it the header's counts, if
    there is one. Raises `BadTrace` if the file is neither, a line is not what it should be, or no job fits.
    """
    if _is_sacct(path):
        records, starts_at = read_sacct(path)
        return _trace(path, records, processors=processors, of_header=None, starts_at=starts_at, header={})
    log = read_swf(path)
    return _trace(
        path,
        log.records,
        processors=processors,
        of_header=_positive(log.header.get("MaxProcs")) or _positive(log.header.get("MaxNodes")),
        starts_at=_positive(log.header.get("UnixStartTime")),
        header=log.header,
    )


def _trace(
    path: Path,
    records: Records,
    *,
    processors: int | None,
    of_header: int | None,
    starts_at: float | None,
    header: Mapping[str, str],
) -> Trace:
    if not len(records):
        raise BadTrace(f"{path}: it holds no jobs")
    cleaned = clean(records, processors=processors or of_header)
    return Trace(cleaned.workload, cleaned.cleaning, of_header, cleaned.wait_s, starts_at, header)


def _is_sacct(path: Path) -> bool:
    """Seen from the first line that is not empty. Raises `BadTrace` if it is of neither format."""
    for _, lines in lines_of(path):
        for line in lines:
            if line.strip():
                return _is_header_of_sacct(path, line.strip())
    raise BadTrace(f"{path}: it is empty")


def _is_header_of_sacct(path: Path, line: str) -> bool:
    if line.startswith(";"):
        return False
    if "|" in line:
        return True
    words = line.split()
    if 2 * sum(map(_is_number, words)) >= len(words):
        return False
    raise BadTrace(
        f"{path}: expected Standard Workload Format or the output of sacct --parsable2; it starts with {line[:40]!r}"
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _positive(text: str | None) -> int | None:
    """The number that a header's value starts with, if it is one; -1 and 0 mean unknown."""
    number = (text or "").split(maxsplit=1)[:1]
    return int(number[0]) if number and number[0].isdigit() and int(number[0]) > 0 else None
