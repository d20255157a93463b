"""The entitlements loop. It takes a snapshot of the owners' partitions, lets the policy decide, and carries out its
decisions.

In a dry run, the decisions are only recorded.

A job is released to the top of Slurm's queue before any job is preempted for it. So the freed room goes to that job
even if this program dies in between, because the next snapshot shows that the job still waits.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.entitlements import POLICY, decide
from gleaner.control.policy.entitlements_view import (
    AGENTS,
    Decision,
    EntitlementRules,
    EntitlementsStatus,
    EntitlementView,
    JobClass,
    RunningJob,
    Verdict,
    WaitingJob,
    Wish,
    as_answer,
    as_input,
    entitlements,
)
from gleaner.control.policy.resources import Resources
from gleaner.control.queue import decisions
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.decisions import JobActions
from gleaner.control.queue.errors import NotLeading, QueueError
from gleaner.control.queue.leader import Term
from gleaner.control.settings import EntitlementSettings
from gleaner.control.slurm.interface import Cluster, ClusterError, ClusterRefused, ClusterUnavailable, SnapshotCache
from gleaner.control.slurm.owners_view import (
    begins_later,
    holdings,
    is_at_limit,
    is_ready,
    job_class,
    owners_view,
    wishes,
)
from gleaner.control.slurm.snapshot import OURS, RELEASED, RELEASED_ON_TOP, JobPhase, SlurmJob, Snapshot, is_held_for_us
from gleaner.control.slurm_admin.client import SlurmAdminClient
from gleaner.control.slurm_admin.request import LONGEST_TEXT
from gleaner.control.slurm_admin.rules import TOP_NICE

HOUR_S = 3600.0
REMEMBERED_S = 24 * HOUR_S
ACTS_A_ROUND = 100
"""The largest number of actions in one round. Then a new snapshot is taken, because the old one is out of date."""
REASONS_A_ROUND = 20
"""The largest number of reasons that are written in one round."""
REASON_AGAIN_S = 60.0
"""The least time between two reasons that are written on the same job. A job's first reason is written at once."""
_SAVE_S = 60.0
"""The assumed cost of saving a job, in seconds. The cost of requeuing a job is the time that it has computed."""

_log = structlog.get_logger(__name__)


class HoldReasons:
    """The times at which reasons were written on held jobs. Each write is a call to Slurm, so some changes are left
    out."""

    def __init__(self) -> None:
        self._written_s: dict[str, float] = {}
        """The time of the last attempt to write each job's reason."""

    def due(self, decided: tuple[Decision, ...], said: Mapping[str, str], now_s: float) -> list[tuple[str, str]]:
        """Return the jobs and the reasons to write on them now, and count these reasons as written.

        The jobs that have waited longest for a new reason come first.
        """
        texts = {one.job: (OURS + one.why)[:LONGEST_TEXT] for one in decided if one.verdict is Verdict.HOLD}
        self._written_s = {job: at_s for job, at_s in self._written_s.items() if job in texts}
        stale = [
            job
            for job, text in texts.items()
            if said[job] != text and (job not in self._written_s or now_s >= self._written_s[job] + REASON_AGAIN_S)
        ]
        first = sorted(stale, key=lambda job: self._written_s.get(job, float("-inf")))[:REASONS_A_ROUND]
        self._written_s |= dict.fromkeys(first, now_s)
        return [(job, texts[job]) for job in first]

    def forget(self, job: str) -> None:
        """Treat the job's next reason as its first one, because the last one has been overwritten."""
        self._written_s.pop(job, None)


class Entitlements:
    """The state that outlives one round. It includes the last decision on each job, so that only new decisions are
    stored."""

    def __init__(
        self, state: ControlState, cluster: Cluster, snapshots: SnapshotCache, slurm_admin: SlurmAdminClient
    ) -> None:
        self._state = state
        self._settings = state.settings.entitlements
        self._cluster = cluster
        self._snapshots = snapshots
        self._slurm_admin = slurm_admin
        self._is_checked = False
        self._is_stuck = False
        self._announced: Term | None = None
        self._reasons = HoldReasons()
        self._decided: dict[str, tuple[Verdict, tuple[str, ...]]] = {}

    @property
    def _acts(self) -> bool:
        return self._settings.mode == "on"

    def step(self, now_s: float) -> None:
        """Take one snapshot of the cluster, decide, and act on the decisions.

        A failure of Slurm, of the Slurm admin service or of the queue raises no error and is reported as a `problem`.
        """
        try:
            self._announce()
            self._check()
            seen = self._look(now_s)
            known, preempted = self._known(seen)
            partition = self._state.settings.cluster.partition
            view = policy_input(seen, known, self._settings, agents_partition=partition, told_this_hour=preempted)
            decided = decide(view)
            if not self._state.is_leader:  # the query might have taken longer than the term
                return
            if self._acts:
                # This call comes after the decision, so that jobs are not held for a control that always fails to
                # decide. It comes before anything is stored as done, because the Slurm admin service might refuse it.
                self._alive()
            self._write_down(view, decided)
            problem = self._act(seen, decided, known) if self._acts else ""
            self._is_stuck = False
            self._say(EntitlementsStatus(view, decided, "; ".join(filter(None, (seen.gaps, problem)))))
        except (ClusterError, QueueError) as error:
            is_stuck = isinstance(error, QueueError) and not isinstance(error, NotLeading)
            self._is_stuck = self._is_stuck or is_stuck
            last = self._state.entitlements
            self._say(EntitlementsStatus(last.view, last.decisions, str(error)))

    def _announce(self) -> None:
        """Tell the Slurm admin service which program leads, before the first query. Then the service refuses earlier
        leaders."""
        term = self._state.term
        if self._acts and term is not None and term != self._announced:
            self._slurm_admin.awake()
            self._announced = term

    def _alive(self) -> None:
        """Report that control is alive, unless the last round could not write to the queue."""
        if not self._is_stuck:
            self._slurm_admin.alive(self._settings.partitions)

    def _check(self) -> None:
        """Check once after each start that Slurm can enforce the entitlements. Before that, no decision is made."""
        if not self._is_checked:
            self._cluster.check_owners(sorted(self._settings.entitled))
            self._is_checked = True

    def _look(self, now_s: float) -> Snapshot:
        """Return the owners' partitions from a new query, not from a cached one, because the loop acts on them at once.

        While Slurm does not answer, report that control is alive, so that jobs stay held.
        """
        try:
            seen = self._snapshots.fresh(now_s)
        except ClusterUnavailable:
            if self._acts:
                self._alive()
            raise
        return owners_view(seen, self._settings.partitions, agents=self._state.settings.cluster.partition)

    def _known(self, seen: Snapshot) -> tuple[dict[str, JobActions], int]:
        """Return the queue's records of the jobs, and the number of jobs that were preempted in the last hour.

        The records are corrected if they differ from the jobs in the snapshot. Records that are no longer needed are
        forgotten.
        """
        with snapshot(self._state.engine) as db:
            known = decisions.actions(db)
            preempted = decisions.preemptions_since(db, seen.read_s - HOUR_S)
        gone = _done_with(known, seen)
        known = {job: record for job, record in known.items() if job not in gone}
        fresh = corrections(known, seen) if self._acts else []
        if gone or fresh:
            with self._state.writing() as db:
                decisions.forget_actions(db, gone, told_before_s=seen.read_s - REMEMBERED_S)
                for record in fresh:
                    decisions.record_action(db, record)
        return known | {record.job: record for record in fresh}, preempted

    # ── the decisions ──

    def _write_down(self, view: EntitlementView, decided: tuple[Decision, ...]) -> None:
        """Store the decisions if any of them is new."""
        now = {decision.job: (decision.verdict, decision.victims) for decision in decided}
        news = [decision for decision in decided if self._is_news(decision)]
        if not news:
            self._decided = now
            return
        owners = {job.job: job.owner for job in view.waiting} | {job.job: job.owner for job in view.running}
        about = [job for decision in news for job in (decision.job, *decision.victims)]
        kind = DecisionKind.HOLD
        if any(decision.verdict is not Verdict.HOLD for decision in news):
            kind = DecisionKind.VICTIM if any(decision.victims for decision in news) else DecisionKind.START
        with self._state.writing() as db:
            number = decisions.record(
                db,
                kind=kind,
                subjects={f"slurm {job}": owners[job] for job in about},
                policy=POLICY,
                given=as_input(view),
                answer=as_answer(decided),
                acted=self._acts,
                now_s=view.now_s,
            )
        self._decided = now  # only after storing, so that a decision that could not be stored still counts as new
        for decision in news:
            _log.info(
                "decided" if self._acts else "dry run: it would be decided",
                job=decision.job, verdict=decision.verdict.value, victims=decision.victims, why=decision.why,
                decision=number,
            )  # fmt: skip

    def _is_news(self, decision: Decision) -> bool:
        """Return True if a decision is new. A decision that has changed only because its victims have been told to
        leave is not new."""
        verdict, victims = self._decided.get(decision.job, (None, ()))
        return decision.verdict is not verdict or decision.victims not in {victims, ()}

    # ── the actions ──

    def _act(self, seen: Snapshot, decided: tuple[Decision, ...], known: Mapping[str, JobActions]) -> str:
        """Carry out the decisions. Return the problems, in one line.

        Jobs that must be held again come first, because their room has been given to others. No job is preempted for a
        job that could not be released, because its owner might have just cancelled it.
        """
        jobs, now_s = {job.id: job for job in seen.jobs}, seen.read_s
        problems: list[str] = []
        acts = 0
        for decision in sorted(decided, key=lambda decision: decision.verdict is not Verdict.HOLD):
            todo = self._of_the_job(decision, jobs[decision.job], known, now_s)
            todo += [partial(self._vacate, jobs[one], now_s) for one in decision.victims]
            if not todo or acts >= ACTS_A_ROUND:
                continue
            acts += len(todo)
            self._alive()  # a long round must not look like silence
            problems += self._done(decision, todo, must=len(todo) - len(decision.victims))
        self._explain(jobs, decided, now_s)
        return "; ".join(problems)

    def _of_the_job(
        self, decision: Decision, job: SlurmJob, known: Mapping[str, JobActions], now_s: float
    ) -> list[Callable[[], None]]:
        """Return the actions on the waiting job itself. Only a held job can be put on top."""
        hold, release = partial(self._hold, job), partial(self._release, decision, job, now_s)
        was_released = is_released(job) or _is_kept_back(job)
        if decision.verdict is Verdict.HOLD:
            return [hold] if was_released else []
        if not was_released:
            return [release]
        is_on_top = decision.job in known and known[decision.job].at_top
        return [hold, release] if decision.verdict is Verdict.CLAIM and not is_on_top else []

    def _done(self, decision: Decision, todo: list[Callable[[], None]], *, must: int) -> list[str]:
        """Carry out all actions and return the problems. If one of the first `must` actions fails, the others are left
        out."""
        problems: list[str] = []
        for at, do in enumerate(todo):
            self._state.check_leads()  # a hundred actions can take longer than a term
            try:
                do()
            except ClusterRefused as error:
                problems.append(f"for job {decision.job}: {error}")
                if at < must:
                    break
        return problems

    def _release(self, decision: Decision, job: SlurmJob, now_s: float) -> None:
        at_top = decision.verdict is Verdict.CLAIM
        with self._state.writing() as db:
            decisions.record_action(db, JobActions(decision.job, released_s=now_s, at_top=at_top))
        self._slurm_admin.release(decision.job, top=at_top, submitted_s=job.submitted_s)

    def _hold(self, job: SlurmJob) -> None:
        self._slurm_admin.hold(job.id, submitted_s=job.submitted_s)
        self._reasons.forget(job.id)
        with self._state.writing() as db:
            decisions.forget_actions(db, [job.id], told_before_s=0)

    def _vacate(self, job: SlurmJob, now_s: float) -> None:
        """Preempt a job, or vacate an agent.

        A job that cannot be told to leave counts as one that was told and stayed, so another job is chosen. The action
        is recorded afterwards, so if this program dies in between, the job is told once more. If it has already gone,
        it does not count against this hour's limit.
        """
        grace_s = self._settings.grace_s
        is_agent = job.partitions == (self._state.settings.cluster.partition,)
        try:
            if is_agent:
                self._cluster.vacate([job.id], gone_s=now_s + grace_s)
            elif job_class(job) is JobClass.CHECKPOINTABLE:
                self._slurm_admin.signal(job.id, submitted_s=job.submitted_s)
            else:
                self._slurm_admin.requeue(job.id, submitted_s=job.submitted_s)
        except ClusterRefused:
            with self._state.writing() as db:
                decisions.record_action(db, JobActions(job.id, told_s=now_s - grace_s))
            raise
        with self._state.writing() as db:
            decisions.record_action(db, JobActions(job.id, told_s=now_s))
            if not is_agent:
                decisions.record_preemption(db, job.id, now_s)

    def _explain(self, jobs: Mapping[str, SlurmJob], decided: tuple[Decision, ...], now_s: float) -> None:
        """Write the reason why a held job waits into the job's AdminComment, where `squeue` shows it."""
        for job, text in self._reasons.due(decided, {job.id: job.admin_comment for job in jobs.values()}, now_s):
            try:
                self._slurm_admin.set_reason(job, text, submitted_s=jobs[job].submitted_s)
            except ClusterRefused as error:
                _log.info("no reason could be written", job=job, why=str(error))

    def _say(self, how: EntitlementsStatus) -> None:
        if how.problem and how.problem != self._state.entitlements.problem:
            _log.warning("entitlements: a problem", problem=how.problem)
        elif self._state.entitlements.problem and not how.problem:
            _log.info("entitlements: the problem is solved", problem=self._state.entitlements.problem)
        self._state.entitlements = how


# ── the input of the policy: Slurm's records, together with those of the queue ──


def policy_input(
    view: Snapshot,
    known: Mapping[str, JobActions],
    settings: EntitlementSettings,
    *,
    agents_partition: str,
    told_this_hour: int,
) -> EntitlementView:
    """Return the input of the policy.

    In a dry run we hold no jobs, so each waiting job is treated as if we held it.
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
    """Return the jobs that wait only for room, as far as Slurm shows this. Slurm does not show it for held jobs.

    Therefore only the first held task of an array counts as ready, and only if no other task runs or is released. If
    one of an owner's released jobs is at a limit, none of the owner's held jobs counts as ready.
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
    """Return the number of the array to which a task belongs, or the id of any other job."""
    return job.partition("_")[0]


def _waits(job: SlurmJob, now_s: float, *, is_dry: bool) -> bool:
    """Return True if Gleaner decides when the job starts."""
    if job.phase is not JobPhase.PENDING:
        return False
    if is_released(job) or _is_kept_back(job):
        return True
    return not begins_later(job, now_s) and (is_held_for_us(job) or (is_dry and not job.is_held))


def is_released(job: SlurmJob) -> bool:
    """Return True if a job waits with our mark and is not held, so that it can start and we can hold it again.

    Not only jobs that we have released have the mark. A requeued job keeps it, and so does a job that the dead man's
    switch has released. A job without a mark was submitted while entitlements were not enforced.
    """
    return job.phase is JobPhase.PENDING and not job.is_held and job.admin_comment.startswith(OURS)


def is_on_top(job: SlurmJob) -> bool:
    """Return True if a job is still ahead of all others. Its owner or an administrator might have changed its nice
    value."""
    return job.admin_comment.startswith(RELEASED_ON_TOP) and job.priority > TOP_NICE // 2


def corrections(known: Mapping[str, JobActions], seen: Snapshot) -> list[JobActions]:
    """Return corrected records for the released jobs whose records differ from the state that Slurm shows.

    A job that someone else released counts as released by us just now, as soon as it waits only for room.
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
    """Return True if the job's owner has put it on hold after our release. The owner can release the job at any
    time."""
    return job.is_held and not is_held_for_us(job) and job.admin_comment.startswith(RELEASED)


def _waiting(job: SlurmJob, wish: Wish, known: JobActions | None, *, settled_s: float, ready: bool) -> WaitingJob:
    """Return a waiting job as input for the policy.

    A released job might wait for jobs that were told to leave. Otherwise it starts soon or never. So if it has not
    started after `settle_s` seconds, plus the grace time if any job is leaving, its tasks are assumed to need room on
    one node.
    """
    released = is_released(job)
    if released and known is not None and known.released_s is not None:
        wish = _in_one_piece(wish) if known.released_s < settled_s else wish
    return WaitingJob(job.id, job.account, job_class(job), wish, released, ready, _is_kept_back(job))


def _in_one_piece(wish: Wish) -> Wish:
    """Return the wish with all tasks on one node, for a job that did not start although they would fit on separate
    nodes.

    Slurm does not show whether tasks can be on separate nodes.
    """
    if wish.apart:
        return wish
    return replace(wish, pieces=1, piece=Resources(wish.cpus, wish.pieces * wish.piece.memory_mib), apart=True)


def _running(
    job: SlurmJob, known: JobActions | None, now_s: float, settings: EntitlementSettings, *, is_agent: bool
) -> RunningJob:
    since_s = job.start_s if job.start_s is not None else now_s
    declared = JobClass.CHECKPOINTABLE if is_agent else job_class(job)
    told_s = known.told_s if known is not None and job.phase is JobPhase.RUNNING else None
    told_ago_s = math.inf if told_s is None else now_s - told_s
    return RunningJob(
        job=job.id,
        owner=AGENTS if is_agent else job.account,
        job_class=declared,
        since_s=since_s,
        holds=holdings(job),
        priority=job.priority,
        cost_s=_SAVE_S if declared is JobClass.CHECKPOINTABLE else max(0.0, now_s - since_s),
        leaving=job.phase is JobPhase.ENDING or told_ago_s < settings.grace_s,
        stays=settings.grace_s <= told_ago_s < settings.retry_s,
    )


def _done_with(known: Mapping[str, JobActions], seen: Snapshot) -> list[str]:
    """Return the jobs whose records are no longer needed: those that have ended, have started since their release, or
    have gone since they were told to leave.

    A job that was released a moment ago might still be shown as held, because the snapshot is older than the release.
    """
    there = {job.id: job for job in seen.jobs}
    done: list[str] = []
    for record in known.values():
        job = there.get(record.job)
        is_pending = job is not None and job.phase is JobPhase.PENDING
        if (
            job is None
            or (record.told_s is not None and is_pending)
            or (record.released_s is not None and not is_pending)
        ):
            done.append(record.job)
    return done
