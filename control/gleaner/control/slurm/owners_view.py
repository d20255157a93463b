"""The owners' jobs, our agents, and the nodes under them, as entitlements see them. Pure."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache, partial

from gleaner.control.policy.entitlements_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.resources import Resources
from gleaner.control.slurm.comments import CHECKPOINTABLE, PREEMPTIBLE, class_of, is_held_for_us
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.parse import UNSET
from gleaner.control.slurm.snapshot import WAITING, SlurmJob, SlurmNode, Snapshot, number_of

_ENDING = frozenset({"COMPLETING", "STAGE_OUT"})
_LIMITS = ("Assoc", "QOS")
_NOT_READY = (
    *_LIMITS, "Dependency", "BeginTime", "JobArrayTaskLimit", "Licenses", "Reservation", "PartitionDown",
    "PartitionInactive", "PartitionTimeLimit",
)  # fmt: skip
"""The beginnings of the reasons of jobs that more room would not help. Slurm does not tell these of a held job."""
_REQUEUE_WAIT_S = 600
"""A begin time that is at most this far ahead is Slurm's own wish for a requeued job, two minutes: it is ignored."""
_BEYOND_AND_OR = frozenset("[]()*:")
_CLASSES = {PREEMPTIBLE: JobClass.PREEMPTIBLE, CHECKPOINTABLE: JobClass.CHECKPOINTABLE}


class OwnedPhase(StrEnum):
    """The phase of a job. `ENDING`: its processes are being ended, and it still holds its nodes."""

    PENDING = "pending"
    RUNNING = "running"
    ENDING = "ending"


@dataclass(frozen=True, slots=True)
class OwnedJob:
    """One job of an owners' partition, or an agent of ours. `held`: the job is held. `ours`: it is held for us."""

    id: str
    account: str
    partition: str
    phase: OwnedPhase
    job_class: JobClass
    wish: Wish
    submitted_s: float
    priority: int
    held: bool
    ours: bool
    is_ready: bool
    """False if the job waits for something other than room, whatever we do: another job, its turn in an array, a
    limit."""
    at_limit: bool = False
    """True if it waits for a limit on its owner: the same limit may keep other jobs of its account."""
    begins_later: bool = False
    """True if its begin time has not come: it is not to be released before."""
    said: str = ""
    """The text that we have written on it."""
    since_s: float | None = None
    holds: Mapping[str, Resources] | None = None


@dataclass(frozen=True, slots=True)
class OwnedNode:
    """One usable node of an owners' partition: its size, and what of it is idle."""

    name: str
    size: Resources
    free: Resources
    features: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class OwnersView:
    """The owners' partitions at one instant."""

    read_s: float
    nodes: tuple[OwnedNode, ...]
    jobs: tuple[OwnedJob, ...]
    gaps: str = ""
    """See `Snapshot.gaps`."""


def owners_view(snapshot: Snapshot, partitions: Sequence[str], *, agents: str) -> OwnersView:
    """Return the view of these partitions, with the jobs of the partition `agents`.

    The view may have no node, since all nodes may be down or drained, or their records cannot be read. Slurm shows
    those, too. But it shows no node of a partition that it does not know. Raises `ClusterError` if Slurm shows none.
    """
    named = frozenset(partitions)
    found = [node for node in snapshot.nodes.values() if node.partitions & named]
    if not found and not snapshot.gaps:
        raise ClusterError("Slurm knows no node of the owners' partitions; see [entitlements] partitions")
    nodes = {node.name: _node(node) for node in found if node.is_startable}
    features = {name: node.features for name, node in nodes.items()}
    lack = cache(partial(lacking, nodes=features))
    shown = (job for job in snapshot.jobs if (named | {agents}) & set(job.partitions))
    jobs = sorted((_job(job, nodes, lack, snapshot.read_s) for job in shown), key=_by_submission)
    return OwnersView(snapshot.read_s, tuple(nodes.values()), tuple(jobs), snapshot.gaps)


def job_class(comment: str) -> JobClass:
    """Return the class that a job's comment declares; non-preemptible unless the comment names another class.

    >>> job_class("nightly gleaner:preemptible"), job_class("gleaner:mortal")
    (<JobClass.PREEMPTIBLE: 1>, <JobClass.NON_PREEMPTIBLE: 0>)
    """
    return _CLASSES.get(class_of(comment) or "", JobClass.NON_PREEMPTIBLE)


def owned_phase(job: SlurmJob) -> OwnedPhase:
    """Return a job's phase. A job in an unknown state, perhaps of a newer Slurm, counts as running on its nodes."""
    if job.states & _ENDING:
        return OwnedPhase.ENDING
    return OwnedPhase.PENDING if job.states & WAITING else OwnedPhase.RUNNING  # CONFIGURING: it has its nodes


def _by_submission(job: OwnedJob) -> tuple[float, int, str]:
    return job.submitted_s, number_of(job.id), job.id


def _node(node: SlurmNode) -> OwnedNode:
    size = Resources(node.cpus, node.memory_mib)
    free = Resources(node.idle_cpus, max(0, size.memory_mib - node.allocated_mib))
    return OwnedNode(node.name, size, free, node.features)


def _job(job: SlurmJob, nodes: dict[str, OwnedNode], lack: Callable[[str], frozenset[str]], read_s: float) -> OwnedJob:
    phase = owned_phase(job)
    is_pending = phase is OwnedPhase.PENDING
    among = _among(job, lack(job.constraint), nodes) if is_pending else None
    wait_s = _REQUEUE_WAIT_S if job.restarts else 0
    return OwnedJob(
        id=job.id,
        account=job.account,
        partition=",".join(job.partitions),
        phase=phase,
        job_class=job_class(job.comment),
        wish=_wish(job, among, [node.size for node in nodes.values() if among is None or node.name in among]),
        submitted_s=job.submitted_s or 0.0,
        priority=job.priority,
        held=is_pending and job.priority == 0,
        ours=is_held_for_us(job.admin_comment, restarted=job.restarts > 0, reason=job.reason),
        said=job.admin_comment,
        is_ready=not job.reason.startswith(_NOT_READY) and job.dependency in UNSET,
        at_limit=job.reason.startswith(_LIMITS),
        begins_later=job.begins_s is not None and job.begins_s > read_s + wait_s,
        since_s=None if is_pending else job.start_s,
        holds=None if is_pending else dict(zip(job.nodes, _dealt(job, len(job.nodes)), strict=True)),
    )


def _wish(job: SlurmJob, among: tuple[str, ...] | None, sizes: list[Resources]) -> Wish:
    """Return what the job asks for, as far as Slurm tells. Slurm does not say whether tasks may be apart."""
    if job.is_exclusive and sizes:
        least = Resources(min(size.cpus for size in sizes), min(size.memory_mib for size in sizes))
        nodes = max(job.nodes_at_least, math.ceil(job.cpus / max(1, least.cpus)))
        return Wish(nodes, least, apart=True, whole=True, nodes=among)
    is_apart = job.nodes_at_least > 1 or job.tasks == 1
    pieces = job.nodes_at_least if is_apart else job.tasks
    piece = Resources(math.ceil(job.cpus / pieces), math.ceil(job.memory_mib / pieces))
    in_all = None if pieces * piece.cpus == job.cpus else job.cpus
    return Wish(pieces, piece, apart=is_apart, nodes=among, all_cpus=in_all)


def _dealt(job: SlurmJob, nodes: int) -> list[Resources]:
    """Return what the job has on each of so many nodes, dealt out evenly: Slurm tells only the sum.

    >>> _dealt(SlurmJob(id="7", partitions=("p",), states=frozenset(), cpus=7, memory_mib=1001), 2)
    [Resources(cpus=4, memory_mib=501), Resources(cpus=3, memory_mib=500)]
    """
    return [
        Resources((job.cpus + nodes - 1 - at) // nodes, (job.memory_mib + nodes - 1 - at) // nodes)
        for at in range(nodes)
    ]


def _among(job: SlurmJob, lack: frozenset[str], nodes: dict[str, OwnedNode]) -> tuple[str, ...] | None:
    """Return the nodes that the job may use; None for any node."""
    if not job.wanted_nodes and not job.unwanted_nodes and not lack:
        return None
    return tuple(sorted((set(job.wanted_nodes) or nodes.keys()) - set(job.unwanted_nodes) - lack))


def lacking(constraint: str, nodes: Mapping[str, frozenset[str]]) -> frozenset[str]:
    """Return the nodes that lack what a constraint asks for; no node if it is more than a plain "and" or "or".

    >>> some = {"n1": frozenset({"amd"}), "n2": frozenset({"amd", "fast"}), "n3": frozenset()}
    >>> sorted(lacking("amd&fast", some)), sorted(lacking("amd|intel", some)), sorted(lacking("(null)", some))
    (['n1', 'n3'], ['n3'], [])
    >>> sorted(lacking("[rack1*2|rack2*2]", some))
    []
    """
    if constraint in UNSET or _BEYOND_AND_OR & set(constraint):
        return frozenset()
    words = constraint.replace("|", " | ").replace("&", " & ").replace(",", " & ").split()
    asked, between = frozenset(words[::2]), set(words[1::2])
    if len(between) > 1:
        return frozenset()
    if between == {"|"}:
        return frozenset(node for node, there in nodes.items() if asked.isdisjoint(there))
    return frozenset(node for node, there in nodes.items() if not asked <= there)
