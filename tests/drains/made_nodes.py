"""Nodes in memory that behave like Slurm's as far as draining goes, with the Slurm admin service's requests on them."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tests.slurm.unasked_cluster import UnaskedCluster

from gleaner.control.policy.job_class import JobClass
from gleaner.control.slurm.comments import DRAINED_BY
from gleaner.control.slurm.interface import ClusterRefused, ClusterUnavailable
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot
from gleaner.control.slurm_admin.client import SlurmAdminClient

OWNERS_IN = "shared"
AGENTS_IN = "gleaner"
OTHERS_IN = "regular"
DECLARED = {JobClass.PREEMPTIBLE: "gleaner:preemptible", JobClass.CHECKPOINTABLE: "gleaner:checkpointable"}
NO_SLURM_ADMIN = "the Slurm admin service cannot be reached"


class Died(BaseException):
    """This program was killed just now."""


@dataclass
class MadeNodes(UnaskedCluster, SlurmAdminClient):
    """`reasons` has the drained nodes. What is told to go is gone at the next look, unless it is stubborn."""

    names: tuple[str, ...] = ("n1", "n2", "n3")
    reasons: dict[str, str] = field(default_factory=dict[str, str])
    jobs: dict[str, SlurmJob] = field(default_factory=dict[str, SlurmJob])
    going: set[str] = field(default_factory=set[str])
    stubborn: set[str] = field(default_factory=set[str])
    held: set[str] = field(default_factory=set[str])
    at_top: set[str] = field(default_factory=set[str])
    acts: list[tuple[str, ...]] = field(default_factory=list[tuple[str, ...]])
    ends_by_s: dict[str, float] = field(default_factory=dict[str, float])
    unseen: set[str] = field(default_factory=set[str])
    """Nodes that are used by jobs that we are not shown."""
    unreadable: set[str] = field(default_factory=set[str])
    """Nodes and jobs whose records cannot be read."""
    is_away: bool = False
    slurm_admin: str = "answers"
    """`away`: nobody is there; `mute`: what it is asked is done, and the answer never comes."""
    dies_at: int = -1
    """The number of the act during which the caller is killed, before or after it is done."""
    dies_after: bool = False

    def run(
        self, job: str, *nodes: str, kind: JobClass = JobClass.NON_PREEMPTIBLE, partition: str = OWNERS_IN,
        can_requeue: bool = True, until_s: float | None = 9000.0,
    ) -> None:  # fmt: skip
        """A job that runs."""
        self.jobs[job] = SlurmJob(
            id=job, user="alice", partitions=(partition,), states=frozenset({"RUNNING"}), nodes=nodes, end_s=until_s,
            comment=DECLARED.get(kind, ""), can_requeue=can_requeue, is_batch=True, submitted_s=500.0,
        )  # fmt: skip

    def drain_by_hand(self, node: str) -> None:
        self.reasons[node] = "new memory"

    @property
    def marked(self) -> set[str]:
        """The nodes that carry our mark."""
        return {node for node, reason in self.reasons.items() if reason.startswith(DRAINED_BY)}

    # ── what draining asks ──

    def read_nodes(self, nodes: Sequence[str], now_s: float) -> Snapshot:
        if self.is_away:
            raise ClusterUnavailable("Slurm does not answer")
        for job in self.going - self.stubborn:
            gone = self.jobs.pop(job)
            if gone.partitions != (AGENTS_IN,):
                self.held.add(job)
        self.going &= self.stubborn
        there = tuple(job for job in self.jobs.values() if set(job.nodes) & set(nodes))
        found = {name: self._node(name, there) for name in nodes if name in self.names}
        gaps = sorted(self.unreadable & (found.keys() | {job.id for job in there}))
        return Snapshot(
            now_s,
            {name: node for name, node in found.items() if name not in self.unreadable},
            tuple(job for job in there if job.id not in self.unreadable),
            "; ".join(f"{each} cannot be read" for each in gaps),
        )

    def _node(self, name: str, jobs: Collection[SlurmJob]) -> SlurmNode:
        reason = self.reasons.get(name, "")
        is_used = any(name in job.nodes for job in jobs) or name in self.unseen
        states = {"ALLOCATED" if is_used else "IDLE"} | ({"DRAIN"} if reason else set())
        return SlurmNode(name=name, partitions=frozenset({OWNERS_IN}), states=frozenset(states), reason=reason)

    def is_held(self, job: str) -> bool | None:
        return True if job in self.held else None

    def vacate(self, agents: Sequence[str], *, gone_s: float) -> None:
        self._act("vacate", *agents)
        for agent in agents:
            self.ends_by_s[agent] = gone_s
            self.going.add(agent)
        self._done()

    # ── what the Slurm admin service does ──

    def awake(self) -> None:
        self._slurm_admin_is_there()

    def _slurm_admin_is_there(self) -> None:
        if self.slurm_admin == "away":
            raise ClusterUnavailable(NO_SLURM_ADMIN)

    def _slurm_admin_has_answered(self) -> None:
        if self.slurm_admin == "mute":
            raise ClusterUnavailable("the Slurm admin service does not answer")

    def drain(self, nodes: Sequence[str], *, by: str = "control") -> None:
        self._slurm_admin_is_there()
        if unknown := [node for node in nodes if node not in self.names]:
            raise ClusterRefused(f"Slurm knows no node {unknown[0]}")
        if drained := [node for node in nodes if node in self.reasons]:
            raise ClusterRefused(f"node {drained[0]} is DRAIN already")
        self._act("drain", *nodes)
        self.reasons |= dict.fromkeys(nodes, DRAINED_BY + by)
        self._done()
        self._slurm_admin_has_answered()

    def resume(self, nodes: Sequence[str]) -> None:
        self._slurm_admin_is_there()
        if not set(nodes) <= self.marked:
            raise ClusterRefused(f"node {nodes[0]} was not drained by us")
        self._act("resume", *nodes)
        for node in nodes:
            del self.reasons[node]
        self._done()

    def requeue(self, job: str, *, submitted_s: float | None = None) -> None:
        self._is_meant(job, submitted_s)
        self._act("requeue", job)
        self.going.add(job)
        self._done()

    def signal(self, job: str, *, submitted_s: float | None = None) -> None:
        self._is_meant(job, submitted_s)
        self._act("save", job)
        self.going.add(job)
        self._done()

    def _is_meant(self, job: str, submitted_s: float | None) -> None:
        if submitted_s != self.jobs[job].submitted_s:
            raise ClusterRefused(f"job {job} is not the one that is meant")

    def release(self, job: str, *, top: bool, submitted_s: float | None = None) -> None:
        self._act("release", job)
        assert job in self.held
        self.held.discard(job)
        self.at_top |= {job} if top else set()
        self._done()

    def _act(self, *what: str) -> None:
        if len(self.acts) == self.dies_at and not self.dies_after:
            self.dies_at = -1
            raise Died
        self.acts.append(what)

    def _done(self) -> None:
        if len(self.acts) - 1 == self.dies_at and self.dies_after:
            self.dies_at = -1
            raise Died

    def ends_now(self, job: str) -> None:
        """Its processes are being ended."""
        self.jobs[job] = replace(self.jobs[job], states=frozenset({"COMPLETING"}))
