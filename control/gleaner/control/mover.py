"""Moving running jobs from one agent to another: the moves that people have asked for are seen to their end, and, if
the settings say so, a policy chooses more in the background. One at a time, and none while anything waits."""

import structlog

from gleaner.control.cluster.hosts import expanded
from gleaner.control.policy.moving import POLICY, Move, MoveView, as_answer, as_given, decide
from gleaner.control.policy.subjects import job_subject
from gleaner.control.queue import decisions, migrating, reads
from gleaner.control.queue.decision_tables import DecisionKind
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import QueueError, Refused
from gleaner.control.queue.movables import movables
from gleaner.control.site import Site

_log = structlog.get_logger(__name__)


class Mover:
    """What outlives a round: when the policy was asked last."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._settings = site.settings.migration
        self._asked_s = 0.0

    def a_round(self, now_s: float) -> None:
        """End what is over, and begin one more move if it is time to and one pays."""
        if not self._site.is_leader:
            return
        try:
            with snapshot(self._site.engine) as db:
                moving = migrating.all_of_them(db)
            if moving:
                with self._site.writing() as db:
                    migrating.tend(db, patience_s=self._settings.patience_s, now_s=now_s)
            if self._settings.policy != "none" and not 0 <= now_s - self._asked_s < self._settings.every_s:
                self._asked_s = now_s
                self._choose(now_s)
        except QueueError as error:
            _log.warning("moves wait for the queue", reason=str(error))

    def _choose(self, now_s: float) -> None:
        view = self._view(now_s)
        move = decide(view)
        if move is not None and self._site.is_leader:
            self._begin(move, view, now_s)

    def _view(self, now_s: float) -> MoveView:
        settings = self._settings
        with snapshot(self._site.engine) as db:
            nodes, jobs = movables(db, settled_s=settings.every_s, assumed_s=settings.assumed_s, now_s=now_s)
            waiting, moving = reads.waiting(db, limits=self._site.foreseen), migrating.all_of_them(db)
        return MoveView(
            now_s=now_s,
            algorithm="priorities" if settings.policy == "priorities" else "compaction",
            every_s=settings.every_s,
            prefer=tuple(tuple(expanded(each)) for each in settings.prefer),
            waiting=sum(each.count for each in waiting),
            moving=len(moving),
            nodes=nodes,
            jobs=jobs,
        )

    def _begin(self, move: Move, view: MoveView, now_s: float) -> None:
        try:
            with self._site.writing() as db:
                migrating.ask(db, move.job, to=move.to_node, by=f"the policy {view.algorithm}", now_s=now_s)
                number = decisions.record(
                    db,
                    kind=DecisionKind.MIGRATE,
                    subjects=[job_subject(move.job)],
                    policy=POLICY,
                    given=as_given(view),
                    answer=as_answer(move),
                    acted=True,
                    now_s=now_s,
                )
        except Refused as error:  # it has ended just now, or its target has
            _log.info("not moved after all", job=move.job, why=str(error))
            return
        _log.info(
            "moves", job=move.job, from_node=move.from_node, to_node=move.to_node, cost_core_s=round(move.cost_core_s),
            gain_core_s=round(move.gain_core_s), decision=number,
        )  # fmt: skip
