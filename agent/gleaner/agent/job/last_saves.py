"""The saves of memory at an agent's end, as one piece of work: how long they should take, and took."""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.job.executor import Executor
from gleaner.agent.messages import Way
from gleaner.agent.timing.save_cost import SaveEstimates


@dataclass(frozen=True, slots=True)
class LastSaves:
    """Saves that began together. The error of their estimate makes the next agent's margin."""

    began_s: float
    expected_s: float
    """The time that the saves should take together, without safety."""
    jobs: tuple[Executor, ...]

    @classmethod
    def begun(cls, jobs: Sequence[Executor], estimates: SaveEstimates, *, now_s: float) -> "LastSaves | None":
        """Return the saves that these jobs have been asked for by now; None if nothing was known of their cost."""
        saving = tuple(job for job in jobs if job.is_saving and job.load.way is not Way.SELF)
        if not saving or not estimates.knows(estimates.way):
            return None
        return cls(now_s, estimates.all_s([job.load for job in saving], with_safety=False), saving)

    @property
    def was_late(self) -> bool:
        """True if one of the saves was given up."""
        return any(job.is_given_up for job in self.jobs)

    def took_s(self, now_s: float) -> float | None:
        """Return the time that the saves took, or have taken by now if one was given up; None if none was done."""
        if self.was_late:
            return max(now_s - self.began_s, 0.0)
        saved_s = [job.saved_s for job in self.jobs if job.saved_s >= self.began_s]
        return max(saved_s) - self.began_s if saved_s else None
