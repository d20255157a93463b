"""The saves of memory that an agent's end has asked for, as one piece of work: how long it should take, and took."""

from collections.abc import Sequence
from dataclasses import dataclass

from gleaner.agent.estimates import Estimates
from gleaner.agent.protocol import Way
from gleaner.agent.shell import TaskShell


@dataclass(frozen=True, slots=True)
class LastSaves:
    """They began together. The next agent's margin comes from how far the estimate of them was off."""

    began_s: float
    expected_s: float
    """Without safety."""
    shells: tuple[TaskShell, ...]

    @classmethod
    def begun(cls, shells: Sequence[TaskShell], estimates: Estimates, *, now_s: float) -> "LastSaves | None":
        """Return the saves that these jobs have been asked for by now; None if nothing was known of their cost."""
        saving = tuple(shell for shell in shells if shell.is_saving and shell.load.way is not Way.SELF)
        if not saving or not estimates.knows(estimates.way):
            return None
        return cls(now_s, estimates.all_s([shell.load for shell in saving], with_safety=False), saving)

    @property
    def was_late(self) -> bool:
        """Whether one of them was given up."""
        return any(shell.is_given_up for shell in self.shells)

    def took_s(self, now_s: float) -> float | None:
        """Return how long they took, or have taken by now if one was given up; None: none of them was done."""
        if self.was_late:
            return max(now_s - self.began_s, 0.0)
        saved_s = [shell.saved_s for shell in self.shells if shell.saved_s >= self.began_s]
        return max(saved_s) - self.began_s if saved_s else None
