"""A straight line through the times of saves, or restores, of several sizes; for the agent and for control. Pure."""

from dataclasses import dataclass

MIB = 2**20
LEAST_MIB = 16.0
"""A smaller save or restore counts as one of this size: its time says nothing of a large one."""
FASTEST_MIB_S = 20_480.0
"""No storage here is faster; a line that says so was drawn through saves whose time did not depend on their size."""


@dataclass(frozen=True, slots=True)
class Sums:
    """Weighted sums over measurements of (MiB, seconds), enough for a straight line through them."""

    count: float = 0.0
    mib: float = 0.0
    s: float = 0.0
    mib_mib: float = 0.0
    mib_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Line:
    """`fixed_s` plus a size over `mib_s` is what it takes."""

    fixed_s: float
    mib_s: float


def line(sums: Sums) -> Line | None:
    """Return the line of least squares, with no negative fixed time or rate; None without measurements.

    Where all had nearly the same size, which part of the time was fixed cannot be known: all of it counts as growing
    with the size, so that a larger one is not begun too late.

    >>> line(Sums(count=2, mib=400, s=3.0, mib_mib=100**2 + 300**2, mib_s=100 * 1.0 + 300 * 2.0))
    Line(fixed_s=0.5, mib_s=200.0)
    """
    if sums.count <= 0 or sums.mib <= 0:
        return None
    mean_mib, mean_s = sums.mib / sums.count, sums.s / sums.count
    spread = sums.mib_mib / sums.count - mean_mib**2
    least = 1 / FASTEST_MIB_S
    if spread <= (0.05 * mean_mib) ** 2:
        return Line(0.0, 1 / max(mean_s / mean_mib, least))
    slope = max((sums.mib_s / sums.count - mean_mib * mean_s) / spread, least)
    fixed_s = mean_s - slope * mean_mib
    if fixed_s < 0:  # through the origin instead
        return Line(0.0, 1 / max(sums.mib_s / sums.mib_mib, least))
    return Line(fixed_s, 1 / slope)
