"""The rebalancing loop, which migrates running jobs from one agent to another.

The loop completes the migrations that people request. If the settings enable it, a policy also chooses migrations in
the background, one at a time, and only while no job waits.
"""

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.hostlist import expanded
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.policy.rebalancing import POLICY, RebalancingView, Relocation, as_answer, as_input, decide
from gleaner.control.queue import decisions, queries, relocation
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.relocation import nodes_and_jobs

_log = structlog.get_logger(__name__)


class Rebalancer:
    """The state that outlives a round: the time at which the policy was last called."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._settings = state.settings.migration
        self._asked_s = 0.0

    def step(self, now_s: float) -> None:
        """End the migrations that are over, and begin another one if it is time and a migration pays off.

        Raises `QueueError`.
        """
        with snapshot(self._state.engine) as db:
            moving = relocation.all_relocations(db)
        if moving:
            with self._state.writing() as db:
                relocation.conclude(db, patience_s=self._settings.patience_s, now_s=now_s)
        if self._settings.policy != "none" and not 0 <= now_s - self._asked_s < self._settings.every_s:
            self._asked_s = now_s
            self._choose(now_s)

    def _choose(self, now_s: float) -> None:
        view = self._view(now_s)
        move = decide(view)
        if move is not None and self._state.is_leader:
            self._begin(move, view, now_s)

    def _view(self, now_s: float) -> RebalancingView:
        settings = self._settings
        with snapshot(self._state.engine) as db:
            nodes, jobs = nodes_and_jobs(db, settled_s=settings.every_s, assumed_s=settings.assumed_s, now_s=now_s)
            waiting, moving = queries.waiting(db, limits=self._state.foreseen), relocation.all_relocations(db)
        return RebalancingView(
            now_s=now_s,
            algorithm="priorities" if settings.policy == "priorities" else "compaction",
            every_s=settings.every_s,
            prefer=tuple(tuple(expanded(each)) for each in settings.prefer),
            waiting=sum(each.count for each in waiting),
            moving=len(moving),
            nodes=nodes,
            jobs=jobs,
        )

    def _begin(self, move: Relocation, view: RebalancingView, now_s: float) -> None:
        try:
            with self._state.writing() as db:
                relocation.ask(db, move.job, to=move.to_node, by=f"the policy {view.algorithm}", now_s=now_s)
                number = decisions.record(
                    db,
                    kind=DecisionKind.MIGRATE,
                    subjects={f"job {move.job}": None},
                    policy=POLICY,
                    given=as_input(view),
                    answer=as_answer(move),
                    acted=True,
                    now_s=now_s,
                )
        except Conflict as error:  # the job or its target has just ended
            _log.info("not moved after all", job=move.job, why=str(error))
            return
        _log.info(
            "moves", job=move.job, from_node=move.from_node, to_node=move.to_node, cost_core_s=round(move.cost_core_s),
            gain_core_s=round(move.gain_core_s), decision=number,
        )  # fmt: skip
