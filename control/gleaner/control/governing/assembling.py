"""What the cluster shows and what we remember, brought together into what the policy may know. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gleaner.control.cluster.owners import OwnedJob, OwnedPhase, OwnersView
from gleaner.control.policy.governing_view import (
    AGENTS,
    GovernRules,
    GovernView,
    RunningJob,
    WaitingJob,
    Wish,
    entitlements,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.room import Room
from gleaner.control.queue.governed import GovernedJob
from gleaner.control.settings import GoverningSettings
from gleaner.control.steward.marks import OURS, RELEASED, RELEASED_ON_TOP
from gleaner.control.steward.rules import TOP_NICE

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
    waiting = [job for job in view.jobs if job.partition != agents_partition and _waits(job, is_dry=is_dry)]
    running = tuple(
        _running(job, known.get(job.id), view.read_s, settings, is_agent=job.partition == agents_partition)
        for job in view.jobs
        if job.phase is not OwnedPhase.PENDING
    )
    settled_s = view.read_s - settings.settle_s - (settings.grace_s if any(job.leaving for job in running) else 0)
    ready = _ready(view, waiting)
    return GovernView(
        now_s=view.read_s,
        rules=rules,
        entitled_cpus=entitlements(settings.entitled, sum(node.size.cpus for node in view.nodes)),
        size={node.name: node.size for node in view.nodes},
        free={node.name: node.free for node in view.nodes},
        waiting=tuple(_waiting(job, known.get(job.id), settled_s=settled_s, ready=job.id in ready) for job in waiting),
        running=running,
    )


def _ready(view: OwnersView, waiting: Sequence[OwnedJob]) -> frozenset[str]:
    """Those that only room keeps from starting, as far as the scheduler tells: of a held job it tells nothing.

    So of an array's held tasks only the first is taken for ready, and only if no other one is about to run; and of an
    owner one of whose released jobs is at a limit, no held one.
    """
    begun = {_array(job.id) for job in view.jobs if not job.held and "_" in job.id}
    limited = {job.account for job in waiting if job.at_limit and not job.held}
    found: set[str] = set()
    for job in waiting:
        if job.is_ready and (not job.held or (job.ours and job.account not in limited and _array(job.id) not in begun)):
            found.add(job.id)
        if "_" in job.id:
            begun.add(_array(job.id))
    return frozenset(found)


def _array(job: str) -> str:
    """The array that a task is of; what is no task is for itself."""
    return job.partition("_")[0]


def _waits(job: OwnedJob, *, is_dry: bool) -> bool:
    """Whether it is for us to say when it starts."""
    if job.phase is not OwnedPhase.PENDING:
        return False
    if is_released(job) or _is_kept_back(job):
        return True
    return not job.begins_later and ((job.held and job.ours) or (is_dry and not job.held))


def is_released(job: OwnedJob) -> bool:
    """Whether it may start, and is ours to hold again: it waits, with a mark of ours, and nobody holds it.

    Not only what we have let go ourselves: a job that was requeued keeps its mark, and so does one that the dead man's
    switch let go. One without a mark entered while nobody governed.
    """
    return job.phase is OwnedPhase.PENDING and not job.held and job.said.startswith(OURS)


def is_on_top(job: OwnedJob) -> bool:
    """Whether it is before all others still: an owner may have made it as nice as it was, or an administrator."""
    return job.said.startswith(RELEASED_ON_TOP) and job.priority > TOP_NICE // 2


def put_right(known: Mapping[str, GovernedJob], seen: OwnersView) -> list[GovernedJob]:
    """What is to be remembered of the released jobs, where it is not what the jobs themselves say.

    One that somebody else let go is as if we had just done so, once room alone keeps it from starting.
    """
    found: list[GovernedJob] = []
    for job in seen.jobs:
        state, at_top = known.get(job.id), is_on_top(job)
        if not is_released(job):
            continue
        if state is None or state.released_s is None:
            found += [GovernedJob(job.id, released_s=seen.read_s, at_top=at_top)] if job.is_ready else []
        elif state.at_top is not at_top:
            found.append(replace(state, at_top=at_top))
    return found


def _is_kept_back(job: OwnedJob) -> bool:
    """Its owner holds what was released, and may let it go at any time."""
    return job.held and not job.ours and job.said.startswith(RELEASED)


def _waiting(job: OwnedJob, known: GovernedJob | None, *, settled_s: float, ready: bool) -> WaitingJob:
    """One that was released may have to wait for those that were told to go; else it starts soon, or never."""
    wish, released = job.wish, is_released(job)
    if released and known is not None and known.released_s is not None:
        wish = _in_one_piece(wish) if known.released_s < settled_s else wish
    return WaitingJob(job.id, job.account, job.job_class, wish, released, ready, _is_kept_back(job))


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
