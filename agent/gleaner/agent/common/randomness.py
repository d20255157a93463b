"""The one source of randomness of an agent's loops. Whoever draws has it passed in; a test passes its own.

Names that must be unique, or that nobody may guess, are not drawn here: they come from `secrets`, and decide nothing.
"""

import random
from dataclasses import dataclass, field

JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Randomness:
    """Draws from one generator: the system's by default, a seeded one where a run must be repeatable."""

    generator: random.Random = field(default_factory=random.SystemRandom)

    def jittered(self, pause_s: float) -> float:
        """Return about so long a pause: agents that failed at the same instant must not all try again at one.

        >>> 7.5 <= Randomness(random.Random(1)).jittered(10) <= 12.5
        True
        """
        return pause_s * self.generator.uniform(1 - JITTER, 1 + JITTER)
