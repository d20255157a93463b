"""The live loop of draining: what admins asked for is in the queue, and is done here, a step at a time.

Before anything is done, the queue says that it is being done. A program killed anywhere in between goes on from what
Slurm shows: nodes that carry our mark, jobs that are still there. Telling a job twice does no harm.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import assert_never

import structlog

from gleaner.control.cluster.gateway import GatewayError, GatewayRefused
from gleaner.control.cluster.on_nodes import JobFound, NodesCluster, OnNodes
from gleaner.control.draining.finding import is_touched, merged, occupant, of_nodes
from gleaner.control.draining.rights import NodeRights
from gleaner.control.policy.draining import Deed, Occupant, obstacles
from gleaner.control.queue import agents, drains, governed, savable
from gleaner.control.queue.drain_tables import DrainPhase, DrainTask
from gleaner.control.queue.drains import DrainedJob, StoredDrain
from gleaner.control.queue.engine import snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.queue.governed import GovernedJob
from gleaner.control.queue.savable import AgentFound
from gleaner.control.site import Site
from gleaner.control.steward.request import LONGEST_PERSON

AWAKE_S = 10.0

_log = structlog.get_logger(__name__)


class Drainer:
    """Does what admins ask to be done to nodes. What it must remember is in the queue."""

    def __init__(self, site: Site, cluster: NodesCluster, steward: NodeRights) -> None:
        self._site = site
        self._cluster = cluster
        self._steward = steward
        self._awake_s = 0.0
        self._steps: Mapping[DrainPhase, Callable[[StoredDrain, float], StoredDrain]] = {
            DrainPhase.ASKED: self._begin,
            DrainPhase.MARKING: self._mark,
            DrainPhase.EMPTYING: self._empty,
            DrainPhase.SETTING_BACK: self._set_back,
        }

    def a_round(self, now_s: float) -> None:
        """One step of each request that is open. What does not answer is asked again in the next round."""
        if not self._site.is_leader:
            return
        try:
            with snapshot(self._site.engine) as db:
                # What is taken back goes first: else what it takes back might be done just before.
                todo = sorted(drains.open_ones(db), key=lambda each: each.task is not DrainTask.RESUME)
                has_nodes = bool(drains.drained(db))
            if has_nodes:
                self._stay_awake(now_s)
            for drain in todo:
                self._go_on(drain.id, now_s)
        except QueueError as error:
            _log.warning("drains wait for the queue", reason=str(error))

    def _stay_awake(self, now_s: float) -> None:
        """Keep the dead man's switch from setting back what is drained."""
        if 0 <= now_s - self._awake_s < AWAKE_S:
            return
        self._awake_s = now_s
        try:
            self._steward.awake()
        except GatewayError as error:
            _log.warning("drained nodes may be set back by the dead man's switch", reason=str(error))

    def _go_on(self, number: int, now_s: float) -> None:
        """Steps, one after the other, until one has to wait."""
        with snapshot(self._site.engine) as db:
            drain = drains.one(db, number)  # as it is now: another request of this round may have taken it back
        while not drain.is_over and self._site.is_leader:
            try:
                after = self._steps[drain.phase](drain, now_s)
            except GatewayRefused as error:
                # Nothing has been done before it is marked: so that is the answer. Later it has to be seen to its end.
                is_answer = drain.phase is DrainPhase.ASKED
                after = _over(drain, DrainPhase.REFUSED, str(error), now_s) if is_answer else _said(drain, error)
            except GatewayError as error:
                after = _said(drain, error)
            if after != drain:
                self._note(after, is_news=(after.phase, after.said) != (drain.phase, drain.said))
            if after.phase is drain.phase:
                return
            drain = after

    def _note(self, drain: StoredDrain, *, is_news: bool) -> None:
        with self._site.writing() as db:
            drains.note(db, drain)
        if is_news:
            facts = {"nodes": drain.nodes, "by": drain.by, "phase": drain.phase.value, "said": drain.said}
            _log.info(drain.task.value, drain=drain.id, **facts)

    # ── the steps: each gives how far the request is then ──

    def _begin(self, drain: StoredDrain, now_s: float) -> StoredDrain:
        if drain.task is DrainTask.RESUME and self._withdrew(drain, now_s):
            return _over(drain, DrainPhase.RESUMED, "", now_s)
        view = self._look(drain.nodes)
        if drain.task is DrainTask.RESUME:
            return self._take_back(drain, view, now_s)
        if wrong_with_it := of_nodes(view, drain.nodes):
            return _over(drain, DrainPhase.REFUSED, wrong_with_it, now_s)
        if drain.task is DrainTask.DRY_RUN:
            drain, in_the_way, _ = self._found(drain, view, now_s)
            return _over(drain, DrainPhase.LOOKED, _refusal(in_the_way), now_s)
        with self._site.writing() as db:  # an earlier drain's mark is gone, or we should have refused
            drains.set_back(db, drain.nodes, by="somebody else", before=drain.id, now_s=now_s)
        return replace(drain, phase=DrainPhase.MARKING, said="")

    def _withdrew(self, drain: StoredDrain, now_s: float) -> bool:
        """Take back what was only asked for, whatever Slurm or the steward say; whether there was no more to it."""
        with self._site.writing() as db:
            asked = {
                node
                for each in drains.withdrawable(db, before=drain.id)
                if each.phase is DrainPhase.ASKED
                for node in each.nodes
            }
            if not set(drain.nodes) <= asked - drains.nodes_drained(db).keys():
                return False
            drains.withdraw(db, drain.nodes, by=drain.by, before=drain.id, now_s=now_s)
            drains.note(db, _over(drain, DrainPhase.RESUMED, "", now_s))
        return True

    def _take_back(self, drain: StoredDrain, view: OnNodes, now_s: float) -> StoredDrain:
        """End what has been asked for earlier and has not begun, with or without a steward; the rest is set back.

        A node that Slurm does not know any more needs no more than that our drain of it ends.
        """
        with self._site.writing() as db:  # both or none: who comes next finds nothing of ours there any more
            asked = {node for each in drains.withdrawable(db, before=drain.id) for node in each.nodes}
            marked = {node for node, found in view.nodes.items() if found.is_ours}
            left = drains.nodes_drained(db).keys() - view.nodes.keys()
            if wrong := [node for node in drain.nodes if node not in asked | marked | left]:
                return _over(drain, DrainPhase.REFUSED, f"not drained by us: {', '.join(map(view.told, wrong))}", now_s)
            after = replace(drain, phase=DrainPhase.SETTING_BACK, said="")
            drains.withdraw(db, drain.nodes, by=drain.by, before=drain.id, now_s=now_s)
            drains.note(db, after)
        return after

    def _mark(self, drain: StoredDrain, now_s: float) -> StoredDrain:
        view = self._look(drain.nodes)
        unmarked = [node for node in drain.nodes if node not in view.nodes or not view.nodes[node].is_ours]
        try:
            if unmarked:
                self._steward.awake()
                self._steward.drain(unmarked, by=drain.by[:LONGEST_PERSON])
        except GatewayRefused as error:
            return replace(drain, phase=DrainPhase.SETTING_BACK, said=str(error))
        drain, in_the_way, _ = self._found(drain, self._look(drain.nodes), now_s)
        if in_the_way:
            return replace(drain, phase=DrainPhase.SETTING_BACK, said=_refusal(in_the_way))
        return replace(drain, phase=DrainPhase.EMPTYING, said="")

    def _set_back(self, drain: StoredDrain, now_s: float) -> StoredDrain:
        view = self._look(drain.nodes)
        marked = [node for node in drain.nodes if node in view.nodes and view.nodes[node].is_ours]
        try:
            if marked:
                self._steward.resume(marked)
        except GatewayRefused as error:
            said = f"{drain.said}; not set back: {error}" if drain.said else str(error)
            return _over(drain, DrainPhase.REFUSED, said, now_s)
        if drain.task is DrainTask.DRAIN:
            return _over(drain, DrainPhase.REFUSED, drain.said, now_s)
        with self._site.writing() as db:
            drains.set_back(db, drain.nodes, by=drain.by, before=drain.id, now_s=now_s)
        return _over(drain, DrainPhase.RESUMED, "", now_s)

    def _empty(self, drain: StoredDrain, now_s: float) -> StoredDrain:
        view = self._look(drain.nodes)
        if undone := [name for name in drain.nodes if name in view.nodes and not view.nodes[name].is_drained]:
            said = f"somebody else has set {', '.join(undone)} back"
            return _over(drain, DrainPhase.STOPPED, said, now_s)
        drain, _, found = self._found(drain, view, now_s)
        problems = [f"{name}: Slurm does not know it any more" for name in drain.nodes if name not in view.nodes]
        jobs = tuple(self._tell(job, found, now_s, problems) for job in drain.jobs)
        jobs = tuple(self._release(job, problems) for job in jobs)
        drain = replace(drain, jobs=jobs, said="; ".join(problems))
        if any(is_touched(job) and (job.gone_s is None or not job.released) for job in jobs):
            return drain
        if not drain.leaves_others and any(view.nodes[name].is_used for name in drain.nodes if name in view.nodes):
            others = sum(job.gone_s is None for job in jobs)
            return replace(drain, said=drain.said or ("" if others else "in use, by jobs that we are not shown"))
        return _over(drain, DrainPhase.EMPTY, drain.said, now_s)

    # ── what is there, and what is done to it ──

    def _look(self, nodes: Sequence[str]) -> OnNodes:
        return self._cluster.look(nodes)

    def _found(
        self, drain: StoredDrain, view: OnNodes, now_s: float
    ) -> tuple[StoredDrain, tuple[str, ...], Mapping[str, JobFound]]:
        """The drain with the jobs that are there now; what stands in its way; and the jobs as they were found."""
        settings = self._site.settings
        with snapshot(self._site.engine) as db:
            known: Mapping[str, AgentFound] = savable.agents_found(db, [job.id for job in view.jobs])
        found: list[tuple[JobFound, Occupant]] = []
        for job in view.jobs:
            governs, agents_in = settings.governing.partitions, settings.cluster.partition
            found.append((job, occupant(job, known, governed=governs, agents_in=agents_in)))
        jobs = merged(drain.jobs, found, known, drained=drain.nodes, spanning=drain.spanning, now_s=now_s)
        in_the_way = obstacles((each for _, each in found), drain.nodes, drain.spanning)
        return replace(drain, jobs=jobs), in_the_way, {job.id: job for job in view.jobs}

    def _tell(self, job: DrainedJob, found: Mapping[str, JobFound], now_s: float, problems: list[str]) -> DrainedJob:
        """Tell a job to leave; one that has not gone within its grace is told once more."""
        there = found.get(job.job)
        if there is None or there.is_ending or not is_touched(job):
            return job
        grace_s = self._site.settings.governing.grace_s
        if job.told_s is not None and now_s < job.told_s + grace_s:
            return job
        if job.told_s is not None:
            problems.append(f"job {job.job} was told to leave and has not gone within {grace_s:g} s; told once more")
        try:
            self._send_off(job, there, now_s, grace_s)
        except GatewayRefused as error:  # it may have ended just now: the next look shows
            problems.append(f"job {job.job}: {error}")
            return job
        return replace(job, told_s=now_s)

    def _send_off(self, job: DrainedJob, there: JobFound, now_s: float, grace_s: float) -> None:
        self._site.check_leads()
        match job.deed:
            case Deed.SEND_HOME:
                self._vacate(job.job)
                gone_s = now_s + grace_s
                self._cluster.send_home([job.job], gone_s=min(gone_s, (there.until_s or gone_s) - 1))
            case Deed.SAVE:
                self._steward.signal(job.job, submitted_s=there.submitted_s)
                self._told(job.job, now_s)
            case Deed.REQUEUE:
                self._steward.requeue(job.job, submitted_s=there.submitted_s)
                self._told(job.job, now_s)
            case Deed.WAIT:
                pass
            case _:
                assert_never(job.deed)

    def _vacate(self, scheduler_id: str) -> None:
        """The agent claims nothing more; should Slurm's signal not reach it, its next heartbeat tells it."""
        with self._site.writing() as db:
            known = savable.agents_found(db, [scheduler_id])
            if scheduler_id in known:
                agents.vacate(db, known[scheduler_id].name)

    def _told(self, job: str, now_s: float) -> None:
        """Governing counts it as leaving, and asks no other job for what this one frees."""
        if self._governs:
            with self._site.writing() as db:
                governed.note(db, GovernedJob(job, told_s=now_s))

    def _release(self, job: DrainedJob, problems: list[str]) -> DrainedJob:
        """Where governing does not, let a job that has left go to the top of the scheduler's queue."""
        if job.gone_s is None or job.released:
            return job
        if job.deed in {Deed.SEND_HOME, Deed.WAIT} or self._governs:
            return replace(job, released=True)
        # Also one of which nothing says that it was told: this program may have been killed just then.
        try:
            if self._cluster.waits_held(job.job):
                self._steward.release(job.job, top=True)
        except GatewayRefused as error:
            problems.append(f"job {job.job} has left, and was not released: {error}")
        return replace(job, released=True)

    @property
    def _governs(self) -> bool:
        return self._site.settings.governing.mode == "on"


def _over(drain: StoredDrain, phase: DrainPhase, said: str, now_s: float) -> StoredDrain:
    return replace(drain, phase=phase, said=said, ended_s=now_s)


def _said(drain: StoredDrain, error: GatewayError) -> StoredDrain:
    return replace(drain, said=str(error))


def _refusal(in_the_way: tuple[str, ...]) -> str:
    return "; ".join(in_the_way)
