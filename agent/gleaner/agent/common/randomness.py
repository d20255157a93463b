"""The one source of randomness of an agent's loops, passed as an argument; a test passes its own.

Unique or secret names do not come from here but from `secrets`: they decide nothing.
"""

import random
from dataclasses import dataclass, field

JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Randomness:
    """Draws from one generator: the system's by default, a seeded one where a run must be repeatable."""

    generator: random.Random = field(default_factory=random.SystemRandom)

    def jitter(self, pause_s: float) -> float:
        """Return a pause of about this length: agents that failed together must not all try again together.

        >>> 7.5 <= Randomness(random.Random(1)).jitter(10) <= 12.5
        True
        """
        return pause_s * self.generator.uniform(1 - JITTER, 1 + JITTER)
