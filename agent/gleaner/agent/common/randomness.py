"""Provide the only source of randomness for an agent's loops. It is passed as an argument, and a test passes its own.

Unique or secret names do not come from here but from `secrets`, because no decision depends on them.
"""

import random
from dataclasses import dataclass, field

JITTER = 0.25


@dataclass(frozen=True, slots=True)
class Randomness:
    """Random draws from one generator, by default the system's, or a seeded one where a run must be repeatable."""

    generator: random.Random = field(default_factory=random.SystemRandom)

    def jitter(self, pause_s: float) -> float:
        """Return a pause of about this length, so that agents that failed together do not all retry at once.

        >>> 7.5 <= Randomness(random.Random(1)).jitter(10) <= 12.5
        True
        """
        return pause_s * self.generator.uniform(1 - JITTER, 1 + JITTER)
