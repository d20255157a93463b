"""Files in Standard Workload Format that tests write."""

import gzip
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from gleaner.control.simulation.metrics.tables import shortest
from gleaner.control.simulation.model import Seconds, Workload
from gleaner.control.simulation.workloads.cleaning import UNKNOWN

_NAME_OF_DIGITS = re.compile(r"[0-9]{1,15}")
_KB_PER_MIB = 1024.0


def write_swf(path: Path, workload: Workload, *, header: Mapping[str, object], wait_s: Seconds | None = None) -> None:
    """Write a file of the workload, compressed if the path ends in `.gz`. Equal workloads give equal bytes.

    Users and groups are written as numbers: as their names where all names are numbers, else as their places from 1.
    """
    text = "".join(_lines(workload, header, wait_s)).encode("ascii", "replace")
    # Without name and time in the gzip header, equal workloads are equal files.
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)


def _lines(workload: Workload, header: Mapping[str, object], wait_s: Seconds | None) -> Iterator[str]:
    yield "; Version: 2.2\n"
    for label, value in header.items():
        yield f"; {label}: {value}\n"
    users, groups = _numbered(workload.users), _numbered(workload.groups)
    kb = workload.memory_mib * _KB_PER_MIB / workload.processors
    for index, job in enumerate(workload.job.tolist()):
        size = workload.processors[index]
        wait = UNKNOWN if wait_s is None or np.isnan(wait_s[index]) else wait_s[index]
        memory = kb[index] if kb[index] > 0 else UNKNOWN
        times = (shortest(value) for value in (workload.submit_s[index], wait, workload.run_s[index]))
        owner = f"{users[workload.user[index]]} {groups[workload.group[index]]}"
        limit = shortest(workload.limit_s[index])
        yield f"{job} {' '.join(times)} {size} -1 -1 {size} {limit} {shortest(memory)} 1 {owner} -1 -1 -1 -1 -1\n"


def _numbered(names: tuple[str, ...]) -> list[int]:
    if all(_NAME_OF_DIGITS.fullmatch(name) or name == "unknown" for name in names):
        return [UNKNOWN if name == "unknown" else int(name) for name in names]
    return list(range(1, len(names) + 1))
