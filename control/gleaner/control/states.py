"""The life of a job: its four states, its three outcomes, and every transition between the states.

This module contains no tables and no HTTP. `queue.transitions` uses it to guard its SQL, the tests use it to walk
through all states, and the picture in the docs is drawn from it. A transition that is missing here cannot happen.
"""

from enum import Enum, StrEnum
from typing import Self


class State(StrEnum):
    """The state of a job. Only `RUNNING` jobs belong to an agent."""

    NEW = "New"
    RUNNING = "Running"
    SAVED = "Saved"
    COMPLETE = "Complete"


class Outcome(StrEnum):
    """The way in which a Complete job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING = frozenset({State.NEW, State.SAVED})
"""The states from which an agent can claim a job that is not held."""


class Transition(Enum):
    """One change of a job's state: its possible source states, and its target state.

    `SAVE`, `SUCCEED`, `FAIL`, `RETRY` and `CHECKPOINT_TO_SAVED` can leave a waiting state, because an attempt that was
    given up as lost stays the current attempt until the next claim. Until then its report counts, however late it
    arrives. `queue.transitions` accepts only such an attempt. An older attempt is refused in every state.
    """

    CLAIM = (WAITING, State.RUNNING)
    """An agent takes the job, and a new attempt begins."""
    SAVE = (WAITING | {State.RUNNING}, State.SAVED)
    """The attempt ended with a complete checkpoint."""
    CHECKPOINT = ({State.RUNNING}, State.RUNNING)
    """The attempt published a complete checkpoint and continues."""
    CHECKPOINT_TO_SAVED = (WAITING, State.SAVED)
    """An attempt that was given up as lost published a complete checkpoint. The attempt still counts as given up until
    it reports again."""
    SUCCEED = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload exited with 0."""
    FAIL = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload itself failed, and a retry is impossible or useless."""
    RETRY = (WAITING | {State.RUNNING}, State.NEW)
    """The workload itself failed, and the job is tried again."""
    LOSE_TO_SAVED = ({State.RUNNING}, State.SAVED)
    """The agent fell silent or returned the job, which has a complete checkpoint."""
    LOSE_TO_NEW = ({State.RUNNING}, State.NEW)
    """The agent fell silent or returned the job, which has no checkpoint."""
    REVIVE = (WAITING, State.RUNNING)
    """An attempt that was given up as lost is still alive, and the job has not been claimed since."""
    START_OVER = ({State.SAVED}, State.NEW)
    """None of the job's checkpoints is usable."""
    CANCEL = ({State.NEW, State.RUNNING, State.SAVED}, State.COMPLETE)
    """The job was cancelled by its owner or by another user with the right to do so."""
    RERUN = ({State.COMPLETE}, State.NEW)
    """A user runs a failed or cancelled job again. The job starts from its beginning."""

    def __new__(cls, *_transition: object) -> Self:
        """Create a member with a number as its value.

        Several transitions have the same sources and the same target, and Enum would merge members with equal values.
        """
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member

    def __init__(self, sources: frozenset[State] | set[State], target: State) -> None:
        self.sources = frozenset(sources)
        self.target = target
