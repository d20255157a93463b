"""The duration of all memory saves at an agent's end together, expected and measured."""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import Way
from gleaner.agent.timing.save_cost import SaveEstimates


@dataclass(frozen=True, slots=True)
class LastSaves:
    """Saves that began together. The error of their estimate determines the next agent's safety factor."""

    began_s: float
    expected_s: float
    """The expected time of all the saves together, without the safety factor."""
    jobs: tuple[Executor, ...]

    @classmethod
    def begin(cls, jobs: Sequence[Executor], estimates: SaveEstimates, *, now_s: float) -> "LastSaves | None":
        """Return the saves that these jobs have just begun; None without measurements of their cost."""
        saving = tuple(job for job in jobs if job.is_saving and job.load.way is not Way.SELF)
        if not saving or not estimates.knows(estimates.way):
            return None
        return cls(now_s, estimates.all_s([job.load for job in saving], with_safety=False), saving)

    @property
    def was_late(self) -> bool:
        """True if one of the saves was abandoned."""
        return any(job.is_given_up for job in self.jobs)

    def took_s(self, now_s: float) -> float | None:
        """Return the time that the saves took, up to now if one was abandoned; None if no save was finished."""
        if self.was_late:
            return max(now_s - self.began_s, 0.0)
        ends_s = [job.last_save_s for job in self.jobs if job.last_save_s >= self.began_s]
        return max(ends_s) - self.began_s if ends_s else None
