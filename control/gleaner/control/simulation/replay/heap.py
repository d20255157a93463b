"""A heap of running jobs in the order of their ends. This module is compiled.

The caller owns the arrays and must make them large enough. One entry for each unit of the machine suffices.
"""

from gleaner.control.simulation.model import Counts, Seconds
from gleaner.control.simulation.replay.compiler import inner


@inner
def push(heap_s: Seconds, heap_job: Counts, size: int, end_s: float, job: int) -> int:
    """Add a job to the heap and return the new size. If ends are equal, the job with the lower index comes first."""
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
    """Remove the first job from the heap and return the new size. The caller reads the job from entry 0 beforehand."""
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
