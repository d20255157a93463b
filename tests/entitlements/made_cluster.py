"""A cluster in memory that behaves like Slurm as far as entitlements go, with the Slurm admin service's requests on it.

What is released starts as soon as it fits: what is at the top first, then by submission. Nothing starts by itself.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from tests.slurm.unasked_cluster import UnaskedCluster
from tests.slurm_admin.facts import admin_settings

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.policy.entitlements_view import Wish
from gleaner.control.policy.job_class import JobClass
from gleaner.control.policy.placement import targets_of
from gleaner.control.policy.resources import Resources
from gleaner.control.slurm.comments import (
    ASKED_TO_SAVE,
    OURS,
    RELEASED,
    RELEASED_ON_TOP,
    WAITS_FOR_ITS_TURN,
    is_held_for_us,
)
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable
from gleaner.control.slurm.owners_view import OwnedJob, OwnedPhase
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot
from gleaner.control.slurm_admin.client import SlurmAdminClient
from gleaner.control.slurm_admin.rules import TOP_NICE, check_partitions

PARTITION = "shared"
AGENTS_PARTITION = "gleaner"
NODE = Resources(6, 4000)


class Died(BaseException):
    """This program was killed just now."""


@dataclass
class MadeCluster(UnaskedCluster, SlurmAdminClient):
    """`patience_s`: how long what was told to go takes for it."""

    nodes: tuple[str, ...] = ("node1", "node2", "node3")
    now_s: float = 1000.0
    patience_s: float = 10.0
    jobs: dict[str, OwnedJob] = field(default_factory=dict[str, OwnedJob])
    goes_s: dict[str, float] = field(default_factory=dict[str, float])
    stubborn: set[str] = field(default_factory=set[str])
    acts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    waits_for_more: set[str] = field(default_factory=set[str])
    """Jobs that do not start however much is idle. That shows only once they are released."""
    dies_at: int = -1
    """The number of the act before which the caller is killed."""
    dies_after: int = -1
    """The number of the act right after which it is killed."""
    goes_away_after: int = -1
    """The number of the act after which Slurm does not answer any more."""
    is_away: bool = False
    heard_s: float = 0.0
    awoken: int = 0
    holds_in: tuple[str, ...] = (PARTITION,)
    """The partitions of slurm-admin.conf."""
    refuses: str = ""
    """The reason why the cluster cannot have entitlements."""
    keeps_no_accounts: bool = False
    """Its accounting is away, so that nobody knows whether the cluster can have entitlements."""
    explained: list[tuple[float, str]] = field(default_factory=list[tuple[float, str]])
    """Whose reason was written, and when."""

    # ── what people do ──

    def enter(self, job: str, account: str, cpus: int, kind: JobClass = JobClass.NON_PREEMPTIBLE) -> None:
        """A job that enters held, as the submit script does it."""
        self.jobs[job] = OwnedJob(
            id=job, account=account, partition=PARTITION, phase=OwnedPhase.PENDING, job_class=kind,
            wish=Wish(1, Resources(cpus, 100 * cpus)), submitted_s=self.now_s, priority=0, held=True, ours=True,
            is_ready=True, said=WAITS_FOR_ITS_TURN,
        )  # fmt: skip

    def agent(self, job: str, node: str) -> None:
        """One of our agents, which has a node for itself."""
        self.enter(job, "gleaner", 6, JobClass.NON_PREEMPTIBLE)
        self.jobs[job] = replace(
            self.jobs[job], partition=AGENTS_PARTITION, phase=OwnedPhase.RUNNING, held=False, ours=False,
            since_s=self.now_s, holds={node: NODE},
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
        self.jobs[job] = replace(
            self.jobs[job], phase=OwnedPhase.PENDING, held=False, priority=1, since_s=None, holds=None
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass: jobs that were told to go are gone when it is time, and released jobs start if they fit."""
        self.now_s += seconds
        for job in [job for job, at_s in self.goes_s.items() if at_s <= self.now_s]:
            del self.goes_s[job]
            gone = self.jobs.pop(job)
            if gone.partition == PARTITION:
                self.jobs[job] = replace(
                    gone, phase=OwnedPhase.PENDING, held=True, ours=True, priority=0, since_s=None, holds=None
                )
        free = self.free()
        for waiting in sorted(self.jobs.values(), key=lambda one: (-one.priority, one.submitted_s)):
            if waiting.phase is not OwnedPhase.PENDING or waiting.held or waiting.id in self.waits_for_more:
                continue
            places = targets_of(waiting.wish, free, {}, (), dict.fromkeys(self.nodes, NODE))
            if places is None:
                continue
            for node in places:
                free[node] = free[node].less(waiting.wish.piece)
            holds = dict.fromkeys(places, waiting.wish.piece)
            self.jobs[waiting.id] = replace(waiting, phase=OwnedPhase.RUNNING, since_s=self.now_s, holds=holds)

    def free(self) -> dict[str, Resources]:
        """Return the idle resources of each node."""
        free = dict.fromkeys(self.nodes, NODE)
        for job in self.jobs.values():
            for node, room in (job.holds or {}).items():
                free[node] = free[node].less(room)
        assert all(room.cpus >= 0 for room in free.values())
        return free

    def held_by(self, account: str) -> int:
        """Its CPUs that compute, or are about to be saved."""
        return sum(
            sum((room.cpus for room in (job.holds or {}).values()), 0)
            for job in self.jobs.values()
            if job.account == account
        )

    # ── Cluster ──

    def check_owners(self, owners: Sequence[str]) -> None:
        if self.keeps_no_accounts or self.is_away:
            raise ClusterUnavailable("Slurm does not answer: sacctmgr says 'Connection refused'")
        if self.refuses:
            raise ClusterRefused(self.refuses)

    def read(self, now_s: float) -> Snapshot:
        if self.is_away:
            raise ClusterUnavailable("Slurm does not answer: squeue says 'Unable to contact slurm controller'")
        free = self.free()
        nodes = {
            name: SlurmNode(
                name=name, partitions=frozenset({PARTITION}), states=frozenset({"IDLE"}), cpus=NODE.cpus,
                idle_cpus=free[name].cpus, memory_mib=NODE.memory_mib,
                allocated_mib=NODE.memory_mib - free[name].memory_mib,
            )
            for name in self.nodes
        }  # fmt: skip
        jobs = (replace(job, is_ready=job.held or job.id not in self.waits_for_more) for job in self.jobs.values())
        return Snapshot(self.now_s, nodes, tuple(map(as_slurm_shows, jobs)))

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        for agent in agents:
            self._go(agent, "vacate", "")

    # ── Rights ──

    def alive(self, partitions: Collection[str]) -> None:
        try:
            check_partitions(
                partitions, replace(admin_settings(), partitions=dict.fromkeys(self.holds_in, frozenset[str]()))
            )
        except Refused as error:
            raise ClusterRefused(str(error)) from error
        self.heard_s = self.now_s

    def awake(self) -> None:
        self.awoken += 1

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        with self._doing("release", job) as found:
            self._is_meant(found, submitted_s)
            if not found.held:
                raise ClusterRefused(f"job {job} is not held")
            mark, priority = (RELEASED_ON_TOP, TOP_NICE + 1) if top else (RELEASED, 1)
            self.jobs[job] = replace(found, held=False, priority=priority, said=mark)

    def hold(self, job: str, *, submitted_s: float | None = None) -> None:
        with self._doing("hold", job) as found:
            self._is_meant(found, submitted_s)
            if found.phase is not OwnedPhase.PENDING:
                raise ClusterRefused(f"job {job} runs already")
            if found.held or not found.said.startswith(OURS):
                raise ClusterRefused(f"job {job} was not released by us")
            self.jobs[job] = replace(found, held=True, ours=True, priority=0, said=WAITS_FOR_ITS_TURN)

    def set_reason(self, job: str, text: str, *, submitted_s: float | None = None) -> None:
        self._is_meant(self.jobs[job], submitted_s)
        self.explained.append((self.now_s, job))
        self.jobs[job] = replace(self.jobs[job], said=text)

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        self._is_meant(self.jobs[job], submitted_s)
        assert self.jobs[job].job_class is JobClass.PREEMPTIBLE
        self._go(job, "requeue", WAITS_FOR_ITS_TURN)

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        self._is_meant(self.jobs[job], submitted_s)
        assert self.jobs[job].job_class is JobClass.CHECKPOINTABLE
        self._go(job, "signal", ASKED_TO_SAVE)

    @staticmethod
    def _is_meant(found: OwnedJob, submitted_s: float | None) -> None:
        if submitted_s != found.submitted_s:
            raise ClusterRefused(f"job {found.id} is not the one that is meant")

    def _go(self, job: str, how: str, mark: str) -> None:
        with self._doing(how, job) as found:
            if found.phase is not OwnedPhase.RUNNING:
                raise ClusterRefused(f"job {job} does not run")
            self.jobs[job] = replace(found, said=mark)
            if job not in self.stubborn:
                self.goes_s.setdefault(job, self.now_s + self.patience_s)

    @contextmanager
    def _doing(self, act: str, job: str) -> Generator[OwnedJob]:
        """Killed before the act, or right after it: the caller cannot tell."""
        number = len(self.acts)
        if self.is_away:
            raise ClusterUnavailable("the Slurm admin service cannot reach Slurm")
        if number == self.dies_at:
            self.dies_at = -1
            raise Died
        if job not in self.jobs:
            raise ClusterRefused(f"there is no job {job}")
        self.acts.append((act, job))
        yield self.jobs[job]
        self.is_away = number == self.goes_away_after
        if number == self.dies_after:
            self.dies_after = -1
            raise Died


STATES = {OwnedPhase.PENDING: "PENDING", OwnedPhase.RUNNING: "RUNNING", OwnedPhase.ENDING: "COMPLETING"}
DECLARED = {JobClass.PREEMPTIBLE: "gleaner:preemptible", JobClass.CHECKPOINTABLE: "gleaner:checkpointable"}


def as_slurm_shows(job: OwnedJob) -> SlurmJob:
    """Return the record of which entitlements make this job."""
    holds, wish = list((job.holds or {}).values()), job.wish
    is_marked = is_held_for_us(job.said, restarted=False, reason="")
    return SlurmJob(
        id=job.id,
        account=job.account,
        partitions=(job.partition,),
        states=frozenset({STATES[job.phase]}),
        nodes=tuple(job.holds or ()),
        cpus=sum(room.cpus for room in holds) if holds else wish.cpus,
        memory_mib=sum(room.memory_mib for room in holds) if holds else wish.pieces * wish.piece.memory_mib,
        nodes_at_least=wish.pieces if wish.apart else 1,
        tasks=1 if wish.apart else wish.pieces,
        dependency="" if job.is_ready else "afterok:1(unfulfilled)",
        priority=0 if job.held else max(1, job.priority),
        reason="JobHeldAdmin" if job.held and not job.ours and is_marked else "None",
        comment=DECLARED.get(job.job_class, ""),
        admin_comment=job.said,
        restarts=1 if job.ours and not is_marked else 0,
        submitted_s=job.submitted_s,
        start_s=job.since_s,
    )
