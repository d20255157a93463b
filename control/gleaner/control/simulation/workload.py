"""The regular jobs of a simulation: arrays with one entry per job, in order of submission."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadScenario

Seconds = NDArray[np.float64]
"""Seconds from the workload's own origin. Whole numbers are exact, so two instants compare as in the trace."""
Counts = NDArray[np.int64]
Codes = NDArray[np.int32]
"""Indices into a tuple of names."""
Classes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Workload:
    """Regular jobs by time of submission; ties are in the order of the source. Every array has one entry per job."""

    name: str
    job: Counts
    """The numbers that the source gave the jobs."""
    submit_s: Seconds
    run_s: Seconds
    """The time that each job runs without interruption on a node of speed 1. Never more than `limit_s`."""
    limit_s: Seconds
    """The run time that the scheduler is told."""
    processors: Counts
    memory_mib: Seconds
    """The memory of each whole job; 0 where the source does not say."""
    user: Codes
    group: Codes
    job_class: Classes
    users: tuple[str, ...] = ("all",)
    groups: tuple[str, ...] = ("all",)

    def __len__(self) -> int:
        return len(self.job)

    def __post_init__(self) -> None:
        lengths = {f.name: len(getattr(self, f.name)) for f in fields(self) if f.name in _ARRAYS}
        if len(set(lengths.values())) != 1:
            raise ValueError(f"arrays of different lengths: {lengths}")

    def only(self, chosen: NDArray[np.bool_] | Counts) -> Self:
        """Return the workload with these jobs alone, in the order in which they are named."""
        arrays = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        return type(self)(**arrays, **others)


_ARRAYS = ("job", "submit_s", "run_s", "limit_s", "processors", "memory_mib", "user", "group", "job_class")


def refuse_strangers(where: str, what: str, named: Iterable[str], known: tuple[str, ...], workload: str) -> None:
    """Raise `BadScenario` for the first user or group of the settings (at `where`) that the workload does not know."""
    strangers = sorted(set(named) - set(known))
    if strangers:
        some = ", ".join(known[:5]) + (", …" if len(known) > 5 else "")
        raise BadScenario(f"{where}: {strangers[0]!r} is no {what} of {workload} (it has {some})")


@dataclass(frozen=True, slots=True)
class Cleaning:
    """The cleaning of a workload before its use: each rule that met jobs, and how many jobs the rule met."""

    read: int
    rules: tuple[tuple[str, int], ...] = field(default=())
    """For example `("left out: cancelled before it started", 17)`."""
