"""A Slurm in memory for the tests of control's loops: a `Cluster`, with the requests to the Slurm admin service on it.

Its records are the ones that are read from the real Slurm. A job that is told to go is gone after `patience_s`, unless
it is stubborn. `pass_time` starts the jobs that are released: those on top first, then by submission.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.slurm.records import agent, node, seen
from tests.slurm_admin.facts import admin_settings

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.policy.entitlements import targets_of
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.policy.resources import Resources
from gleaner.control.slurm.interface import AgentRequest, ClusterRefused, ClusterUnavailable, SchedulerId
from gleaner.control.slurm.owners_view import holdings, job_class, wishes
from gleaner.control.slurm.snapshot import (
    ASKED_TO_SAVE,
    DRAINED_BY,
    OURS,
    RELEASED,
    RELEASED_ON_TOP,
    WAITS_FOR_ITS_TURN,
    JobPhase,
    SlurmJob,
    SlurmNode,
    Snapshot,
)
from gleaner.control.slurm_admin.client import SlurmAdminClient
from gleaner.control.slurm_admin.rules import TOP_NICE, check_partitions

OWNERS_IN = "shared"
AGENTS_IN = "gleaner"
OTHERS_IN = "regular"
NODE = Resources(6, 4000)
DECLARED = {JobClass.PREEMPTIBLE: "gleaner:preemptible", JobClass.CHECKPOINTABLE: "gleaner:checkpointable"}
NO_SLURM_ADMIN = "the Slurm admin service cannot be reached"
PENDING, RUNNING, COMPLETING = frozenset({"PENDING"}), frozenset({"RUNNING"}), frozenset({"COMPLETING"})


class Died(BaseException):
    """This program was killed just now."""


@dataclass
class FakeCluster(SlurmAdminClient):
    """Nodes of 6 CPUs. `acts` has what was done to them and to jobs."""

    names: tuple[str, ...] = ("n1", "n2", "n3")
    now_s: float = 1000.0
    patience_s: float = 0.0
    jobs: dict[str, SlurmJob] = field(default_factory=dict[str, SlurmJob])
    goes_s: dict[str, float] = field(default_factory=dict[str, float])
    ends_by_s: dict[str, float] = field(default_factory=dict[str, float])
    """By agent that was told to vacate, when Slurm will end it."""
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    """The drained nodes, each with the reason."""
    acts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    explained: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """The writer of the reason, and the time."""
    submitted: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    read_s: list[float] = field(default_factory=list[float])
    heard_s: float = 0.0
    awoken: int = 0

    # ── misbehaviour ──

    stubborn: set[str] = field(default_factory=set[str])
    waits_for_more: set[str] = field(default_factory=set[str])
    """Jobs that do not start however much is idle. That shows only once they are released."""
    unseen: set[str] = field(default_factory=set[str])
    """Nodes that are used by jobs that we are not shown."""
    unreadable: set[str] = field(default_factory=set[str])
    """Nodes and jobs whose records cannot be read."""
    is_away: bool = False
    slurm_admin: str = "answers"
    """`away`: nobody is there; `mute`: what it is asked is done, and the answer never comes."""
    holds_in: tuple[str, ...] = (OWNERS_IN,)
    """The partitions of slurm-admin.conf."""
    refuses: str = ""
    """The reason why the cluster cannot have entitlements."""
    dies_before: int = -1
    """The number of the act before which the caller is killed."""
    dies_after: int = -1
    """The number of the act right after which the caller is killed."""
    goes_away_after: int = -1
    """The number of the act after which Slurm does not answer any more."""

    # ── what people do ──

    def enter(self, job: str, account: str, cpus: int, kind: JobClass = JobClass.NON_PREEMPTIBLE) -> None:
        """A job that enters held, as the submit script does it."""
        self.jobs[job] = SlurmJob(
            id=job, account=account, partitions=(OWNERS_IN,), states=PENDING, cpus=cpus, memory_mib=100 * cpus,
            comment=DECLARED.get(kind, ""), admin_comment=WAITS_FOR_ITS_TURN, submitted_s=self.now_s,
        )  # fmt: skip

    def change(self, job: str, **facts: object) -> None:
        """Somebody else changes it."""
        self.jobs[job] = replace(self.jobs[job], **facts)  # type: ignore[arg-type]

    def agent(self, job: str, on: str) -> None:
        """One of our agents, which has a node for itself."""
        self.jobs[job] = agent(f"agent-{job}", on, id=job, submitted_s=self.now_s, start_s=self.now_s)

    def run(
        self, job: str, *nodes: str, kind: JobClass = JobClass.NON_PREEMPTIBLE, partition: str = OWNERS_IN,
        can_requeue: bool = True, until_s: float | None = 9000.0,
    ) -> None:  # fmt: skip
        """A job that runs."""
        self.jobs[job] = SlurmJob(
            id=job, user="alice", partitions=(partition,), states=RUNNING, nodes=nodes, end_s=until_s,
            comment=DECLARED.get(kind, ""), can_requeue=can_requeue, is_batch=True, submitted_s=500.0,
        )  # fmt: skip

    def end(self, job: str) -> None:
        """It has ended by itself."""
        self.jobs.pop(job, None)
        self.goes_s.pop(job, None)

    def requeued(self, job: str) -> None:
        """Somebody else than the Slurm admin service has put it back, and nobody holds it: its node died, or its owner
        did it.
        """
        self.goes_s.pop(job, None)
        self._put_back(self.jobs[job], priority=1)

    def drain_by_hand(self, name: str) -> None:
        self.reasons[name] = "new memory"

    def pass_time(self, seconds: float) -> None:
        """Let time pass: jobs that were told to go are gone when it is time, and released jobs start if they fit."""
        self.now_s += seconds
        self._let_go()
        free, nodes = self.free(), {name: self._node(name) for name in self.names}
        asked = wishes(self.jobs.values(), nodes)
        for job in sorted(self.jobs.values(), key=lambda one: (-one.priority, one.submitted_s)):
            if job.phase is not JobPhase.PENDING or job.is_held or job.id in self.waits_for_more:
                continue
            places = targets_of(asked[job.id], free, {}, (), dict.fromkeys(self.names, NODE))
            if places is not None:
                started = replace(job, states=RUNNING, start_s=self.now_s, nodes=tuple(dict.fromkeys(places)))
                self.jobs[job.id] = started
                free |= {name: free[name].less(part) for name, part in holdings(started).items()}

    def free(self) -> dict[str, Resources]:
        """Return the idle resources of each node."""
        free = dict.fromkeys(self.names, NODE)
        for job in self.jobs.values():
            for name, part in holdings(job).items():
                free[name] = free.get(name, NODE).less(part)
        return free

    def held_by(self, account: str) -> int:
        """Its CPUs that compute, or are about to be saved."""
        return sum(job.cpus for job in self.jobs.values() if job.account == account and job.nodes)

    @property
    def marked(self) -> set[str]:
        """The nodes that carry our mark."""
        return {name for name, reason in self.reasons.items() if reason.startswith(DRAINED_BY)}

    @property
    def at_top(self) -> set[str]:
        """The jobs that were released to the top."""
        return {job.id for job in self.jobs.values() if job.admin_comment.startswith(RELEASED_ON_TOP)}

    # ── Cluster ──

    def read(self, now_s: float) -> Snapshot:
        self._answers()
        self.read_s.append(now_s)
        self.now_s = now_s
        self.jobs = {id_: job for id_, job in self.jobs.items() if job.end_s is None or job.end_s > now_s}
        return seen(now_s, *map(self._node, self.names), jobs=tuple(map(self._as_shown, self.jobs.values())))

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        self._answers()
        self.now_s = now_s
        self._let_go()
        there = [job for job in self.jobs.values() if set(job.nodes) & set(nodes)]
        found = [name for name in nodes if name in self.names]
        gaps = sorted(self.unreadable & {*found, *(job.id for job in there)})
        shown = seen(
            now_s,
            *(self._node(name) for name in found if name not in self.unreadable),
            jobs=tuple(job for job in there if job.id not in self.unreadable),
        )
        return replace(shown, gaps="; ".join(f"{each} cannot be read" for each in gaps))

    def read_job(self, job: str) -> SlurmJob | None:
        return self.jobs.get(job)

    def read_recent(self, nodes: Sequence[str]) -> tuple[SlurmJob, ...]:
        return tuple(job for job in self.jobs.values() if set(job.nodes) & set(nodes))

    def check_owners(self, owners: Sequence[str]) -> None:
        if self.is_away:
            raise ClusterUnavailable("Slurm does not answer: sacctmgr says 'Connection refused'")
        if self.refuses:
            raise ClusterRefused(self.refuses)

    def submit(self, request: AgentRequest, now_s: float) -> SchedulerId:
        id_ = str(len(self.submitted) + 1)
        used = {name for job in self.jobs.values() for name in job.nodes}
        place = next(name for name in self.names if name not in used)
        self.submitted.append((now_s, request.name))
        self.jobs[id_] = agent(request.name, place, id=id_, submitted_s=now_s, start_s=now_s, end_s=request.end_s)
        return SchedulerId(id_)

    def withdraw(self, ids: Sequence[SchedulerId]) -> None:
        for id_ in ids:
            self.jobs.pop(id_, None)

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        for each in agents:
            self.ends_by_s[each] = gone_s
            self._go(each, "vacate", "")

    # ── the Slurm admin service ──

    def alive(self, partitions: Collection[str]) -> None:
        try:
            check_partitions(
                partitions, replace(admin_settings(), partitions=dict.fromkeys(self.holds_in, frozenset[str]()))
            )
        except Refused as error:
            raise ClusterRefused(str(error)) from error
        self.heard_s = self.now_s

    def awake(self) -> None:
        self._slurm_admin_is_there()
        self.awoken += 1

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        with self._doing("release", job):
            found = self._meant(job, submitted_s)
            if not found.is_held:
                raise ClusterRefused(f"job {job} is not held")
            mark, priority = (RELEASED_ON_TOP, TOP_NICE + 1) if top else (RELEASED, 1)
            self.change(job, priority=priority, admin_comment=mark)

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        with self._doing("hold", job):
            found = self._meant(job, submitted_s)
            if found.phase is not JobPhase.PENDING:
                raise ClusterRefused(f"job {job} runs already")
            if found.is_held or not found.admin_comment.startswith(OURS):
                raise ClusterRefused(f"job {job} was not released by us")
            self.change(job, priority=0, admin_comment=WAITS_FOR_ITS_TURN)

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        self._meant(job, submitted_s)
        self.explained.append((self.now_s, job))
        self.change(job, admin_comment=text)

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        assert job_class(self._meant(job, submitted_s)) is JobClass.PREEMPTIBLE
        self._go(job, "requeue", WAITS_FOR_ITS_TURN)

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        assert job_class(self._meant(job, submitted_s)) is JobClass.CHECKPOINTABLE
        self._go(job, "signal", ASKED_TO_SAVE)

    def drain(self, nodes: Sequence[str], *, by: str = "control") -> None:
        self._slurm_admin_is_there()
        if unknown := [name for name in nodes if name not in self.names]:
            raise ClusterRefused(f"Slurm knows no node {unknown[0]}")
        if drained := [name for name in nodes if name in self.reasons]:
            raise ClusterRefused(f"node {drained[0]} is DRAIN already")
        with self._doing("drain", *nodes):
            self.reasons |= dict.fromkeys(nodes, DRAINED_BY + by)
        if self.slurm_admin == "mute":
            raise ClusterUnavailable("the Slurm admin service does not answer")

    def resume(self, nodes: Sequence[str]) -> None:
        self._slurm_admin_is_there()
        if not set(nodes) <= self.marked:
            raise ClusterRefused(f"node {nodes[0]} was not drained by us")
        with self._doing("resume", *nodes):
            for name in nodes:
                del self.reasons[name]

    # ── within ──

    def _answers(self) -> None:
        if self.is_away:
            raise ClusterUnavailable("Slurm does not answer: squeue says 'Unable to contact slurm controller'")

    def _slurm_admin_is_there(self) -> None:
        if self.slurm_admin == "away":
            raise ClusterUnavailable(NO_SLURM_ADMIN)

    def _node(self, name: str) -> SlurmNode:
        free, reason = self.free()[name], self.reasons.get(name, "")
        is_used = name in self.unseen or any(name in job.nodes for job in self.jobs.values())
        state = "IDLE" if not is_used else "MIXED" if free.cpus else "ALLOCATED"
        allocated_mib = NODE.memory_mib - free.memory_mib
        states = (state, "DRAIN") if reason else (state,)
        return node(
            name, NODE.cpus, NODE.memory_mib, *states, idle_cpus=free.cpus, allocated_mib=allocated_mib, reason=reason
        )

    def _as_shown(self, job: SlurmJob) -> SlurmJob:
        is_ready = job.is_held or job.id not in self.waits_for_more
        return job if is_ready else replace(job, dependency="afterok:1(unfulfilled)")

    def _meant(self, job: str, submitted_s: float | None) -> SlurmJob:
        if submitted_s is not None and submitted_s != self.jobs[job].submitted_s:
            raise ClusterRefused(f"job {job} is not the one that is meant")
        return self.jobs[job]

    def _go(self, job: str, how: str, mark: str) -> None:
        with self._doing(how, job):
            if self.jobs[job].phase is not JobPhase.RUNNING:
                raise ClusterRefused(f"job {job} does not run")
            self.change(job, admin_comment=mark)
            self.goes_s.setdefault(job, self.now_s + self.patience_s)

    def _let_go(self) -> None:
        for job in [job for job, at_s in self.goes_s.items() if at_s <= self.now_s and job not in self.stubborn]:
            del self.goes_s[job]
            gone = self.jobs.pop(job)
            if gone.partitions != (AGENTS_IN,):
                self._put_back(gone, priority=0)

    def _put_back(self, job: SlurmJob, *, priority: int) -> None:
        self.jobs[job.id] = replace(
            job, states=PENDING, nodes=(), start_s=None, end_s=None, priority=priority, restarts=job.restarts + 1
        )

    @contextmanager
    def _doing(self, act: str, *what: str) -> Generator[None]:
        """Killed before the act, or right after it: the caller cannot tell."""
        number = len(self.acts)
        if self.is_away:
            raise ClusterUnavailable("the Slurm admin service cannot reach Slurm")
        if number == self.dies_before:
            self.dies_before = -1
            raise Died
        if act not in {"drain", "resume"} and what[0] not in self.jobs:
            raise ClusterRefused(f"there is no job {what[0]}")
        self.acts.append((act, *what))
        yield
        self.is_away = number == self.goes_away_after
        if number == self.dies_after:
            self.dies_after = -1
            raise Died
