"""A cluster in memory that behaves like Slurm as far as governing goes, with the steward's requests on it.

What is released starts as soon as it fits: what is at the top first, then by submission. Nothing starts by itself.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tests.steward.facts import governed

from gleaner.agent.privileged.request import Refused
from gleaner.control.cluster.gateway import GatewayError, GatewayUnavailable
from gleaner.control.cluster.owners import OwnedJob, OwnedNode, OwnedPhase, OwnersView
from gleaner.control.policy.governed import JobClass, Wish
from gleaner.control.policy.placing import targets_of
from gleaner.control.policy.room import Room
from gleaner.control.steward.marks import WAITS_FOR_ITS_TURN
from gleaner.control.steward.rules import check_governs

PARTITION = "shared"
AGENTS_PARTITION = "gleaner"
NODE = Room(6, 4000)


class Died(Exception):
    """This program was killed just now."""


@dataclass
class MadeCluster:
    """`patience_s`: how long what was told to go takes for it."""

    nodes: tuple[str, ...] = ("node1", "node2", "node3")
    now_s: float = 1000.0
    patience_s: float = 10.0
    jobs: dict[str, OwnedJob] = field(default_factory=dict[str, OwnedJob])
    goes_s: dict[str, float] = field(default_factory=dict[str, float])
    stubborn: set[str] = field(default_factory=set[str])
    acts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    waits_for_more: set[str] = field(default_factory=set[str])
    """What does not start however much is idle; that is only to be seen once it is released."""
    dies_at: int = -1
    """The number of the act during which the caller is killed."""
    is_away: bool = False
    heard_s: float = 0.0
    holds_in: tuple[str, ...] = (PARTITION,)
    """The partitions of governed.conf."""
    refuses: str = ""
    """Why its owners cannot be governed."""

    # ── what people do ──

    def submit(self, job: str, account: str, cpus: int, kind: JobClass = JobClass.NON_PREEMPTIBLE) -> None:
        """A job that enters held, as the submit script does it."""
        self.jobs[job] = OwnedJob(
            id=job, account=account, partition=PARTITION, phase=OwnedPhase.PENDING, job_class=kind,
            wish=Wish(1, Room(cpus, 100 * cpus)), submitted_s=self.now_s, priority=0, held=True, ours=True,
            is_ready=True, said=WAITS_FOR_ITS_TURN,
        )  # fmt: skip

    def agent(self, job: str, node: str) -> None:
        """One of our agents, which has a node for itself."""
        self.submit(job, "gleaner", 6, JobClass.NON_PREEMPTIBLE)
        self.jobs[job] = replace(
            self.jobs[job], partition=AGENTS_PARTITION, phase=OwnedPhase.RUNNING, held=False, ours=False,
            since_s=self.now_s, holds={node: NODE},
        )  # fmt: skip

    def end(self, job: str) -> None:
        """It has ended by itself."""
        self.jobs.pop(job, None)
        self.goes_s.pop(job, None)

    def pass_time(self, seconds: float) -> None:
        """Who was told to go has gone when its time has come; what is released starts if it fits."""
        self.now_s += seconds
        for job in [job for job, at_s in self.goes_s.items() if at_s <= self.now_s]:
            del self.goes_s[job]
            gone = self.jobs.pop(job)
            if gone.partition == PARTITION:
                self.jobs[job] = replace(
                    gone, phase=OwnedPhase.PENDING, held=True, ours=True, priority=0, since_s=None, holds=None
                )
        free = self.free()
        for job in sorted(self.jobs.values(), key=lambda one: (-one.priority, one.submitted_s)):
            if job.phase is not OwnedPhase.PENDING or job.held or job.id in self.waits_for_more:
                continue
            places = targets_of(job.wish, free, {}, (), dict.fromkeys(self.nodes, NODE))
            if places is None:
                continue
            for node in places:
                free[node] = free[node].less(job.wish.piece)
            holds = dict.fromkeys(places, job.wish.piece)
            self.jobs[job.id] = replace(job, phase=OwnedPhase.RUNNING, since_s=self.now_s, holds=holds)

    def free(self) -> dict[str, Room]:
        """What is idle."""
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

    # ── OwnersCluster ──

    def check(self, owners: Sequence[str]) -> None:
        if self.refuses:
            raise GatewayError(self.refuses)

    def look(self, now_s: float) -> OwnersView:
        if self.is_away:
            raise GatewayUnavailable("Slurm does not answer: squeue says 'Unable to contact slurm controller'")
        free = self.free()
        nodes = tuple(OwnedNode(name, NODE, free[name]) for name in self.nodes)
        order = sorted(
            (replace(job, is_ready=job.held or job.id not in self.waits_for_more) for job in self.jobs.values()),
            key=lambda job: (job.submitted_s, job.id),
        )
        return OwnersView(self.now_s, nodes, tuple(order))

    def send_home(self, agents: Sequence[str], *, gone_s: float) -> None:
        for agent in agents:
            self._go(agent, "send home")

    # ── Rights ──

    def alive(self, partitions: Collection[str]) -> None:
        try:
            check_governs(partitions, replace(governed(), partitions=dict.fromkeys(self.holds_in, frozenset())))
        except Refused as error:
            raise GatewayError(str(error)) from error
        self.heard_s = self.now_s

    def release(self, job: str, *, top: bool) -> None:
        found = self._done("release", job)
        if not found.held:
            raise GatewayError(f"job {job} is not held")
        self.jobs[job] = replace(found, held=False, priority=1_000_000 if top else 1)

    def hold(self, job: str) -> None:
        found = self._done("hold", job)
        if found.phase is not OwnedPhase.PENDING:
            raise GatewayError(f"job {job} runs already")
        self.jobs[job] = replace(found, held=True, priority=0)

    def set_reason(self, job: str, text: str) -> None:
        self.jobs[job] = replace(self.jobs[job], said=text)

    def requeue(self, job: str) -> None:
        assert self.jobs[job].job_class is JobClass.PREEMPTIBLE
        self._go(job, "requeue")

    def signal(self, job: str) -> None:
        assert self.jobs[job].job_class is JobClass.CHECKPOINTABLE
        self._go(job, "signal")

    def _go(self, job: str, how: str) -> None:
        found = self._done(how, job)
        if found.phase is not OwnedPhase.RUNNING:
            raise GatewayError(f"job {job} does not run")
        if job not in self.stubborn:
            self.goes_s[job] = self.now_s + self.patience_s

    def _done(self, act: str, job: str) -> OwnedJob:
        """Killed before the act, or right after it: the caller cannot tell."""
        if self.is_away:
            raise GatewayUnavailable("the steward cannot reach Slurm")
        if len(self.acts) == self.dies_at:
            self.dies_at = -1
            raise Died
        if job not in self.jobs:
            raise GatewayError(f"there is no job {job}")
        self.acts.append((act, job))
        return self.jobs[job]
