"""When an agent starts to save: from what must be written and how fast this node wrote before. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

KEPT = 20
"""So many measurements are kept for a node."""
MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Measured:
    """One round of saves on this node: all containers of the agent together."""

    size_bytes: int
    took_s: float


def expected_save_s(memory_bytes: int, measured: Sequence[Measured], *, assumed_mib_s: float) -> float:
    """Seconds to save and publish `memory_bytes`, going by this node's slower saves.

    The lower quartile of the measured rates counts, not their mean: a save that is late loses a whole slice,
    one that is early loses seconds. Small saves are mostly overhead and give low rates, so the shortest time
    seen for any save bounds the answer from below and a rate is taken from comparable sizes where there are any.

    >>> expected_save_s(200 * MIB, [], assumed_mib_s=20)
    10.0
    >>> expected_save_s(200 * MIB, [Measured(100 * MIB, 2.0), Measured(100 * MIB, 4.0)], assumed_mib_s=20)
    8.0
    """
    if not measured:
        return memory_bytes / (assumed_mib_s * MIB)
    alike = [m for m in measured if m.size_bytes * 4 >= memory_bytes] or list(measured)
    rates = sorted(max(m.size_bytes, 1) / max(m.took_s, 1e-3) for m in alike)
    rate = rates[len(rates) // 4]
    return max(memory_bytes / rate, min(m.took_s for m in measured))


def save_point_s(*, end_s: float, margin_s: float, save_s: float) -> float:
    """The instant (seconds since the epoch) at which saving has to begin.

    >>> save_point_s(end_s=1000, margin_s=20, save_s=30)
    950
    """
    return end_s - margin_s - save_s


def remembered(measured: Sequence[Measured], new: Measured) -> tuple[Measured, ...]:
    """The measurements to keep: the newest `KEPT`."""
    return (*measured, new)[-KEPT:]
