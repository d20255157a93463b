"""The loop of entitlements: look at the owners' partitions, let the policy decide, and act. In a dry run, only record.

A job is released to the top of Slurm's queue before any job is preempted for it. So room that falls free goes to that
job, even if this program dies in between: the next look finds the job waiting and goes on.
"""

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.daemon.entitlements_state import HoldReasons, corrections, policy_input
from gleaner.control.daemon.snapshots import SnapshotCache
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.entitlements import POLICY, decide
from gleaner.control.policy.entitlements_view import (
    Decision,
    EntitlementsStatus,
    EntitlementView,
    Verdict,
    as_answer,
    as_input,
)
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.subjects import slurm_subject
from gleaner.control.queue import decisions, entitlement_actions
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.entitlement_actions import JobActions
from gleaner.control.queue.errors import NotLeading, QueueError
from gleaner.control.queue.leader import Term
from gleaner.control.slurm.comments import is_held_for_us
from gleaner.control.slurm.interface import Cluster, ClusterError, ClusterRefused, ClusterUnavailable
from gleaner.control.slurm.owners_view import owners_view
from gleaner.control.slurm.snapshot import JobPhase, SlurmJob, Snapshot
from gleaner.control.slurm_admin.client import SlurmAdminClient

HOUR_S = 3600.0
REMEMBERED_S = 24 * HOUR_S
ACTS_A_ROUND = 100
"""The most acts in one round. Then the loop looks again, since its view of the cluster grows old."""
UNCHECKED_S = HOUR_S
"""The time for which jobs stay held while control cannot check that Slurm can enforce entitlements."""

_log = structlog.get_logger(__name__)


class Entitlements:
    """The state that outlives one round: the last decision on each job, so that only news is stored."""

    def __init__(
        self, state: ControlState, cluster: Cluster, snapshots: SnapshotCache, slurm_admin: SlurmAdminClient
    ) -> None:
        self._state = state
        self._settings = state.settings.entitlements
        self._cluster = cluster
        self._snapshots = snapshots
        self._slurm_admin = slurm_admin
        self._is_checked = False
        self._unchecked_since_s: float | None = None
        self._is_stuck = False
        self._announced: Term | None = None
        self._reasons = HoldReasons()
        self._decided: dict[str, tuple[Verdict, tuple[str, ...]]] = {}

    @property
    def _acts(self) -> bool:
        return self._settings.mode == "on"

    def step(self, now_s: float) -> None:
        """Look once, and do what is decided.

        A failure of Slurm, of the Slurm admin service or of the queue becomes a `problem` and no error.
        """
        try:
            self._announce()
            self._check(now_s)
            seen = self._look(now_s)
            known, preempted = self._known(seen)
            partition = self._state.settings.cluster.partition
            view = policy_input(seen, known, self._settings, agents_partition=partition, told_this_hour=preempted)
            decided = decide(view)
            if not self._state.is_leader:  # the look may have taken longer than the term
                return
            if self._acts:
                # After the decision: jobs are held for a control that can decide, and not for one that fails at it
                # again and again. And before anything is stored as done: the Slurm admin service may refuse.
                self._alive()
            self._write_down(view, decided)
            problem = self._act(seen, view, decided, known) if self._acts else ""
            self._is_stuck = False
            self._say(EntitlementsStatus(view, decided, "; ".join(filter(None, (seen.gaps, problem)))))
        except (ClusterError, QueueError) as error:
            is_stuck = isinstance(error, QueueError) and not isinstance(error, NotLeading)
            self._is_stuck = self._is_stuck or is_stuck
            last = self._state.entitlements
            self._say(EntitlementsStatus(last.view, last.decisions, str(error)))

    def _announce(self) -> None:
        """Tell the Slurm admin service who leads, before the first look. The service then refuses an earlier leader."""
        term = self._state.term
        if self._acts and term is not None and term != self._announced:
            self._slurm_admin.awake()
            self._announced = term

    def _alive(self) -> None:
        """Say that control is alive, unless the last round could not write to the queue."""
        if not self._is_stuck:
            self._slurm_admin.alive(self._settings.partitions)

    def _check(self, now_s: float) -> None:
        """Check once after each start that Slurm can enforce the entitlements. Until then nothing is decided.

        The jobs that are held at a start were held for a control that had passed this check, mostly with the same
        settings. A restart while slurmdbd is being upgraded must not release all of them. But no job is released by us
        meanwhile, so the hold has an end (`UNCHECKED_S`).
        """
        if self._is_checked:
            return
        try:
            self._cluster.check_owners(sorted(self._settings.entitled))
        except ClusterUnavailable:
            if self._unchecked_since_s is None:
                self._unchecked_since_s = now_s
            if self._acts and now_s < self._unchecked_since_s + UNCHECKED_S and self._may_hold_some(now_s):
                self._alive()
            raise
        self._is_checked = True

    def _may_hold_some(self, now_s: float) -> bool:
        """Return True if jobs are held for us, or if Slurm does not answer."""
        try:
            return any(is_held_for_us(job) for job in self._view(now_s).jobs)
        except ClusterUnavailable:
            return True

    def _look(self, now_s: float) -> Snapshot:
        """Look at the owners' partitions. While Slurm is away, say that control is alive, so that jobs stay held."""
        try:
            return self._view(now_s)
        except ClusterUnavailable:
            if self._acts:
                self._alive()
            raise

    def _view(self, now_s: float) -> Snapshot:
        """Return the owners' partitions from a new question to Slurm, since this view is acted on at once."""
        partition = self._state.settings.cluster.partition
        return owners_view(self._snapshots.fresh(now_s), self._settings.partitions, agents=partition)

    def _known(self, seen: Snapshot) -> tuple[dict[str, JobActions], int]:
        """Return the queue's records of the jobs, and the number of jobs that were preempted within an hour.

        The records are corrected by what the jobs themselves show. Records of other jobs are forgotten.
        """
        with snapshot(self._state.engine) as db:
            known = entitlement_actions.actions(db)
            preempted = entitlement_actions.preemptions_since(db, seen.read_s - HOUR_S)
        gone = _done_with(known, seen)
        known = {job: record for job, record in known.items() if job not in gone}
        fresh = corrections(known, seen) if self._acts else []
        if gone or fresh:
            with self._state.writing() as db:
                entitlement_actions.forget(db, gone, told_before_s=seen.read_s - REMEMBERED_S)
                for record in fresh:
                    entitlement_actions.record_action(db, record)
        return known | {record.job: record for record in fresh}, preempted

    # ── what was decided ──

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
                subjects={slurm_subject(job): owners[job] for job in about},
                policy=POLICY,
                given=as_input(view),
                answer=as_answer(decided),
                acted=self._acts,
                now_s=view.now_s,
            )
        self._decided = now  # after storing: a decision that could not be stored is still news
        for decision in news:
            _log.info(
                "decided" if self._acts else "dry run: it would be decided",
                job=decision.job, verdict=decision.verdict.value, victims=decision.victims, why=decision.why,
                decision=number,
            )  # fmt: skip

    def _is_news(self, decision: Decision) -> bool:
        """Return True if a decision is new. A decision that differs only since its victims have been told is not."""
        verdict, victims = self._decided.get(decision.job, (None, ()))
        return decision.verdict is not verdict or decision.victims not in {victims, ()}

    # ── what is done ──

    def _act(
        self, seen: Snapshot, view: EntitlementView, decided: tuple[Decision, ...], known: Mapping[str, JobActions]
    ) -> str:
        """Do what is decided. Return what did not work, in one line.

        Jobs that are held again go first, since their room was given to others. No job is preempted for a job that
        could not be released: the owner may just have cancelled that job.
        """
        jobs = {job.id: job for job in seen.jobs}
        released = {job.job for job in view.waiting if job.released or job.kept_back}
        classes = {job.job: job.job_class for job in view.running}
        problems: list[str] = []
        acts = 0
        for decision in sorted(decided, key=lambda decision: decision.verdict is not Verdict.HOLD):
            is_released = decision.job in released
            todo = self._of_the_job(decision, jobs[decision.job], view.now_s, is_released=is_released, known=known)
            todo += [partial(self._vacate, jobs[one], classes[one], view.now_s) for one in decision.victims]
            if not todo or acts >= ACTS_A_ROUND:
                continue
            acts += len(todo)
            self._alive()  # a long round is no silence
            problems += self._done(decision, todo, must=len(todo) - len(decision.victims))
        self._explain(jobs, decided, view.now_s)
        return "; ".join(problems)

    def _of_the_job(
        self, decision: Decision, job: SlurmJob, now_s: float, *, is_released: bool, known: Mapping[str, JobActions]
    ) -> list[Callable[[], None]]:
        """Return the acts on the waiting job itself. Only a held job can be put on top."""
        hold, release = partial(self._hold, job), partial(self._release, decision, job, now_s)
        if decision.verdict is Verdict.HOLD:
            return [hold] if is_released else []
        if not is_released:
            return [release]
        is_on_top = decision.job in known and known[decision.job].at_top
        return [hold, release] if decision.verdict is Verdict.CLAIM and not is_on_top else []

    def _done(self, decision: Decision, todo: list[Callable[[], None]], *, must: int) -> list[str]:
        """Do all acts, and return what did not work. If one of the first `must` acts fails, no further act is done."""
        problems: list[str] = []
        for at, do in enumerate(todo):
            self._state.check_leads()  # a hundred acts can take longer than a term
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
            entitlement_actions.record_action(db, JobActions(decision.job, released_s=now_s, at_top=at_top))
        self._slurm_admin.release(decision.job, top=at_top, submitted_s=job.submitted_s)

    def _hold(self, job: SlurmJob) -> None:
        self._slurm_admin.hold(job.id, submitted_s=job.submitted_s)
        self._reasons.forget(job.id)
        with self._state.writing() as db:
            entitlement_actions.forget(db, [job.id], told_before_s=0)

    def _vacate(self, job: SlurmJob, job_class: JobClass, now_s: float) -> None:
        """Preempt a job, or vacate an agent.

        A job that cannot be told counts as a job that was told and did not go, so another job goes. The act is recorded
        afterwards: if this program dies in between, the job is told once more. A job that has gone by then does not
        count against this hour's limit.
        """
        grace_s = self._settings.grace_s
        is_agent = job.partitions == (self._state.settings.cluster.partition,)
        try:
            if is_agent:
                self._cluster.vacate([job.id], gone_s=now_s + grace_s)
            elif job_class is JobClass.CHECKPOINTABLE:
                self._slurm_admin.signal(job.id, submitted_s=job.submitted_s)
            else:
                self._slurm_admin.requeue(job.id, submitted_s=job.submitted_s)
        except ClusterRefused:
            with self._state.writing() as db:
                entitlement_actions.record_action(db, JobActions(job.id, told_s=now_s - grace_s))
            raise
        with self._state.writing() as db:
            entitlement_actions.record_action(db, JobActions(job.id, told_s=now_s))
            if not is_agent:
                entitlement_actions.record_preemption(db, job.id, now_s)

    def _explain(self, jobs: Mapping[str, SlurmJob], decided: tuple[Decision, ...], now_s: float) -> None:
        """Write on held jobs, where `squeue` shows it, why they wait."""
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


def _done_with(known: Mapping[str, JobActions], seen: Snapshot) -> list[str]:
    """Return jobs that need not be remembered: ended, started since their release, or gone since they were told.

    A job that was released a moment ago may still be shown as held, since the view is older than the release.
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
