"""The input of the policy of entitlements: Slurm's view and the queue's records, brought together. Pure.

This module also decides when reasons are written on held jobs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementRules,
    EntitlementView,
    RunningJob,
    Verdict,
    WaitingJob,
    Wish,
    entitlements,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.resources import Resources
from gleaner.control.queue.entitlement_actions import JobActions
from gleaner.control.settings import EntitlementSettings
from gleaner.control.slurm.comments import OURS, RELEASED, RELEASED_ON_TOP, is_held_for_us
from gleaner.control.slurm.owners_view import begins_later, holdings, is_at_limit, is_ready, job_class, wishes
from gleaner.control.slurm.snapshot import JobPhase, SlurmJob, Snapshot
from gleaner.control.slurm_admin.request import LONGEST_TEXT
from gleaner.control.slurm_admin.rules import TOP_NICE

AT_ONCE = 20
"""The most reasons that are written in one round."""
AGAIN_S = 60.0
"""The least age of a job's reason before a new one is written. A job's first reason is written at once."""
_SAVE_S = 60.0
"""The assumed cost of saving a job, in seconds. The cost of requeuing a job is the time that it has computed."""


def policy_input(
    view: Snapshot,
    known: Mapping[str, JobActions],
    settings: EntitlementSettings,
    *,
    agents_partition: str,
    told_this_hour: int,
) -> EntitlementView:
    """Return the input of the policy.

    In a dry run no job is held by us, so each waiting job counts as held by us.
    """
    rules = EntitlementRules(
        quantum_s=settings.quantum_s,
        quantum_protects=settings.quantum_protects,
        saves_left=max(0, settings.saves_per_hour_at_most - told_this_hour),
    )
    is_dry = settings.mode == "dry-run"
    agents = {job.id for job in view.jobs if job.partitions == (agents_partition,)}
    waiting = [job for job in view.jobs if job.id not in agents and _waits(job, view.read_s, is_dry=is_dry)]
    running = tuple(
        _running(job, known.get(job.id), view.read_s, settings, is_agent=job.id in agents)
        for job in view.jobs
        if job.phase is not JobPhase.PENDING
    )
    settled_s = view.read_s - settings.settle_s - (settings.grace_s if any(job.leaving for job in running) else 0)
    ready, asked = _ready(view, waiting), wishes(waiting, view.nodes)
    nodes = view.nodes.values()
    return EntitlementView(
        now_s=view.read_s,
        rules=rules,
        entitled_cpus=entitlements(settings.entitled, sum(node.cpus for node in nodes)),
        size={node.name: Resources(node.cpus, node.memory_mib) for node in nodes},
        free={node.name: Resources(node.idle_cpus, max(0, node.memory_mib - node.allocated_mib)) for node in nodes},
        waiting=tuple(
            _waiting(job, asked[job.id], known.get(job.id), settled_s=settled_s, ready=job.id in ready)
            for job in waiting
        ),
        running=running,
    )


def _ready(view: Snapshot, waiting: Sequence[SlurmJob]) -> frozenset[str]:
    """Return the jobs that wait only for room, as far as Slurm tells. Of a held job Slurm tells nothing.

    So of an array's held tasks only the first counts as ready, and only if no other task is about to run. If a released
    job of an owner is at a limit, none of the owner's held jobs counts as ready.
    """
    begun = {_array(job.id) for job in view.jobs if not job.is_held and "_" in job.id}
    limited = {job.account for job in waiting if is_at_limit(job) and not job.is_held}
    found: set[str] = set()
    for job in waiting:
        is_next = job.account not in limited and _array(job.id) not in begun
        if is_ready(job) and (not job.is_held or (is_held_for_us(job) and is_next)):
            found.add(job.id)
        if "_" in job.id:
            begun.add(_array(job.id))
    return frozenset(found)


def _array(job: str) -> str:
    """Return the number of a task's array, or the number of any other job."""
    return job.partition("_")[0]


def _waits(job: SlurmJob, now_s: float, *, is_dry: bool) -> bool:
    """Return True if it is for us to decide when the job starts."""
    if job.phase is not JobPhase.PENDING:
        return False
    if is_released(job) or _is_kept_back(job):
        return True
    return not begins_later(job, now_s) and (is_held_for_us(job) or (is_dry and not job.is_held))


def is_released(job: SlurmJob) -> bool:
    """Return True if a job may start, and is ours to hold again: it waits with our mark, and nobody holds it.

    These are jobs that we have released, and others: a requeued job keeps its mark, and so does a job that the dead
    man's switch released. A job without a mark was submitted while entitlements were not enforced.
    """
    return job.phase is JobPhase.PENDING and not job.is_held and job.admin_comment.startswith(OURS)


def is_on_top(job: SlurmJob) -> bool:
    """Return True if a job is still before all others. Its owner or an administrator may have changed its nice."""
    return job.admin_comment.startswith(RELEASED_ON_TOP) and job.priority > TOP_NICE // 2


def corrections(known: Mapping[str, JobActions], seen: Snapshot) -> list[JobActions]:
    """Return corrected records of released jobs, for records that differ from what the jobs themselves show.

    A job that somebody else released counts as released by us just now, as soon as it waits only for room.
    """
    found: list[JobActions] = []
    for job in seen.jobs:
        state, at_top = known.get(job.id), is_on_top(job)
        if not is_released(job):
            continue
        if state is None or state.released_s is None:
            found += [JobActions(job.id, released_s=seen.read_s, at_top=at_top)] if is_ready(job) else []
        elif state.at_top is not at_top:
            found.append(replace(state, at_top=at_top))
    return found


def _is_kept_back(job: SlurmJob) -> bool:
    """Return True if the job's owner has held it after our release. The owner may release the job at any time."""
    return job.is_held and not is_held_for_us(job) and job.admin_comment.startswith(RELEASED)


def _waiting(job: SlurmJob, wish: Wish, known: JobActions | None, *, settled_s: float, ready: bool) -> WaitingJob:
    """Return a waiting job as the policy takes it.

    A released job may wait for jobs that were told to go. Otherwise it starts soon, or it never will: a released job
    that has not started within the time for both is taken to need one piece.
    """
    released = is_released(job)
    if released and known is not None and known.released_s is not None:
        wish = _in_one_piece(wish) if known.released_s < settled_s else wish
    return WaitingJob(job.id, job.account, job_class(job), wish, released, ready, _is_kept_back(job))


def _in_one_piece(wish: Wish) -> Wish:
    """Return the wish in one piece, for a job that did not start where its tasks would fit apart.

    Slurm does not say whether tasks may be apart.
    """
    if wish.apart:
        return wish
    return replace(wish, pieces=1, piece=Resources(wish.cpus, wish.pieces * wish.piece.memory_mib), apart=True)


def _running(
    job: SlurmJob, known: JobActions | None, now_s: float, settings: EntitlementSettings, *, is_agent: bool
) -> RunningJob:
    since_s = job.start_s if job.start_s is not None else now_s
    declared = JobClass.CHECKPOINTABLE if is_agent else job_class(job)
    told_s = None if known is None else known.told_s
    is_told = told_s is not None and job.phase is JobPhase.RUNNING
    has_grace = told_s is not None and now_s < told_s + settings.grace_s
    return RunningJob(
        job=job.id,
        owner=AGENTS if is_agent else job.account,
        job_class=declared,
        since_s=since_s,
        holds=holdings(job),
        priority=job.priority,
        cost_s=_SAVE_S if declared is JobClass.CHECKPOINTABLE else max(0.0, now_s - since_s),
        leaving=job.phase is JobPhase.ENDING or (is_told and has_grace),
        stays=is_told and not has_grace and told_s is not None and now_s < told_s + settings.retry_s,
    )


class HoldReasons:
    """The times at which reasons were written on held jobs. Each is a call to Slurm, so not every change is written."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}
        """The time of the last attempt to write each job's reason."""

    def due(self, decided: tuple[Decision, ...], said: Mapping[str, str], now_s: float) -> list[tuple[str, str]]:
        """Return the jobs and the reasons to write on them now, and count these as written.

        The jobs that have waited longest for a new reason come first.
        """
        texts = {one.job: (OURS + one.why)[:LONGEST_TEXT] for one in decided if one.verdict is Verdict.HOLD}
        self._written_s = {job: at_s for job, at_s in self._written_s.items() if job in texts}
        stale = [
            job
            for job, text in texts.items()
            if said[job] != text and (job not in self._written_s or now_s >= self._written_s[job] + AGAIN_S)
        ]
        first = sorted(stale, key=lambda job: self._written_s.get(job, float("-inf")))[:AT_ONCE]
        self._written_s |= dict.fromkeys(first, now_s)
        return [(job, texts[job]) for job in first]

    def forget(self, job: str) -> None:
        """Treat the job's next reason as its first: something else has been written on the job since."""
        self._written_s.pop(job, None)
