"""The life of a job: its four states, its three outcomes, and every transition between the states.

This module knows no table and no HTTP. `queue.transitions` guards its SQL by this module, the tests walk through
it, and the picture in the docs is drawn from it. A transition that is not here cannot happen.
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
    """The end of a Complete job."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING = frozenset({State.NEW, State.SAVED})
"""The states from which an agent may claim a job that is not held."""


class Transition(Enum):
    """One change of a job's state: the states that it may leave, and the state that it reaches.

    `SAVE`, `SUCCEED`, `FAIL`, `RETRY` and `CHECKPOINT_TO_SAVED` may leave a waiting state: an attempt that was given
    up as lost stays the current attempt until the next claim, and its report counts however late the report comes.
    `queue.transitions` lets only such an attempt through. An older attempt is refused whatever the state.
    """

    CLAIM = (WAITING, State.RUNNING)
    """An agent takes the job; a new attempt begins."""
    SAVE = (WAITING | {State.RUNNING}, State.SAVED)
    """The attempt ended with a whole checkpoint."""
    CHECKPOINT = ({State.RUNNING}, State.RUNNING)
    """The attempt published a whole checkpoint and goes on."""
    CHECKPOINT_TO_SAVED = (WAITING, State.SAVED)
    """An attempt that was given up as lost published a whole checkpoint. It stays given up until it is heard again."""
    SUCCEED = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload exited with 0."""
    FAIL = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload failed by itself, and no retry is left or would help."""
    RETRY = (WAITING | {State.RUNNING}, State.NEW)
    """The workload failed by itself, and the job starts over."""
    LOSE_TO_SAVED = ({State.RUNNING}, State.SAVED)
    """The agent fell silent, or returned the job, and a whole checkpoint is left."""
    LOSE_TO_NEW = ({State.RUNNING}, State.NEW)
    """The agent fell silent, or returned the job, and there is no checkpoint."""
    REVIVE = (WAITING, State.RUNNING)
    """An attempt that was given up as lost turns out to live, and nobody has claimed the job since."""
    START_OVER = ({State.SAVED}, State.NEW)
    """None of the job's checkpoints is whole."""
    CANCEL = ({State.NEW, State.RUNNING, State.SAVED}, State.COMPLETE)
    """The job's owner, or somebody else who may do so, has cancelled the job."""

    def __new__(cls, *_transition: object) -> Self:
        """Make a member with a number as its value.

        Several transitions have the same sources and the same target, and Enum makes one member of equal values.
        """
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member

    def __init__(self, sources: frozenset[State] | set[State], target: State) -> None:
        self.sources = frozenset(sources)
        self.target = target
