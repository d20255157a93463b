"""Stored decisions of the policies."""

from enum import StrEnum
from typing import Any

from gleaner.control.models.base import Reply


class DecisionKind(StrEnum):
    """The effect of a decision on the jobs that it concerns."""

    START = "start"
    VICTIM = "victim"
    """The job must free its resources."""
    HOLD = "hold"
    MIGRATE = "migrate"


class DecisionRow(Reply):
    """One decision about jobs: the input of a policy and its answer.

    `given` contains the whole input, including data of other groups, such as their cores and the numbers and sizes of
    their jobs.
    """

    id: int
    at_s: float
    kind: str
    """One of `start`, `victim`, `hold` and `migrate`."""
    policy: str
    acted: bool
    """False for a dry run, in which the decision was not carried out."""
    subjects: tuple[str, ...]
    """The jobs that the decision concerns, such as `job 7` of the queue or `slurm 4711` of the scheduler."""
    given: dict[str, Any]
    answer: dict[str, Any]
