"""Twins of the policies for the simulator, with the same rules over arrays of numbers, so that they can be compiled.

`policy.entitlements`, `policy.rebalancing` and `policy.provisioning` decide for live control, over jobs and nodes.
Property tests in `tests/policy` check that both make the same decisions. The twins also have features that only studies
need, namely OMFS exactly as in its listing (`literal`), and jobs that spread over several nodes. The docstring of
`policy.entitlements` explains both forms.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

_ABOVE_ALL = 2**62
"""Higher than any priority."""

REFUSE = 0
"""The job is not entitled to a start, and there are not enough idle units."""
START = 1
"""The job starts now, on idle units."""
VACATE = 2
"""The job is promised idle units, units that will soon be free, and the units of its victims, if it has any. It starts
when it has them all."""
WAIT = 3
"""The job is entitled to a start, but all possible victims are within their quantum, or there are none."""


class Asked(NamedTuple):
    """The demand of a waiting job."""

    units: int
    """Nodes, or processors."""
    owner: int
    job_class: int
    """0 for non-preemptible, 1 for preemptible (the job is killed), 2 for checkpointable (it is saved)."""


RUNNING = [(name, "i8") for name in ("units", "owner", "job_class", "priority")] + [("since_s", "f8"), ("cost_s", "f8")]
"""The fields of a running job. A higher `priority` is better. `since_s` is the time from which the job has run without
a break, and `cost_s` the duration of a save."""


class Owners(NamedTuple):
    """The owners, with one entry per owner. Units that are being vacated do not count as used."""

    used: NDArray[np.int64]
    used_fixed: NDArray[np.int64]
    """The part of the used units that non-preemptible jobs have."""
    promised: NDArray[np.int64]
    """The part of the used units that is promised to claims whose jobs have not started."""
    entitled: NDArray[np.int64]


class OmfsRules(NamedTuple):
    """The quantum, and the form of the rules (see the module's docstring)."""

    quantum_s: float
    protects: bool
    literal: bool


def is_claim(asked: int, used: int, entitled: int) -> bool:
    """Return True if the requested units fit in the unused part of the owner's entitlement."""
    return asked <= entitled - used


def would_exceed(asked: int, job_class: int, used_fixed: int, entitled: int, literal: bool) -> bool:
    """Return True if, with this job, an owner's non-preemptible jobs would exceed its entitlement."""
    return job_class == 0 and used_fixed + asked > entitled - int(literal)


def decide(  # noqa: PLR0917 - numba takes no keywords
    job: Asked,
    running: NDArray[Any],
    owners: Owners,
    idle: int,
    coming: int,
    now_s: float,
    rules: OmfsRules,
    victims: NDArray[np.int64],
) -> tuple[int, int]:
    """Return the decision on one waiting job, and the number of running jobs that are to be preempted.

    `idle` units are available now, and `coming` units soon. The positions of the running jobs to preempt are written to
    `victims`, in the order in which they were chosen. It must have room for all running jobs.
    """
    asked, owner, job_class = job
    entitled, is_enough = owners.entitled[owner], idle >= asked
    if would_exceed(asked, job_class, owners.used_fixed[owner], entitled, rules.literal):
        return REFUSE, 0
    owed = is_claim(asked, owners.used[owner], entitled)
    is_room = idle + coming > asked if rules.literal else is_enough and (owed or owners.promised[owner] == 0)
    if is_room or (owed and idle + coming >= asked):
        return (START if is_enough else VACATE), 0
    if not owed:
        return REFUSE, 0
    found = _choose(running, owners, asked - idle - coming, now_s, rules, victims)
    if found == 0:
        return (REFUSE if rules.literal else WAIT), 0
    return VACATE, found


def _choose(  # noqa: PLR0917 - numba takes no keywords
    running: NDArray[Any], owners: Owners, missing: int, now_s: float, rules: OmfsRules, victims: NDArray[np.int64]
) -> int:
    """Write to `victims` the running jobs that free the missing units. Return their number, or 0 if there are too
    few."""
    left = owners.used.copy()
    is_chosen = np.zeros(len(running), np.bool_)
    found = 0
    surplus = -missing
    while surplus < 0:
        best = _next_victim(running, owners.entitled, left, is_chosen, now_s, rules)
        if best < 0:
            return 0
        is_chosen[best] = True
        left[running[best]["owner"]] -= running[best]["units"]
        victims[found] = best
        found += 1
        surplus += running[best]["units"]
    if rules.literal:
        return found
    # The jobs chosen last can make earlier choices unnecessary. The job that was chosen last is spared first.
    for turn in range(found - 1, -1, -1):
        at = victims[turn]
        if running[at]["units"] <= surplus:
            surplus -= running[at]["units"]
            is_chosen[at] = False
    kept = 0
    for turn in range(found):
        if is_chosen[victims[turn]]:
            victims[kept] = victims[turn]
            kept += 1
    return kept


def _next_victim(  # noqa: PLR0917 - numba takes no keywords
    running: NDArray[Any],
    entitled: NDArray[np.int64],
    left: NDArray[np.int64],
    is_chosen: NDArray[np.bool_],
    now_s: float,
    rules: OmfsRules,
) -> int:
    """Return the running job that is preempted next, or -1 if there is none. `left` are the units that the owners still
    have."""
    best = -1
    best_is_young = False
    best_below = 0
    best_cost_s = 0.0
    for at in range(len(running)):
        owner = running[at]["owner"]
        is_young = now_s < running[at]["since_s"] + rules.quantum_s
        below = 0
        lost_s = 0.0
        if is_chosen[at]:
            continue
        if not rules.literal:
            if running[at]["job_class"] == 0 or left[owner] <= entitled[owner] or (rules.protects and is_young):
                continue
            below = max(0, entitled[owner] - (left[owner] - running[at]["units"]))
            lost_s = running[at]["cost_s"] if running[at]["job_class"] == 2 else now_s - running[at]["since_s"]
        if best >= 0:
            if is_young != best_is_young:
                is_better = best_is_young
            elif below != best_below:
                is_better = below < best_below
            elif running[at]["priority"] != running[best]["priority"]:
                is_better = running[at]["priority"] < running[best]["priority"]
            else:
                is_better = lost_s < best_cost_s
            if not is_better:
                continue
        best = at
        best_is_young = is_young
        best_below = below
        best_cost_s = lost_s
    return best


def agents_to_start(  # noqa: PLR0917 - numba takes no keywords
    slice_s: float, shortest_slice_s: float, at_most: int, running: int, nodes: int, places: int, waiting: int
) -> int:
    """Return the number of agents to start on idle nodes, if all agents and all waiting jobs are alike.

    An agent that starts now would have `slice_s` seconds and `places` for jobs. The `running` agents count towards
    `at_most`.
    """
    if slice_s < shortest_slice_s:
        return 0
    return max(0, min(nodes, -(-waiting // places), at_most - running))


def compaction(  # noqa: PLR0917 - numba takes no keywords
    used: NDArray[np.int64],
    total: NDArray[np.int64],
    job_node: NDArray[np.int64],
    job_cores: NDArray[np.int64],
    job_migratable: NDArray[np.bool_],
    spreads: bool,
) -> tuple[int, NDArray[np.int64]]:
    """Return the job to migrate so that partly used nodes become full or empty, and the cores that it takes on each
    node.

    The job is -1 if no job should migrate.

    Nodes are in the order in which they are filled. One node is emptied, namely the first partly used node whose used
    cores fit in the idle cores of the partly used nodes before it. Its youngest job migrates first. The jobs are placed
    by first fit on the nodes before it, so the number of partly used nodes never grows.

    Jobs are in the order of their age, the oldest first. `job_node` is -1 if a job has several nodes, and such a job
    stays. With `spreads`, a job can migrate to several nodes. Without it, one node must have room for the whole job.
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
    """Return the job to migrate to nodes of a higher priority, and the cores that it takes on each node.

    The job is -1 if no job should migrate.

    Targets are tried from the highest priority down, and for each target priority the jobs from the lowest priority up.
    Among the jobs of one priority, the largest that fits in the idle cores of the target priority migrates. If several
    are equally large, the first one migrates. The job is placed by first fit.

    `priority` is the priority of each node, and `job_priority` the highest priority among the nodes of each job. See
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
