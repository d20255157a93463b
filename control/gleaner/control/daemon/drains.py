"""The drain loop, which carries out the admins' requests from the queue, one step at a time.

The queue records each step before it is carried out. If a program is killed in between, the next one continues from the
nodes with our mark and the remaining jobs, as Slurm shows them. A job can safely be told to leave a second time.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import assert_never

import structlog

from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import do_each
from gleaner.control.models.base import replaced
from gleaner.control.models.drains import DrainedJob, DrainPhase, DrainRow, DrainTask
from gleaner.control.policy.draining import Deed, deed, obstacle
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.queue import agents, decisions, drains, relocation
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.decisions import JobActions
from gleaner.control.queue.relocation import AgentFound
from gleaner.control.slurm.interface import Cluster, ClusterError, ClusterRefused
from gleaner.control.slurm.owners_view import job_class
from gleaner.control.slurm.snapshot import DRAINED_BY, SlurmJob, SlurmNode, Snapshot, number_of
from gleaner.control.slurm_admin.client import SlurmAdminClient
from gleaner.control.slurm_admin.request import LONGEST_PERSON

AWAKE_S = 10.0

_DEEDS = {
    JobClass.CHECKPOINTABLE: Deed.SAVE,
    JobClass.PREEMPTIBLE: Deed.REQUEUE,
    JobClass.NON_PREEMPTIBLE: Deed.WAIT,
}

_log = structlog.get_logger(__name__)


class Drains:
    """The drain loop, whose `step` is called in each round.

    Its whole state is in the queue, except for the time of the last call to the dead man's switch.
    """

    def __init__(self, state: ControlState, cluster: Cluster, slurm_admin: SlurmAdminClient) -> None:
        self._state = state
        self._cluster = cluster
        self._slurm_admin = slurm_admin
        self._awake_s = 0.0
        self._steps: Mapping[DrainPhase, Callable[[DrainRow, float], DrainRow]] = {
            DrainPhase.ASKED: self._begin,
            DrainPhase.MARKING: self._mark,
            DrainPhase.EMPTYING: self._empty,
            DrainPhase.SETTING_BACK: self._set_back,
        }

    def step(self, now_s: float) -> None:
        """Continue each open request. If a service does not answer, the next round tries again.

        Raises `QueueError`.
        """
        with snapshot(self._state.engine) as db:
            # A request that withdraws others comes first, because the others might otherwise be carried out just before
            # it.
            todo = sorted(drains.open_ones(db), key=lambda each: each.task is not DrainTask.RESUME)
            has_nodes = bool(drains.drains_in_effect(db))
        if has_nodes:
            self._stay_awake(now_s)
        do_each(todo, lambda drain: self._go_on(drain.id, now_s))

    def _stay_awake(self, now_s: float) -> None:
        """Keep the dead man's switch from resuming drained nodes."""
        if 0 <= now_s - self._awake_s < AWAKE_S:
            return
        self._awake_s = now_s
        try:
            self._slurm_admin.awake()
        except ClusterError as error:
            _log.warning("drained nodes may be set back by the dead man's switch", reason=str(error))

    def _go_on(self, number: int, now_s: float) -> None:
        """Carry out a request's steps, one after the other, until a step has to wait."""
        with snapshot(self._state.engine) as db:
            drain = drains.one(db, number)  # read again, because another request of this round might have withdrawn it
        while not drain.is_over and self._state.is_leader:
            try:
                after = self._steps[drain.phase](drain, now_s)
            except ClusterRefused as error:
                # Before MARKING nothing has been changed, so a refusal ends the request. A later phase must be
                # completed.
                after = replaced(drain, said=str(error))
                if drain.phase is DrainPhase.ASKED:
                    after = _over(drain, DrainPhase.REFUSED, str(error), now_s)
            except ClusterError as error:
                after = replaced(drain, said=str(error))
            if after != drain:
                self._note(after, is_news=(after.phase, after.said) != (drain.phase, drain.said))
            if after.phase is drain.phase:
                return
            drain = after

    def _note(self, drain: DrainRow, *, is_news: bool) -> None:
        with self._state.writing() as db:
            drains.record_progress(db, drain)
        if is_news:
            facts = {"nodes": drain.nodes, "by": drain.by, "phase": drain.phase.value, "said": drain.said}
            _log.info(drain.task.value, drain=drain.id, **facts)

    # ── the steps: each returns the request in its new state ──

    def _begin(self, drain: DrainRow, now_s: float) -> DrainRow:
        if drain.task is DrainTask.RESUME:
            return self._take_back(drain, now_s)
        view = self._cluster.read_nodes(drain.nodes, now_s)
        if reason := why_not_drainable(view, drain.nodes):
            return _over(drain, DrainPhase.REFUSED, reason, now_s)
        if drain.task is DrainTask.DRY_RUN:
            drain, in_the_way, _ = self._found(drain, view, now_s)
            return _over(drain, DrainPhase.LOOKED, "; ".join(in_the_way), now_s)
        with self._state.writing() as db:  # the nodes have no mark of an earlier drain
            drains.set_back(db, drain.nodes, by="somebody else", before=drain.id, now_s=now_s)
        return replaced(drain, phase=DrainPhase.MARKING, said="")

    def _take_back(self, drain: DrainRow, now_s: float) -> DrainRow:
        """Withdraw the drains that have not begun, and resume the nodes that are already drained.

        Withdrawing works without a Slurm admin service. For a node that Slurm no longer knows, only our record of the
        drain is ended.
        """
        view = self._look(drain, now_s)
        with self._state.writing() as db:  # in one transaction, so that none of our drains is left half ended
            asked = {node for each in drains.withdrawable(db, before=drain.id) for node in each.nodes}
            marked = {node for node, found in view.nodes.items() if is_ours(found)}
            left = drains.drain_by_node(db).keys() - view.nodes.keys()
            if wrong := [node for node in drain.nodes if node not in asked | marked | left]:
                shown = ", ".join(node_with_reason(view, node) for node in wrong)
                return _over(drain, DrainPhase.REFUSED, f"not drained by us: {shown}", now_s)
            after = replaced(drain, phase=DrainPhase.SETTING_BACK, said="")
            drains.withdraw(db, drain.nodes, by=drain.by, before=drain.id, now_s=now_s)
            drains.record_progress(db, after)
        return after

    def _mark(self, drain: DrainRow, now_s: float) -> DrainRow:
        view = self._cluster.read_nodes(drain.nodes, now_s)
        unmarked = [node for node in drain.nodes if node not in view.nodes or not is_ours(view.nodes[node])]
        try:
            if unmarked:
                self._slurm_admin.awake()
                self._slurm_admin.drain(unmarked, by=drain.by[:LONGEST_PERSON])
        except ClusterRefused as error:
            return replaced(drain, phase=DrainPhase.SETTING_BACK, said=str(error))
        drain, in_the_way, _ = self._found(drain, self._cluster.read_nodes(drain.nodes, now_s), now_s)
        if in_the_way:
            return replaced(drain, phase=DrainPhase.SETTING_BACK, said="; ".join(in_the_way))
        return replaced(drain, phase=DrainPhase.EMPTYING, said="")

    def _set_back(self, drain: DrainRow, now_s: float) -> DrainRow:
        view = self._look(drain, now_s)
        marked = [node for node in drain.nodes if node in view.nodes and is_ours(view.nodes[node])]
        try:
            if marked:
                self._slurm_admin.resume(marked)
        except ClusterRefused as error:
            said = f"{drain.said}; not set back: {error}" if drain.said else str(error)
            return _over(drain, DrainPhase.REFUSED, said, now_s)
        if drain.task is DrainTask.DRAIN:
            return _over(drain, DrainPhase.REFUSED, drain.said, now_s)
        with self._state.writing() as db:
            drains.set_back(db, drain.nodes, by=drain.by, before=drain.id, now_s=now_s)
        return _over(drain, DrainPhase.RESUMED, "", now_s)

    def _empty(self, drain: DrainRow, now_s: float) -> DrainRow:
        view = self._look(drain, now_s)
        if undone := [name for name in drain.nodes if name in view.nodes and not view.nodes[name].is_drained]:
            said = f"somebody else has set {', '.join(undone)} back"
            return _over(drain, DrainPhase.STOPPED, said, now_s)
        drain, _, found = self._found(drain, view, now_s)
        problems = [f"{name}: Slurm does not know it any more" for name in drain.nodes if name not in view.nodes]
        problems += filter(None, [view.gaps])
        jobs = tuple(self._tell(job, found, now_s, problems) for job in drain.jobs)
        jobs = tuple(self._release(job, problems) for job in jobs)
        drain = replaced(drain, jobs=jobs, said="; ".join(problems))
        if any(is_touched(job) and (job.gone_s is None or not job.released) for job in jobs):
            return drain
        if not drain.leaves_others and any(view.nodes[name].is_used for name in drain.nodes if name in view.nodes):
            others = sum(job.gone_s is None for job in jobs)
            return replaced(drain, said=drain.said or ("" if others else "in use, by jobs that we are not shown"))
        return _over(drain, DrainPhase.EMPTY, drain.said, now_s)

    # ── the state of the nodes, and the actions on it ──

    def _look(self, drain: DrainRow, now_s: float) -> Snapshot:
        """Return the nodes of a drain that has begun.

        Raises `ClusterError` if the record of one of them is unreadable.
        """
        view = self._cluster.read_nodes(drain.nodes, now_s)
        if view.gaps and not set(drain.nodes) <= view.nodes.keys():
            raise ClusterError(view.gaps)  # a node whose record is unreadable still exists in Slurm
        return view

    def _found(
        self, drain: DrainRow, view: Snapshot, now_s: float
    ) -> tuple[DrainRow, tuple[str, ...], Mapping[str, SlurmJob]]:
        """Return the drain with the jobs that are there now, the obstacles to it, and Slurm's records of the jobs."""
        settings = self._state.settings
        with snapshot(self._state.engine) as db:
            known: Mapping[str, AgentFound] = relocation.find_agents(db, [job.id for job in view.jobs])
        owners_in, agents_in = settings.entitlements.partitions, settings.cluster.partition
        alone = {job.id: deed_of(job, owners_in=owners_in, agents_in=agents_in) for job in view.jobs}
        in_the_way = [in_the_way_of(drain, job, alone[job.id], known) for job in view.jobs]
        drain = replaced(drain, jobs=drain_jobs(drain, view, alone, known, now_s))
        return drain, tuple(filter(None, (*in_the_way, view.gaps))), {job.id: job for job in view.jobs}

    def _tell(self, job: DrainedJob, found: Mapping[str, SlurmJob], now_s: float, problems: list[str]) -> DrainedJob:
        """Tell a job to leave its nodes, and tell it again if it has not left within its grace time."""
        there = found.get(job.job)
        if there is None or there.is_completing or not is_touched(job):
            return job
        grace_s = self._state.settings.entitlements.grace_s
        if job.told_s is not None and now_s < job.told_s + grace_s:
            return job
        if job.told_s is not None:
            problems.append(f"job {job.job} was told to leave and has not gone within {grace_s:g} s; told once more")
        try:
            self._send_off(job, there, now_s, grace_s)
        except ClusterRefused as error:  # the job might have just ended, as the next snapshot will show
            problems.append(f"job {job.job}: {error}")
            return job
        return replaced(job, told_s=now_s)

    def _send_off(self, job: DrainedJob, there: SlurmJob, now_s: float, grace_s: float) -> None:
        self._state.check_leads()
        match job.deed:
            case Deed.VACATE:
                self._vacate(job.job)
                gone_s = now_s + grace_s
                self._cluster.vacate([job.job], gone_s=min(gone_s, (there.end_s or gone_s) - 1))
            case Deed.SAVE:
                self._slurm_admin.signal(job.job, submitted_s=there.submitted_s)
                self._told(job.job, now_s)
            case Deed.REQUEUE:
                self._slurm_admin.requeue(job.job, submitted_s=there.submitted_s)
                self._told(job.job, now_s)
            case Deed.WAIT:
                pass
            case _:
                assert_never(job.deed)

    def _vacate(self, scheduler_id: str) -> None:
        """Record that the agent is to vacate. It can claim no more jobs, and its next heartbeat tells it to leave."""
        with self._state.writing() as db:
            known = relocation.find_agents(db, [scheduler_id])
            if scheduler_id in known:
                agents.vacate(db, known[scheduler_id].name)

    def _told(self, job: str, now_s: float) -> None:
        """Record for the entitlements loop that the job was told to leave, so that the loop does not preempt another
        job instead."""
        if self._has_entitlements:
            with self._state.writing() as db:
                decisions.record_action(db, JobActions(job, told_s=now_s))

    def _release(self, job: DrainedJob, problems: list[str]) -> DrainedJob:
        """Once a job has left, release it to the top of Slurm's queue, unless the entitlements loop controls its
        release."""
        if job.gone_s is None or job.released:
            return job
        if job.deed in {Deed.VACATE, Deed.WAIT} or self._has_entitlements:
            return replaced(job, released=True)
        # A job is released even if no order to leave was recorded, because a program might have been killed just then.
        try:
            found = self._cluster.read_job(job.job)
            if found is not None and found.is_held:
                self._slurm_admin.release(job.job, top=True, submitted_s=found.submitted_s)
        except ClusterRefused as error:
            problems.append(f"job {job.job} has left, and was not released: {error}")
        return replaced(job, released=True)

    @property
    def _has_entitlements(self) -> bool:
        return self._state.settings.entitlements.mode == "on"


def _over(drain: DrainRow, phase: DrainPhase, said: str, now_s: float) -> DrainRow:
    return replaced(drain, phase=phase, said=said, ended_s=now_s)


# ── the jobs on the nodes, as values for the policy and the queue's table ──


def deed_of(job: SlurmJob, *, owners_in: Collection[str], agents_in: str) -> Deed:
    """Return the action for a job that uses only drained nodes. The class that a job declares is valid only in the
    owners' partitions."""
    if job.partitions == (agents_in,):
        return Deed.VACATE
    return _DEEDS[job_class(job)] if set(job.partitions) <= set(owners_in) else Deed.WAIT


def in_the_way_of(drain: DrainRow, job: SlurmJob, alone: Deed, agents: Mapping[str, AgentFound]) -> str:
    """Return the reason why a job prevents its nodes from being drained, or "" if it does not."""
    cannot = agents[job.id].cannot if job.id in agents else ""
    if alone is Deed.REQUEUE and not job.is_requeuable:
        cannot = "it cannot be requeued: it is interactive, or was submitted with --no-requeue"
    name = f"agent {job.id}" if alone is Deed.VACATE else f"{job.user}'s job {job.id}"
    return obstacle(name, alone, elsewhere=_elsewhere(drain, job), cannot=cannot, spanning=drain.spanning)


def _elsewhere(drain: DrainRow, job: SlurmJob) -> list[str]:
    return [node for node in job.nodes if node not in drain.nodes]


def drain_jobs(
    drain: DrainRow, view: Snapshot, alone: Mapping[str, Deed], agents: Mapping[str, AgentFound], now_s: float
) -> tuple[DrainedJob, ...]:
    """Return the jobs of a drain, both those that were known before and those that are there now.

    If the snapshot has unreadable records, a job that is missing from it does not count as gone.
    """
    known = {job.job: job for job in drain.jobs}
    there: dict[str, DrainedJob] = {}
    for job in view.jobs:
        left = len(agents[job.id].jobs) if job.id in agents else 1
        fresh = DrainedJob(
            job=job.id,
            user=job.user,
            deed=deed(alone[job.id], spans=bool(_elsewhere(drain, job)), spanning=drain.spanning),
            nodes=job.nodes,
            until_s=job.end_s,
            at_first=max(1, left),
        )
        there[job.id] = replaced(known.get(job.id, fresh), left=max(1, left), until_s=job.end_s, gone_s=None)
    gone = [
        job if view.gaps or job.gone_s is not None else replaced(job, left=0, gone_s=now_s)
        for job in drain.jobs
        if job.job not in there
    ]
    return tuple(sorted([*there.values(), *gone], key=lambda job: (number_of(job.job), job.job)))


def is_touched(job: DrainedJob) -> bool:
    """Return True if the drain acts on this job."""
    return job.deed is not Deed.WAIT


def is_ours(node: SlurmNode) -> bool:
    """Return True if the node is drained with our mark.

    The mark alone is not enough, because a node can keep its reason after the drain has ended.
    """
    return node.is_drained and node.reason.startswith(DRAINED_BY)


def node_with_reason(snapshot: Snapshot, name: str) -> str:
    """Return a node's name with the reason for its state, as a text for users."""
    node = snapshot.nodes.get(name)
    if node is None:
        return f"{name} (the scheduler does not know it)"
    return f"{name} ({node.reason or 'no reason given'})" if node.is_drained else f"{name} (not drained)"


def why_not_drainable(view: Snapshot, nodes: Sequence[str]) -> str:
    """Return, in one line, the reason why these nodes cannot be drained, or "" if they can be.

    >>> why_not_drainable(Snapshot(0.0), ["n1"])
    'the scheduler knows no node n1'
    >>> why_not_drainable(Snapshot(0.0, gaps="Slurm said of node 'n1' what cannot be read"), ["n1"])
    "Slurm said of node 'n1' what cannot be read"
    """
    for name in nodes:
        node = view.nodes.get(name)
        if node is None:
            return view.gaps or f"the scheduler knows no node {name}"
        if node.is_drained:
            return f"{name} is drained already ({node.reason or 'no reason given'})"
    return ""
