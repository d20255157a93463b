"""Measure the time that one slice spends on starting, restoring, computing and saving."""

from dataclasses import dataclass, field
from enum import Enum

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import RestoreMeasurement, Slice


def elapsed_s(since_s: float, now_s: float) -> float:
    """Return the time from one instant to the other, or 0 if the clock was set back in between.

    >>> elapsed_s(100.0, now_s=103.5), elapsed_s(100.0, now_s=40.0)
    (3.5, 0.0)
    """
    return max(0.0, now_s - since_s)


class Activity(Enum):
    """One of the activities of a slice."""

    STARTING = "starting"
    """The job's inputs and its image are fetched and, for a job without a checkpoint, the container is started."""
    RESTORING = "restoring"
    COMPUTING = "computing"
    SAVING = "saving"
    """The process is stopped, or saves itself."""
    OVER = "over"


@dataclass(slots=True)
class Stopwatch:
    """The time spent so far on each activity. A slice begins with `STARTING`."""

    clock: Clock = field(default_factory=SystemClock)
    started_s: float = field(init=False)
    restore_cost: RestoreMeasurement | None = None
    has_run: bool = False
    memory_s: float = 0.0
    _activity: Activity = Activity.STARTING
    _since_s: float = 0.0
    _spent_s: dict[Activity, float] = field(default_factory=dict[Activity, float])

    def __post_init__(self) -> None:
        self._since_s = self.started_s = self.clock.now_s()

    def switch_to(self, activity: Activity) -> None:
        """Record that this activity begins now."""
        now_s = self.clock.now_s()
        self._spent_s = self._spent(now_s)
        self._activity, self._since_s = activity, now_s
        self.has_run = self.has_run or activity is Activity.COMPUTING

    def slice(self) -> Slice:
        """Return the times for a report, including the time of the current activity until now."""
        spent_s = self._spent(self.clock.now_s())
        return Slice(
            started_s=self.started_s,
            start_s=spent_s.get(Activity.STARTING, 0.0),
            restore_s=spent_s.get(Activity.RESTORING, 0.0),
            memory_s=self.memory_s,
            compute_s=spent_s.get(Activity.COMPUTING, 0.0),
            save_s=spent_s.get(Activity.SAVING, 0.0),
            restored=self.restore_cost,
        )

    def _spent(self, now_s: float) -> dict[Activity, float]:
        """Return the seconds spent on each activity, always as a new record, since another thread might switch the
        activity."""
        spent_s = self._spent_s.get(self._activity, 0.0) + elapsed_s(self._since_s, now_s)
        return {**self._spent_s, self._activity: spent_s}
