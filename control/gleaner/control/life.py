"""The life of a job: its four states, how it may end, and every arrow between them.

This module knows no table and no HTTP. The SQL in `queue.moves` is guarded by it, the tests walk
it, and the picture in the docs is drawn from it. A move that is not here cannot happen.
"""

from enum import Enum, StrEnum
from typing import Self


class State(StrEnum):
    """Where a job stands. Only `RUNNING` jobs belong to an agent."""

    NEW = "New"
    RUNNING = "Running"
    SAVED = "Saved"
    COMPLETE = "Complete"


class Outcome(StrEnum):
    """How a Complete job ended."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


WAITING = frozenset({State.NEW, State.SAVED})
"""The states from which an agent may claim a job that is not held."""


class Move(Enum):
    """One arrow: the states it may leave, and the state it reaches.

    `SAVE`, `SUCCEED`, `FAIL`, `RETRY` and `CHECKPOINT_TO_SAVED` may leave a waiting state: an attempt that was given
    up as lost stays the current one until the next claim, and its report counts however late it comes.
    `queue.moves` lets only such an attempt through; an older one is refused whatever the state.
    """

    CLAIM = (WAITING, State.RUNNING)
    """An agent takes the job; a new attempt begins."""
    SAVE = (WAITING | {State.RUNNING}, State.SAVED)
    """The attempt ended with a whole checkpoint."""
    CHECKPOINT = ({State.RUNNING}, State.RUNNING)
    """The attempt published a whole checkpoint and goes on."""
    CHECKPOINT_TO_SAVED = (WAITING, State.SAVED)
    """So did an attempt that was given up as lost; it stays given up until it is heard again."""
    SUCCEED = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload exited with 0."""
    FAIL = (WAITING | {State.RUNNING}, State.COMPLETE)
    """The workload failed by itself and no retry is left."""
    RETRY = (WAITING | {State.RUNNING}, State.NEW)
    """The workload failed by itself; it starts over."""
    LOSE_TO_SAVED = ({State.RUNNING}, State.SAVED)
    """The agent fell silent, or gave the job back; a whole checkpoint is left."""
    LOSE_TO_NEW = ({State.RUNNING}, State.NEW)
    """The agent fell silent, or gave the job back, and there is no checkpoint."""
    REVIVE = (WAITING, State.RUNNING)
    """An attempt given up as lost turns out to live, and nobody has claimed the job since."""
    START_OVER = ({State.SAVED}, State.NEW)
    """None of the job's checkpoints is whole."""
    CANCEL = ({State.NEW, State.RUNNING, State.SAVED}, State.COMPLETE)
    """The owner wants no more of it."""

    def __new__(cls, *_arrow: object) -> Self:
        """A member of its own, although several arrows have the same ends: Enum makes equal values one member."""
        member = object.__new__(cls)
        member._value_ = len(cls.__members__)
        return member

    def __init__(self, sources: frozenset[State] | set[State], target: State) -> None:
        self.sources = frozenset(sources)
        self.target = target
