"""What was found on nodes that are drained, as the policy and the table take it. Pure."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from gleaner.control.cluster.on_nodes import JobFound, OnNodes
from gleaner.control.policy.draining import Deed, Kind, Occupant, Spanning, deed
from gleaner.control.policy.job_class import JobClass
from gleaner.control.queue.drains import DrainedJob
from gleaner.control.queue.savable import AgentFound

_KINDS = {
    JobClass.CHECKPOINTABLE: Kind.CHECKPOINTABLE,
    JobClass.PREEMPTIBLE: Kind.PREEMPTIBLE,
    JobClass.NON_PREEMPTIBLE: Kind.OTHER,
}


def occupant(job: JobFound, agents: Mapping[str, AgentFound], *, governed: Collection[str], agents_in: str) -> Occupant:
    """The job as the policy takes it. What it declares counts only in the governed partitions."""
    if job.partition == agents_in:
        known = agents.get(job.id)
        return Occupant(job.id, job.user, Kind.AGENT, job.nodes, cannot=known.cannot if known else "")
    kind = _KINDS[job.job_class] if job.partition in governed else Kind.OTHER
    cannot = ""
    if kind is Kind.PREEMPTIBLE and not job.can_requeue:
        cannot = "it cannot be requeued: it is interactive, or was submitted with --no-requeue"
    return Occupant(job.id, job.user, kind, job.nodes, cannot)


def merged(
    before: Sequence[DrainedJob],
    found: Sequence[tuple[JobFound, Occupant]],
    agents: Mapping[str, AgentFound],
    *,
    drained: Collection[str],
    spanning: Spanning,
    now_s: float,
) -> tuple[DrainedJob, ...]:
    """What was known of the jobs there, and what was found now."""
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
            until_s=job.until_s,
            at_first=max(1, left),
        )
        there[job.id] = replace(known.get(job.id, fresh), left=max(1, left), until_s=job.until_s, gone_s=None)
    gone = [
        job if job.gone_s is not None else replace(job, left=0, gone_s=now_s) for job in before if job.job not in there
    ]
    return tuple(sorted([*there.values(), *gone], key=_by_number))


def is_touched(job: DrainedJob) -> bool:
    """Whether anything is done to it."""
    return job.deed is not Deed.WAIT


def _by_number(job: DrainedJob) -> tuple[int, str]:
    digits = job.job.partition("_")[0]
    return int(digits) if digits.isdigit() else 0, job.job


def of_nodes(view: OnNodes, nodes: Sequence[str]) -> str:
    """What is wrong with these nodes for a drain, in one line; empty if nothing is.

    >>> of_nodes(OnNodes({}, ()), ["n1"])
    'the scheduler knows no node n1'
    """
    for name in nodes:
        node = view.nodes.get(name)
        if node is None:
            return f"the scheduler knows no node {name}"
        if node.is_drained:
            return f"{name} is drained already ({node.reason or 'no reason given'})"
    return ""
