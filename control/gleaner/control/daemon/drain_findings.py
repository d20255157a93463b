"""The jobs on nodes that are drained, as the policy and the queue's table take them. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gleaner.control.policy.draining import Deed, Kind, Occupant, Spanning, deed
from gleaner.control.policy.job_class import JobClass
from gleaner.control.queue.drains import DrainedJob
from gleaner.control.queue.relocation import AgentFound
from gleaner.control.slurm.comments import DRAINED_BY
from gleaner.control.slurm.owners_view import job_class
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot, number_of

_KINDS = {
    JobClass.CHECKPOINTABLE: Kind.CHECKPOINTABLE,
    JobClass.PREEMPTIBLE: Kind.PREEMPTIBLE,
    JobClass.NON_PREEMPTIBLE: Kind.OTHER,
}


def occupant(
    job: SlurmJob, agents: Mapping[str, AgentFound], *, owners_in: Collection[str], agents_in: str
) -> Occupant:
    """Return the job as the policy takes it. The class that a job declares counts only in the owners' partitions."""
    if job.partitions == (agents_in,):
        known = agents.get(job.id)
        return Occupant(job.id, job.user, Kind.AGENT, job.nodes, cannot=known.cannot if known else "")
    kind = _KINDS[job_class(job.comment)] if set(job.partitions) <= set(owners_in) else Kind.OTHER
    cannot = ""
    if kind is Kind.PREEMPTIBLE and not (job.can_requeue and job.is_batch):
        cannot = "it cannot be requeued: it is interactive, or was submitted with --no-requeue"
    return Occupant(job.id, job.user, kind, job.nodes, cannot)


def merged(
    before: Sequence[DrainedJob],
    found: Sequence[tuple[SlurmJob, Occupant]],
    agents: Mapping[str, AgentFound],
    *,
    drained: Collection[str],
    spanning: Spanning,
    has_gaps: bool,
    now_s: float,
) -> tuple[DrainedJob, ...]:
    """Return the jobs of a drain: the jobs that were known before, and the jobs that were found now.

    With `has_gaps`, a job that was not found is not taken for gone: its record may be one that cannot be read.
    """
    known = {job.job: job for job in before}
    there: dict[str, DrainedJob] = {}
    for job, as_occupant in found:
        left = len(agents[job.id].jobs) if job.id in agents else 1
        fresh = DrainedJob(
            job=job.id,
            user=job.user,
            kind=as_occupant.kind,
            deed=deed(as_occupant, drained, spanning),
            nodes=job.nodes,
            until_s=job.end_s,
            at_first=max(1, left),
        )
        there[job.id] = replace(known.get(job.id, fresh), left=max(1, left), until_s=job.end_s, gone_s=None)
    gone = [
        job if has_gaps or job.gone_s is not None else replace(job, left=0, gone_s=now_s)
        for job in before
        if job.job not in there
    ]
    return tuple(sorted([*there.values(), *gone], key=_by_number))


def is_touched(job: DrainedJob) -> bool:
    """Return True if the drain does anything to this job."""
    return job.deed is not Deed.WAIT


def _by_number(job: DrainedJob) -> tuple[int, str]:
    return number_of(job.job), job.job


def is_ours(node: SlurmNode) -> bool:
    """Return True if a node is drained with our mark. The mark alone is not enough: a reason outlives its drain."""
    return node.is_drained and node.reason.startswith(DRAINED_BY)


def shown_node(snapshot: Snapshot, name: str) -> str:
    """Return a node's name with the reason for its state, for people."""
    node = snapshot.nodes.get(name)
    if node is None:
        return f"{name} (the scheduler does not know it)"
    return f"{name} ({node.reason or 'no reason given'})" if node.is_drained else f"{name} (not drained)"


def of_nodes(view: Snapshot, nodes: Sequence[str]) -> str:
    """Return the reason why these nodes cannot be drained, in one line; empty if they can be.

    >>> of_nodes(Snapshot(0.0), ["n1"])
    'the scheduler knows no node n1'
    >>> of_nodes(Snapshot(0.0, gaps="Slurm said of node 'n1' what cannot be read"), ["n1"])
    "Slurm said of node 'n1' what cannot be read"
    """
    for name in nodes:
        node = view.nodes.get(name)
        if node is None:
            return view.gaps or f"the scheduler knows no node {name}"
        if node.is_drained:
            return f"{name} is drained already ({node.reason or 'no reason given'})"
    return ""
