"""How one slice spends its time."""

import time
from dataclasses import dataclass, field
from enum import Enum

from gleaner.agent.protocol import RestoreMeasured, Slice


def elapsed_s(since_s: float, now_s: float | None = None) -> float:
    """The time since then; none if the clock has been set back meanwhile.

    >>> elapsed_s(100.0, now_s=103.5), elapsed_s(100.0, now_s=40.0)
    (3.5, 0.0)
    """
    return max(0.0, (time.time() if now_s is None else now_s) - since_s)


class Doing(Enum):
    """What a slice is at."""

    PREPARING = "preparing"
    COMPUTING = "computing"
    SAVING = "saving"
    """The process stands still, or saves itself."""
    OVER = "over"


@dataclass(slots=True)
class Times:
    """The time spent so far on each. It begins with preparing."""

    started_s: float = field(default_factory=time.time)
    restored: RestoreMeasured | None = None
    has_run: bool = False
    _doing: Doing = Doing.PREPARING
    _since_s: float = 0.0
    _spent_s: dict[Doing, float] = field(default_factory=dict[Doing, float])

    def __post_init__(self) -> None:
        self._since_s = self.started_s

    def turn_to(self, doing: Doing, now_s: float | None = None) -> None:
        """From now on it does this."""
        now_s = time.time() if now_s is None else now_s
        self._spent_s = self._spent(now_s)
        self._doing, self._since_s = doing, now_s
        self.has_run = self.has_run or doing is Doing.COMPUTING

    def slice(self, now_s: float | None = None) -> Slice:
        """For a report; what still goes on counts up to now."""
        spent_s = self._spent(time.time() if now_s is None else now_s)
        return Slice(
            started_s=self.started_s,
            restore_s=spent_s.get(Doing.PREPARING, 0.0),
            compute_s=spent_s.get(Doing.COMPUTING, 0.0),
            save_s=spent_s.get(Doing.SAVING, 0.0),
            restored=self.restored,
        )

    def _spent(self, now_s: float) -> dict[Doing, float]:
        """A new one each time: a report may be written while another thread turns."""
        spent_s = self._spent_s.get(self._doing, 0.0) + elapsed_s(self._since_s, now_s)
        return {**self._spent_s, self._doing: spent_s}
