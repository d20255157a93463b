"""The live loop of governing: look at the owners' partitions, have the policy rule, act. Or only say what it would do.

A job is released before anybody gives way for it, at the top of Slurm's queue: whatever falls free goes to it, also if
this program dies in between, and the next look finds it waiting and goes on.
"""

from collections.abc import Callable, Mapping
from functools import partial

import structlog

from gleaner.control.cluster.gateway import GatewayError, GatewayRefused, GatewayUnavailable
from gleaner.control.cluster.owners import OwnedJob, OwnedPhase, OwnersCluster, OwnersView
from gleaner.control.governing.assembling import assembled, put_right
from gleaner.control.governing.reasons import Reasons
from gleaner.control.governing.rights import Rights
from gleaner.control.policy.governing import POLICY, govern
from gleaner.control.policy.governing_view import Governing, GovernView, Ruling, Verdict, as_answer, as_given
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.subjects import slurm_subject
from gleaner.control.queue import decisions, governed
from gleaner.control.queue.decision_tables import DecisionKind
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import NotLeading, QueueError
from gleaner.control.queue.governed import GovernedJob
from gleaner.control.queue.leader import Term
from gleaner.control.site import Site

HOUR_S = 3600.0
REMEMBERED_S = 24 * HOUR_S
ACTS_A_ROUND = 100
"""So many jobs at most are told something in one round: then it looks again, since what it saw grows old."""
UNCHECKED_S = HOUR_S
"""For so long jobs stay held by a control that cannot check whether it may govern."""

_log = structlog.get_logger(__name__)


class Governor:
    """What outlives one round: what was ruled last of each job, so that only news is written down."""

    def __init__(self, site: Site, cluster: OwnersCluster, steward: Rights) -> None:
        self._site = site
        self._settings = site.settings.governing
        self._cluster = cluster
        self._steward = steward
        self._is_checked = False
        self._unchecked_since_s: float | None = None
        self._is_stuck = False
        self._announced: Term | None = None
        self._reasons = Reasons()
        self._ruled: dict[str, tuple[Verdict, tuple[str, ...]]] = {}

    @property
    def _acts(self) -> bool:
        return self._settings.mode == "on"

    def a_round(self, now_s: float) -> None:
        """Look once, and do what is ruled. A scheduler, a steward or a queue that fails is a `problem`, no error."""
        if not self._site.is_leader:
            return
        try:
            self._announce()
            self._check(now_s)
            seen = self._look(now_s)
            known = self._known(seen)
            view = self._assembled(seen, known)
            rulings = govern(view)
            if not self._site.is_leader:  # the look may have taken longer than the term
                return
            if self._acts:
                # Only now: jobs are held for one who can decide, not for one who fails at it again and again. And
                # before anything is stored as done: the steward may refuse.
                self._alive()
            self._write_down(view, rulings)
            problem = self._act(seen, view, rulings, known) if self._acts else ""
            self._is_stuck = False
            self._say(Governing(view, rulings, problem))
        except (GatewayError, QueueError) as error:
            is_stuck = isinstance(error, QueueError) and not isinstance(error, NotLeading)
            self._is_stuck = self._is_stuck or is_stuck
            last = self._site.governing
            self._say(Governing(last.view, last.rulings, str(error)))

    def _announce(self) -> None:
        """Tell the steward who leads now, before the first look: what an earlier leader asks for later is refused."""
        term = self._site.term
        if self._acts and term is not None and term != self._announced:
            self._steward.awake()
            self._announced = term

    def _alive(self) -> None:
        """Say so, but not after a round that could not write to the queue: that is known only after a whole one."""
        if not self._is_stuck:
            self._steward.alive(self._settings.partitions)

    def _check(self, now_s: float) -> None:
        """Once after each start. While it cannot be done nothing is ruled.

        What is held then was held for a control that had passed it, mostly with the same settings: a restart while
        slurmdbd is being upgraded is not to let all of that go. But nobody is released meanwhile, so it has an end.
        """
        if self._is_checked:
            return
        try:
            self._cluster.check(sorted(self._settings.entitled))
        except GatewayUnavailable:
            if self._unchecked_since_s is None:
                self._unchecked_since_s = now_s
            if self._acts and now_s < self._unchecked_since_s + UNCHECKED_S and self._may_hold_some(now_s):
                self._alive()
            raise
        self._is_checked = True

    def _may_hold_some(self, now_s: float) -> bool:
        """Whether jobs are held for us, or that cannot be told."""
        try:
            return any(job.held and job.ours for job in self._cluster.look(now_s).jobs)
        except GatewayUnavailable:
            return True

    def _look(self, now_s: float) -> OwnersView:
        """While Slurm is away nothing can be decided; what is held stays held until it is back."""
        try:
            return self._cluster.look(now_s)
        except GatewayUnavailable:
            if self._acts:
                self._alive()
            raise

    def _known(self, seen: OwnersView) -> dict[str, GovernedJob]:
        """What is remembered of the jobs, without what needs not be any more, and as the jobs themselves say it."""
        with snapshot(self._site.engine) as db:
            known = governed.all_of_them(db)
        gone = _done_with(known, seen)
        known = {job: state for job, state in known.items() if job not in gone}
        fresh = put_right(known, seen) if self._acts else []
        if gone or fresh:
            with self._site.writing() as db:
                governed.forget(db, gone, told_before_s=seen.read_s - REMEMBERED_S)
                for state in fresh:
                    governed.note(db, state)
        return known | {state.job: state for state in fresh}

    def _assembled(self, seen: OwnersView, known: Mapping[str, GovernedJob]) -> GovernView:
        with snapshot(self._site.engine) as db:
            told = governed.told_since(db, seen.read_s - HOUR_S)
        partition = self._site.settings.cluster.partition
        return assembled(seen, known, self._settings, agents_partition=partition, told_this_hour=told)

    # ── what was decided ──

    def _write_down(self, view: GovernView, rulings: tuple[Ruling, ...]) -> None:
        """Store a decision if anything is ruled otherwise than before."""
        now = {ruling.job: (ruling.verdict, ruling.victims) for ruling in rulings}
        news = [ruling for ruling in rulings if self._is_news(ruling)]
        if not news:
            self._ruled = now
            return
        owners = {job.job: job.owner for job in view.waiting} | {job.job: job.owner for job in view.running}
        about = [job for ruling in news for job in (ruling.job, *ruling.victims)]
        kind = DecisionKind.HOLD
        if any(ruling.verdict is not Verdict.HOLD for ruling in news):
            kind = DecisionKind.VICTIM if any(ruling.victims for ruling in news) else DecisionKind.START
        with self._site.writing() as db:
            number = decisions.record(
                db,
                kind=kind,
                subjects=[slurm_subject(job) for job in about],
                policy=POLICY,
                given=as_given(view),
                answer=as_answer(rulings),
                acted=self._acts,
                now_s=view.now_s,
                groups={slurm_subject(job): owners[job] for job in about},
            )
        self._ruled = now  # only now: what could not be stored is still news
        for ruling in news:
            _log.info(
                "ruled" if self._acts else "dry run: it would be ruled",
                job=ruling.job, verdict=ruling.verdict.value, victims=ruling.victims, why=ruling.why, decision=number,
            )  # fmt: skip

    def _is_news(self, ruling: Ruling) -> bool:
        """Not that those who gave way for it have been told, and need not be told again."""
        verdict, victims = self._ruled.get(ruling.job, (None, ()))
        return ruling.verdict is not verdict or ruling.victims not in {victims, ()}

    # ── what is done ──

    def _act(
        self, seen: OwnersView, view: GovernView, rulings: tuple[Ruling, ...], known: Mapping[str, GovernedJob]
    ) -> str:
        """Do what is ruled; what did not work, in one line. What is held again goes first: others have its room.

        Nobody gives way for a job that could not be released: its owner may just have cancelled it.
        """
        jobs = {job.id: job for job in seen.jobs}
        released = {job.job for job in view.waiting if job.released or job.kept_back}
        classes = {job.job: job.job_class for job in view.running}
        problems: list[str] = []
        acts = 0
        for ruling in sorted(rulings, key=lambda ruling: ruling.verdict is not Verdict.HOLD):
            is_released = ruling.job in released
            todo = self._of_the_job(ruling, jobs[ruling.job], view.now_s, is_released=is_released, known=known)
            todo += [partial(self._vacate, jobs[one], classes[one], view.now_s) for one in ruling.victims]
            if not todo or acts >= ACTS_A_ROUND:
                continue
            acts += len(todo)
            self._alive()  # a long round is no silence
            problems += self._done(ruling, todo, must=len(todo) - len(ruling.victims))
        self._explain(jobs, rulings, view.now_s)
        return "; ".join(problems)

    def _of_the_job(
        self, ruling: Ruling, job: OwnedJob, now_s: float, *, is_released: bool, known: Mapping[str, GovernedJob]
    ) -> list[Callable[[], None]]:
        """What is to be done with the waiting job itself. Only a job that is held can be put on top."""
        hold, release = partial(self._hold, job), partial(self._release, ruling, job, now_s)
        if ruling.verdict is Verdict.HOLD:
            return [hold] if is_released else []
        if not is_released:
            return [release]
        is_on_top = ruling.job in known and known[ruling.job].at_top
        return [hold, release] if ruling.verdict is Verdict.CLAIM and not is_on_top else []

    def _done(self, ruling: Ruling, todo: list[Callable[[], None]], *, must: int) -> list[str]:
        """Do all of it; what did not work. Without the first ones (`must`) nothing else is done."""
        problems: list[str] = []
        for at, do in enumerate(todo):
            self._site.check_leads()  # a hundred acts take longer than a term may last
            try:
                do()
            except GatewayRefused as error:
                problems.append(f"for job {ruling.job}: {error}")
                if at < must:
                    break
        return problems

    def _release(self, ruling: Ruling, job: OwnedJob, now_s: float) -> None:
        at_top = ruling.verdict is Verdict.CLAIM
        with self._site.writing() as db:
            governed.note(db, GovernedJob(ruling.job, released_s=now_s, at_top=at_top))
        self._steward.release(ruling.job, top=at_top, submitted_s=_submitted_s(job))

    def _hold(self, job: OwnedJob) -> None:
        self._steward.hold(job.id, submitted_s=_submitted_s(job))
        self._reasons.forget(job.id)
        with self._site.writing() as db:
            governed.forget(db, [job.id], told_before_s=0)

    def _vacate(self, job: OwnedJob, job_class: JobClass, now_s: float) -> None:
        """Tell a job to give way. One that cannot be told is as one that was told and did not go: another one goes.

        Noted afterwards: if this program dies in between, the job is told once more. One that has gone by then is not
        counted for this hour's ceiling.
        """
        grace_s = self._settings.grace_s
        is_agent = job.partition == self._site.settings.cluster.partition
        try:
            if is_agent:
                self._cluster.send_home([job.id], gone_s=now_s + grace_s)
            elif job_class is JobClass.CHECKPOINTABLE:
                self._steward.signal(job.id, submitted_s=_submitted_s(job))
            else:
                self._steward.requeue(job.id, submitted_s=_submitted_s(job))
        except GatewayRefused:
            with self._site.writing() as db:
                governed.note(db, GovernedJob(job.id, told_s=now_s - grace_s))
            raise
        with self._site.writing() as db:
            governed.note(db, GovernedJob(job.id, told_s=now_s))
            if not is_agent:
                governed.count_told(db, job.id, now_s)

    def _explain(self, jobs: Mapping[str, OwnedJob], rulings: tuple[Ruling, ...], now_s: float) -> None:
        """Write on held jobs why they wait, where `squeue` shows it."""
        for job, text in self._reasons.due(rulings, {job.id: job.said for job in jobs.values()}, now_s):
            try:
                self._steward.set_reason(job, text, submitted_s=_submitted_s(jobs[job]))
            except GatewayRefused as error:
                _log.info("no reason could be written", job=job, why=str(error))

    def _say(self, how: Governing) -> None:
        if how.problem and how.problem != self._site.governing.problem:
            _log.warning("governing: a problem", problem=how.problem)
        elif self._site.governing.problem and not how.problem:
            _log.info("governing: the problem is solved", problem=self._site.governing.problem)
        self._site.governing = how


def _submitted_s(job: OwnedJob) -> float | None:
    """What tells it from another job of its number; None: Slurm has not said."""
    return job.submitted_s or None


def _done_with(known: Mapping[str, GovernedJob], seen: OwnersView) -> list[str]:
    """Jobs of which nothing needs to be remembered: ended, started since they were released, gone since they were told.

    One that was released a moment ago may still be shown as held: the view is older than the release.
    """
    there = {job.id: job for job in seen.jobs}
    done: list[str] = []
    for state in known.values():
        job = there.get(state.job)
        is_pending = job is not None and job.phase is OwnedPhase.PENDING
        if (
            job is None
            or (state.told_s is not None and is_pending)
            or (state.released_s is not None and not is_pending)
        ):
            done.append(state.job)
    return done
