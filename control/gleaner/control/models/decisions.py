"""Stored decisions of the policies."""

from enum import StrEnum
from typing import Any

from gleaner.control.models.base import Reply


class DecisionKind(StrEnum):
    """The effect of a decision on the jobs that it is about."""

    START = "start"
    VICTIM = "victim"
    """The job is to free what it holds."""
    HOLD = "hold"
    MIGRATE = "migrate"


class DecisionRow(Reply):
    """One decision about jobs: the input of a policy and its answer.

    `given` holds the whole input, that of other groups too: their cores, and the numbers and sizes of their jobs.
    """

    id: int
    at_s: float
    kind: str
    """start, victim, hold or migrate."""
    policy: str
    acted: bool
    """False: a dry run, nothing was done."""
    subjects: tuple[str, ...]
    """The jobs that it is about: `job 7` of the queue, `slurm 4711` of the scheduler."""
    given: dict[str, Any]
    answer: dict[str, Any]
