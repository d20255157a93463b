"""The part of a snapshot that entitlements use: the owners' partitions, their jobs, and our agents. This module is
pure.

Slurm does not show directly which resources a waiting job needs, or whether more room would let it start. This module
derives both.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

from gleaner.control.policy.entitlements_view import JobClass, Wish
from gleaner.control.policy.resources import Resources
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.snapshot import CLASSES, SlurmJob, SlurmNode, Snapshot, class_of, number_of

_LIMITS = ("Assoc", "QOS")
_NOT_READY = (
    *_LIMITS, "Dependency", "BeginTime", "JobArrayTaskLimit", "Licenses", "Reservation", "PartitionDown",
    "PartitionInactive", "PartitionTimeLimit",
)  # fmt: skip
"""If a job's reason begins with one of these texts, more room would not let it start. Slurm does not show such a reason
for a held job."""
_REQUEUE_WAIT_S = 600
"""A begin time at most this far ahead is ignored, because Slurm itself delays a requeued job by two minutes."""
_BEYOND_AND_OR = frozenset("[]()*:")
_CLASSES: dict[str, JobClass] = dict(zip(CLASSES, JobClass, strict=True))
"""The classes by their names in comments. `CLASSES` and `JobClass` list them in the same order."""


def owners_view(snapshot: Snapshot, partitions: Sequence[str], *, agents: str) -> Snapshot:
    """Return the usable nodes and the jobs of these partitions, and the jobs of the partition `agents`.

    Jobs are in the order of their submission. The view has no nodes if all of them are down, drained or have unreadable
    records. But if Slurm shows no node at all, the partitions are unknown, and `ClusterError` is raised.
    """
    named = frozenset(partitions)
    found = [node for node in snapshot.nodes.values() if node.partitions & named]
    if not found and not snapshot.gaps:
        raise ClusterError("Slurm knows no node of the owners' partitions; see [entitlements] partitions")
    jobs = (job for job in snapshot.jobs if (named | {agents}) & set(job.partitions))
    return replace(
        snapshot,
        nodes={node.name: node for node in found if node.is_startable},
        jobs=tuple(sorted(jobs, key=lambda job: (job.submitted_s, number_of(job.id), job.id))),
    )


def job_class(job: SlurmJob) -> JobClass:
    """Return the class that a job's comment declares, which is non-preemptible unless the comment names another class.

    A part of a heterogeneous job (`12+0`) is non-preemptible, because Slurm requeues only all parts together.
    """
    if "+" in job.id:
        return JobClass.NON_PREEMPTIBLE
    return _CLASSES.get(class_of(job.comment) or "", JobClass.NON_PREEMPTIBLE)


def is_ready(job: SlurmJob) -> bool:
    """Return False if a job waits for something other than room, such as another job, its turn in an array, or a
    limit."""
    return not job.reason.startswith(_NOT_READY) and not job.dependency


def is_at_limit(job: SlurmJob) -> bool:
    """Return True if a job waits because of a limit of its owner, which might also block other jobs of its account."""
    return job.reason.startswith(_LIMITS)


def begins_later(job: SlurmJob, now_s: float) -> bool:
    """Return True if a job's begin time is in the future, so that the job must not be released yet."""
    return job.begins_s is not None and job.begins_s > now_s + (_REQUEUE_WAIT_S if job.restarts else 0)


def holdings(job: SlurmJob) -> dict[str, Resources]:
    """Return a job's resources on each of its nodes. They are divided evenly, because Slurm shows only their sum.

    >>> holdings(SlurmJob(id="7", partitions=("p",), states=frozenset(), nodes=("a", "b"), cpus=7, memory_mib=1001))
    {'a': Resources(cpus=4, memory_mib=501), 'b': Resources(cpus=3, memory_mib=500)}
    """
    count = len(job.nodes)
    return {
        node: Resources((job.cpus + count - 1 - at) // count, (job.memory_mib + count - 1 - at) // count)
        for at, node in enumerate(job.nodes)
    }


def wishes(jobs: Iterable[SlurmJob], nodes: Mapping[str, SlurmNode]) -> dict[str, Wish]:
    """Return the request of each job, restricted to the usable nodes.

    Thousands of jobs can request the same few sets of nodes, so each set is derived only once.
    """
    lack = cache(partial(lacking, nodes={node.name: node.features for node in nodes.values()}))

    @cache
    def among(wanted: tuple[str, ...], unwanted: tuple[str, ...], constraint: str) -> tuple[str, ...] | None:
        if not wanted and not unwanted and not lack(constraint):
            return None
        return tuple(sorted((set(wanted) or nodes.keys()) - set(unwanted) - lack(constraint)))

    @cache
    def least(names: tuple[str, ...] | None) -> Resources | None:
        usable = [node for node in nodes.values() if names is None or node.name in names]
        return Resources(min(n.cpus for n in usable), min(n.memory_mib for n in usable)) if usable else None

    def wish(job: SlurmJob) -> Wish:
        names = among(job.wanted_nodes, job.unwanted_nodes, job.constraint)
        return _wish(job, names, least(names) if job.is_exclusive else None)

    return {job.id: wish(job) for job in jobs}


def _wish(job: SlurmJob, among: tuple[str, ...] | None, least: Resources | None) -> Wish:
    """Return the request of the job, as far as Slurm shows it.

    Slurm does not show whether tasks can be on different nodes.

    `among` are the nodes that the job can use, or None for all nodes. `least` is the size of the smallest of them, if
    the job takes whole nodes.
    """
    if least is not None:
        count = max(job.nodes_at_least, math.ceil(job.cpus / max(1, least.cpus)))
        return Wish(count, least, apart=True, whole=True, nodes=among)
    is_apart = job.nodes_at_least > 1 or job.tasks == 1
    pieces = job.nodes_at_least if is_apart else job.tasks
    piece = Resources(math.ceil(job.cpus / pieces), math.ceil(job.memory_mib / pieces))
    in_all = None if pieces * piece.cpus == job.cpus else job.cpus
    return Wish(pieces, piece, apart=is_apart, nodes=among, all_cpus=in_all)


def lacking(constraint: str, nodes: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the nodes that do not satisfy a constraint.

    The result is empty if the constraint contains anything more than plain "and" or "or".

    >>> some = {"n1": frozenset({"amd"}), "n2": frozenset({"amd", "fast"}), "n3": frozenset()}
    >>> sorted(lacking("amd&fast", some)), sorted(lacking("amd|intel", some)), sorted(lacking("", some))
    (['n1', 'n3'], ['n3'], [])
    >>> sorted(lacking("[rack1*2|rack2*2]", some))
    []
    """
    if not constraint or _BEYOND_AND_OR & set(constraint):
        return frozenset()
    words = constraint.replace("|", " | ").replace("&", " & ").replace(",", " & ").split()
    asked, between = frozenset(words[::2]), set(words[1::2])
    if len(between) > 1:
        return frozenset()
    if between == {"|"}:
        return frozenset(node for node, there in nodes.items() if asked.isdisjoint(there))
    return frozenset(node for node, there in nodes.items() if not asked <= there)
