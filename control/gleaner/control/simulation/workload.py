"""The regular jobs of a simulation: arrays with one entry a job, in order of submission."""

from dataclasses import dataclass, field, fields
from typing import Self

import numpy as np
from numpy.typing import NDArray

Seconds = NDArray[np.float64]
"""Seconds from the workload's own origin. Whole numbers are exact, so two instants of a trace compare as in it."""
Counts = NDArray[np.int64]
Codes = NDArray[np.int32]
"""Indices into a tuple of names."""
Classes = NDArray[np.int8]


@dataclass(frozen=True, slots=True)
class Workload:
    """Regular jobs by time of submission; ties are in the order of the source. Every array has one entry a job."""

    name: str
    job: Counts
    """The numbers that the source gave them."""
    submit_s: Seconds
    run_s: Seconds
    """How long it runs where nothing interrupts it, on a node of speed 1. Never more than `limit_s`."""
    limit_s: Seconds
    """What the scheduler is told of it."""
    processors: Counts
    memory_mib: Seconds
    """All of its memory; 0 where the source does not say."""
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
        """The same with these jobs alone, in the order they are named."""
        arrays = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        others = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in _ARRAYS}
        return type(self)(**arrays, **others)


_ARRAYS = ("job", "submit_s", "run_s", "limit_s", "processors", "memory_mib", "user", "group", "job_class")


@dataclass(frozen=True, slots=True)
class Cleaning:
    """What was done to a workload before its use: each rule, and how many jobs it met. None that met no job."""

    read: int
    rules: tuple[tuple[str, int], ...] = field(default=())
    """For example `("left out: cancelled before it started", 17)`."""
