"""What the cluster shows and what we remember, brought together into what the policy may know. Pure."""

from collections.abc import Mapping
from dataclasses import replace

from gleaner.control.cluster.owners import OwnedJob, OwnedPhase, OwnersView
from gleaner.control.governing.settings import GoverningSettings
from gleaner.control.policy.governed import (
    AGENTS,
    GovernRules,
    GovernView,
    JobClass,
    Room,
    RunningJob,
    WaitingJob,
    Wish,
)
from gleaner.control.policy.governing import entitlements
from gleaner.control.queue.governed import GovernedJob

_SAVE_S = 60.0
"""What saving a job is taken to cost; a job that is requeued costs what it has computed."""


def assembled(
    view: OwnersView,
    known: Mapping[str, GovernedJob],
    settings: GoverningSettings,
    *,
    agents_partition: str,
    told_this_hour: int,
) -> GovernView:
    """What the policy is asked with.

    In a dry run no job is held by us, so each that waits counts as if it were.
    """
    rules = GovernRules(
        quantum_s=settings.quantum_s,
        quantum_protects=settings.quantum_protects,
        saves_left=max(0, settings.saves_per_hour_at_most - told_this_hour),
    )
    is_dry = settings.mode == "dry-run"
    return GovernView(
        now_s=view.read_s,
        rules=rules,
        entitled_cpus=entitlements(settings.entitled, sum(node.size.cpus for node in view.nodes)),
        size={node.name: node.size for node in view.nodes},
        free={node.name: node.free for node in view.nodes},
        waiting=tuple(
            _waiting(job, known.get(job.id), view.read_s, settings.settle_s)
            for job in view.jobs
            if job.partition != agents_partition and _waits(job, known.get(job.id), is_dry=is_dry)
        ),
        running=tuple(
            _running(job, known.get(job.id), view.read_s, settings, is_agent=job.partition == agents_partition)
            for job in view.jobs
            if job.phase is not OwnedPhase.PENDING
        ),
    )


def _waits(job: OwnedJob, known: GovernedJob | None, *, is_dry: bool) -> bool:
    """Whether it is for us to say when it starts."""
    if job.phase is not OwnedPhase.PENDING or not job.is_ready:
        return False
    return (job.held and job.ours) or _is_released(job, known) or (is_dry and not job.held)


def _is_released(job: OwnedJob, known: GovernedJob | None) -> bool:
    return not job.held and known is not None and known.released_s is not None


def _waiting(job: OwnedJob, known: GovernedJob | None, now_s: float, settle_s: float) -> WaitingJob:
    wish, released = job.wish, _is_released(job, known)
    if released and known is not None and known.released_s is not None and now_s > known.released_s + settle_s:
        wish = _in_one_piece(wish)
    return WaitingJob(job.id, job.account, job.job_class, wish, released)


def _in_one_piece(wish: Wish) -> Wish:
    """Slurm does not say whether tasks may be apart. If they did not start where they would fit apart, they may not."""
    if wish.apart:
        return wish
    return replace(wish, pieces=1, piece=Room(wish.cpus, wish.pieces * wish.piece.memory_mib), apart=True)


def _running(
    job: OwnedJob, known: GovernedJob | None, now_s: float, settings: GoverningSettings, *, is_agent: bool
) -> RunningJob:
    since_s = job.since_s if job.since_s is not None else now_s
    job_class = JobClass.CHECKPOINTABLE if is_agent else job.job_class
    told_s = None if known is None else known.told_s
    is_told = told_s is not None and job.phase is OwnedPhase.RUNNING
    has_grace = told_s is not None and now_s < told_s + settings.grace_s
    return RunningJob(
        job=job.id,
        owner=AGENTS if is_agent else job.account,
        job_class=job_class,
        since_s=since_s,
        holds=job.holds or {},
        priority=job.priority,
        cost_s=_SAVE_S if job_class is JobClass.CHECKPOINTABLE else max(0.0, now_s - since_s),
        leaving=job.phase is OwnedPhase.ENDING or (is_told and has_grace),
        stays=is_told and not has_grace and told_s is not None and now_s < told_s + settings.retry_s,
    )
