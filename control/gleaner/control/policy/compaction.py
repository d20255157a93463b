"""The choice of a running job to migrate and of its target: compaction, and migration with priorities.

Pure: cores of nodes and of the jobs on them come in; one job and the cores it takes elsewhere go out. Each core is one
plain function over NumPy arrays, which the simulator compiles and live control calls as it is.

Rodríguez-Pascual et al., "Job migration in HPC clusters by means of checkpoint/restart", The Journal of Supercomputing,
2019, sections 3.3.4 and 4.4 to 4.5, and the released plug-in, where the two differ in detail. Both cores migrate one
job at a time, and the caller asks only while no job waits and none migrates: a waiting job makes better use of idle
cores than a migration, and a second migration at once would be decided from cores that are no longer idle.

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
    job_migratable: NDArray[np.bool_],
    spreads: bool,
) -> tuple[int, NDArray[np.int64]]:
    """Return the job to migrate so that partly used nodes become full or empty, and the cores it takes of each node.

    The job is -1 if none is to migrate.

    Nodes are in the order in which they are filled. One node is emptied: the first partly used node whose used cores
    fit in the idle cores of the partly used nodes before it. Its youngest job migrates first. Its jobs go to the nodes
    before it, first fit, so the number of partly used nodes never grows.

    Jobs are in the order of their age, the oldest first. `job_node` is -1 where a job has several nodes; such a job
    stays. With `spreads` a job may migrate to several nodes. Without it, the job needs one node that takes the whole
    job.
    """
    taken = np.zeros(len(total), np.int64)
    idle = 0
    for node in range(len(total)):
        if used[node] == 0 or used[node] >= total[node]:
            continue
        if used[node] <= idle:
            for job in range(len(job_node) - 1, -1, -1):
                if job_node[job] != node or not job_migratable[job]:
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


def priorities(  # noqa: PLR0912, PLR0917 - one search for a job and its nodes; numba takes no keywords
    used: NDArray[np.int64],
    total: NDArray[np.int64],
    priority: NDArray[np.int64],
    job_priority: NDArray[np.int64],
    job_cores: NDArray[np.int64],
    job_migratable: NDArray[np.bool_],
    spreads: bool,
) -> tuple[int, NDArray[np.int64]]:
    """Return the job to migrate to nodes of a higher priority, and the cores it takes of each node.

    The job is -1 if none is to migrate.

    Targets are tried from the highest priority down, and for each target priority the jobs from the lowest priority up.
    Of the jobs of one priority, the largest that fits in the idle cores of the target priority migrates; of equal jobs
    the first. The job is placed first fit.

    `priority` has the priority of each node, and `job_priority` the highest priority among the nodes of each job. See
    `compaction` for `spreads`.
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
            if not job_migratable[job] or job_cores[job] > idle or job_priority[job] >= high:
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
