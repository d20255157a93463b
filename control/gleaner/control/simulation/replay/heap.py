"""Running jobs in two orders: by their ends (a heap), and by their expected ends (a sorted list).

The functions are compiled. They work on arrays that the caller owns and has made large enough: one entry for each unit
of the machine will do. Where entries are shifted, the indices are unsigned and each array has a loop of its own: an
index that might be negative keeps the compiler from shifting many entries at a time (four times slower at 600 entries).
"""

import numpy as np

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay.compiler import inner


@inner
def push(heap_s: Seconds, heap_job: Counts, size: int, end_s: float, job: int) -> int:
    """Add a job to the heap; return the new size. Of equal ends the job with the lower index comes first."""
    at = size
    while at > 0:
        above = (at - 1) // 2
        if heap_s[above] < end_s or (heap_s[above] == end_s and heap_job[above] < job):
            break
        heap_s[at] = heap_s[above]
        heap_job[at] = heap_job[above]
        at = above
    heap_s[at] = end_s
    heap_job[at] = job
    return size + 1


@inner
def pop(heap_s: Seconds, heap_job: Counts, size: int) -> int:
    """Remove the first job from the heap; return the new size. The caller has read the job from entry 0."""
    size -= 1
    end_s = heap_s[size]
    job = heap_job[size]
    at = 0
    below = 1
    while below < size:
        other = below + 1
        if other < size and (
            heap_s[other] < heap_s[below] or (heap_s[other] == heap_s[below] and heap_job[other] < heap_job[below])
        ):
            below = other
        if end_s < heap_s[below] or (end_s == heap_s[below] and job < heap_job[below]):
            break
        heap_s[at] = heap_s[below]
        heap_job[at] = heap_job[below]
        at = below
        below = 2 * at + 1
    heap_s[at] = end_s
    heap_job[at] = job
    return size


@inner
def _place(ends_s: Seconds, running: int, end_s: float) -> int:
    """Return how many of the expected ends are earlier. NumPy's search would take a tenth of a second to compile."""
    low, high = 0, running
    while low < high:
        middle = (low + high) // 2
        if ends_s[middle] < end_s:
            low = middle + 1
        else:
            high = middle
    return low


@inner
def expect(ends_s: Seconds, ends_units: Counts, running: int, end_s: float, units: int) -> int:
    """Expect these units at `end_s`; return how many expected ends there are now. Each end has one entry."""
    at = _place(ends_s, running, end_s)
    if at < running and ends_s[at] == end_s:
        ends_units[at] += units
        return running
    one, low, entry = np.uint64(1), np.uint64(at), np.uint64(running)
    while entry > low:
        ends_s[entry] = ends_s[entry - one]
        entry -= one
    entry = np.uint64(running)
    while entry > low:
        ends_units[entry] = ends_units[entry - one]
        entry -= one
    ends_s[at] = end_s
    ends_units[at] = units
    return running + 1


@inner
def forget(ends_s: Seconds, ends_units: Counts, running: int, end_s: float, units: int) -> int:
    """Expect these units at `end_s` no more; return how many expected ends there are now."""
    at = _place(ends_s, running, end_s)
    ends_units[at] -= units
    if ends_units[at] > 0:
        return running
    one, entry, last = np.uint64(1), np.uint64(at), np.uint64(running - 1)
    while entry < last:
        ends_s[entry] = ends_s[entry + one]
        entry += one
    entry = np.uint64(at)
    while entry < last:
        ends_units[entry] = ends_units[entry + one]
        entry += one
    return running - 1
