"""Which running job to move, and where to: compaction, and migration with priorities.

Pure: cores of nodes and of the jobs on them come in; one job and the cores it takes elsewhere go out. Each core is one
plain function over NumPy arrays, which the simulator compiles and live control calls as it is.

Rodríguez-Pascual et al., "Job migration in HPC clusters by means of checkpoint/restart", The Journal of Supercomputing,
2019, sections 3.3.4 and 4.4 to 4.5, and the released plug-in, where the two differ in detail. Both move one job at a
time, and the caller asks only while no job waits and none is on its way: what waits would be placed better than what
runs, and two moves at once would be decided from cores that are no longer idle.

A node is partly used where some of its cores are used and some are not.
"""

import numpy as np
from numpy.typing import NDArray

_ABOVE_ALL = 2**62
"""Higher than any priority."""


def compaction(  # noqa: PLR0917 - numba takes no keywords
    used: NDArray[np.int64],
    total: NDArray[np.int64],
    job_node: NDArray[np.int64],
    job_cores: NDArray[np.int64],
    job_movable: NDArray[np.bool_],
    spreads: bool,
) -> tuple[int, NDArray[np.int64]]:
    """The job to move so that partly used nodes become full or empty, or -1; and what it takes of each node.

    Nodes are in the order in which they are filled. The first partly used one whose used cores fit in the idle cores of
    the partly used ones before it is emptied, the youngest job first. It goes to those before it, first fit, so never
    does the number of partly used nodes grow.

    Jobs are in the order of their age, `job_node` is -1 where a job has several nodes: such a job stays. A job that is
    moved may have several nodes then if it `spreads`; else it needs one that takes it whole.
    """
    taken = np.zeros(len(total), np.int64)
    idle = 0
    for node in range(len(total)):
        if used[node] == 0 or used[node] >= total[node]:
            continue
        if used[node] <= idle:
            for job in range(len(job_node) - 1, -1, -1):
                if job_node[job] != node or not job_movable[job]:
                    continue
                left = job_cores[job]
                for target in range(node):
                    room = total[target] - used[target]
                    if used[target] == 0 or room <= 0 or (room < left and not spreads):
                        continue
                    taken[target] = min(left, room)
                    left -= taken[target]
                    if left == 0:
                        return job, taken
        idle += total[node] - used[node]
    return -1, taken


def priorities(  # noqa: PLR0912, PLR0917 - one function, since the compiled one may call no other; nor keywords
    used: NDArray[np.int64],
    total: NDArray[np.int64],
    priority: NDArray[np.int64],
    job_priority: NDArray[np.int64],
    job_cores: NDArray[np.int64],
    job_movable: NDArray[np.bool_],
    spreads: bool,
) -> tuple[int, NDArray[np.int64]]:
    """The job to move up to nodes of a higher priority, or -1; and what it takes of each node.

    From the highest priority down, and for each from the lowest up: the largest job of the lower that fits in the idle
    cores of the higher, of equal ones the first. It is placed first fit.

    `priority` is the nodes', `job_priority` the highest of those that a job has. See `compaction` for `spreads`.
    """
    taken = np.zeros(len(total), np.int64)
    high = _ABOVE_ALL
    while True:
        above, high = high, -_ABOVE_ALL
        for node in range(len(total)):
            if high < priority[node] < above:
                high = priority[node]
        if high == -_ABOVE_ALL:
            return -1, taken
        idle = 0
        for node in range(len(total)):
            if priority[node] == high:
                room = total[node] - used[node]
                idle = idle + room if spreads else max(idle, room)
        best = -1
        for job in range(len(job_cores)):
            if not job_movable[job] or job_cores[job] > idle or job_priority[job] >= high:
                continue
            if (
                best < 0
                or job_priority[job] < job_priority[best]
                or (job_priority[job] == job_priority[best] and job_cores[job] > job_cores[best])
            ):
                best = job
        if best < 0:
            continue
        left = job_cores[best]
        for node in range(len(total)):
            room = total[node] - used[node]
            if priority[node] != high or room <= 0 or (room < left and not spreads):
                continue
            taken[node] = min(left, room)
            left -= taken[node]
            if left == 0:
                return best, taken
