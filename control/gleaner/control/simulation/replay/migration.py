"""The migration of a running job. The policy chooses it, and this module records it in the ledger. The code is
compiled."""

import numpy as np

from gleaner.control.simulation.replay import array_policies
from gleaner.control.simulation.replay.compiler import compiled, inner, making
from gleaner.control.simulation.replay.ledger import BY_JOB, Ledger, extend, settle

compaction = making(array_policies.compaction)
priorities = making(array_policies.priorities)

NONE, COMPACTION, PRIORITIES = range(3)
"""The kinds of migration, in the order of `settings.Migration`."""


@compiled
def migrate(book: Ledger, now_s: float, kind: int, whole: bool) -> float:
    """Start the migration that the policy chooses now. Return the time at which the job computes again, or infinity if
    no job migrates."""
    running = int(book.many[BY_JOB])
    used, total, level = np.empty((3, len(book.nodes)), np.int64)
    for at in range(len(book.nodes)):
        total[at] = book.nodes[at]["cores"]
        used[at] = total[at] - book.nodes[at]["free"]
        level[at] = -book.nodes[at]["level"]
    node, priority, cores = np.empty((3, running), np.int64)
    migratable = np.empty(running, np.bool_)
    for at in range(running):
        stretch = book.running[BY_JOB, running - 1 - at]["stretch"]
        first = book.stretches[stretch]["ranges"]
        is_on_one = book.stretches[stretch + 1]["ranges"] == first + 1 and book.ranges[first]["nodes"] == 1
        node[at] = book.ranges[first]["node"] if is_on_one else -1
        priority[at] = level[book.ranges[first]["node"]]
        job = book.jobs[book.stretches[stretch]["job"]]
        cores[at] = job["processors"]
        migratable[at] = job["migratable"] != 0
    if kind == COMPACTION:
        found, taken = compaction(used, total, node, cores, migratable, True)
    else:
        found, taken = priorities(used, total, level, priority, cores, migratable, True)
    if found < 0:
        return np.inf

    ranges_end = int(book.stretches[book.many[3]]["ranges"])
    will_be = np.inf
    for at in range(len(taken)):
        if taken[at] > 0:
            ranges_end = extend(book, ranges_end, at, total[at] if whole else taken[at])
            will_be = min(will_be, book.nodes[at]["speed"])
    return _carry(book, now_s, book.running[BY_JOB, running - 1 - found]["stretch"], ranges_end, will_be)


@inner
def _carry(book: Ledger, now_s: float, stretch: int, ranges_end: int, will_be: float) -> float:
    """End the job's old stretch with a save and begin a new stretch with a restore. Return the time at which the job
    computes again.

    The new stretch holds its cores from now on.
    """
    old = book.stretches[stretch]
    job = book.jobs[old["job"]]
    was = np.inf
    for at in range(old["ranges"], book.stretches[stretch + 1]["ranges"]):
        was = min(was, book.nodes[book.ranges[at]["node"]]["speed"])
    slower = 1.0 if was == will_be else was / will_be
    again_s = now_s + job["save_s"] + job["restore_s"]
    new = book.stretches[book.many[3]]
    new["job"] = old["job"]
    new["start_s"] = now_s + job["save_s"]
    new["end_s"] = again_s + (old["end_s"] - now_s) * slower
    new["limit_s"] = again_s + (old["limit_s"] - now_s) * slower
    new["restore_s"] = job["restore_s"]
    job["end_s"] = new["end_s"]
    book.many[3] += 1
    book.stretches[book.many[3]]["ranges"] = ranges_end

    for is_over in range(1, -1, -1):  # remove the old stretch from the orders, and add it again with its new times
        old["is_over"] = is_over
        if is_over == 0:
            old["moved"] = 1
            old["save_s"] = job["save_s"]
            old["end_s"] = now_s + job["save_s"]
            old["limit_s"] = old["end_s"]
        settle(book, stretch)
    settle(book, book.many[3] - 1)
    return float(again_s)
