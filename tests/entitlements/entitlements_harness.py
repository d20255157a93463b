"""The harness of the tests of entitlements."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.databases import new_sqlite
from tests.slurm.fake_cluster import AGENTS_IN, OWNERS_IN, Died, FakeCluster

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.entitlements import Entitlements
from gleaner.control.daemon.loops import Loop
from gleaner.control.policy.entitlements_view import JobClass
from gleaner.control.queue import decisions
from gleaner.control.queue.database import connect, snapshot
from gleaner.control.queue.decisions import StoredDecision
from gleaner.control.settings import ClusterSettings, EntitlementSettings, QueueSettings, Settings, StorageSettings
from gleaner.control.slurm.interface import SnapshotCache

SHARES = {"physics": 50.0, "chemistry": 30.0, "biology": 20.0}
"""Of 18 CPUs: 9, 5 and 3."""
POLL_S = 5.0
NODES = ("node1", "node2", "node3")


@dataclass
class EntitlementsHarness:
    """A control program and its cluster. `changes` are settings of `[entitlements]`."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    cluster: FakeCluster = field(default_factory=lambda: FakeCluster(NODES, patience_s=10))
    state: ControlState = field(init=False)
    loop: Loop = field(init=False)

    def __post_init__(self) -> None:
        new_sqlite(self.folder)
        self.restart()

    def restart(self, **changes: Any) -> None:
        """Forget everything, as a program that was killed and started again."""
        self.changes |= changes
        told: dict[str, Any] = {
            "mode": "on",
            "partitions": (OWNERS_IN,),
            "entitled": SHARES,
            "grace_s": 60,
        } | self.changes
        settings = Settings(
            queue=QueueSettings(url=f"sqlite:///{self.folder}/queue.db"),
            cluster=ClusterSettings(partition=AGENTS_IN),
            storage=StorageSettings(folder=self.folder),
            entitlements=EntitlementSettings(**told),
        )
        engine = connect(settings.queue.url)
        self.state = ControlState(settings, engine, FolderStorage(self.folder), leads_until_s=math.inf)
        step = Entitlements(self.state, self.cluster, SnapshotCache(self.cluster), self.cluster).step
        self.loop = Loop("entitlements", POLL_S, step)

    def look(self) -> None:
        """Look, rule, act."""
        self.loop.run_once(self.state, self.cluster.now_s)

    def rounds(self, count: int = 1) -> None:
        """Look, rule, act; and let time pass after each."""
        for _ in range(count):
            self.look()
            self.cluster.pass_time(POLL_S)

    def rounds_though_killed(self, count: int) -> None:
        """So many rounds; a control that dies in one is followed by another."""
        for _ in range(count):
            try:
                self.rounds()
            except Died:
                self.restart()

    def decided(self, job: str) -> tuple[StoredDecision, ...]:
        """Return the decisions stored about one of the owners' jobs, the latest first."""
        with snapshot(self.state.engine) as db:
            return decisions.latest(db, f"slurm {job}", 100)

    @property
    def runs(self) -> set[str]:
        """The owners' jobs that are on nodes."""
        return {job.id for job in self.cluster.jobs.values() if job.nodes and job.partitions == (OWNERS_IN,)}


def chemistry_over_its_share(harness: EntitlementsHarness, kind: JobClass = JobClass.CHECKPOINTABLE) -> None:
    """Agents are on one node; chemistry, which is entitled to 5 CPUs, has two nodes."""
    harness.cluster.agent("a3", "node3")
    for job in ("c1", "c2"):
        harness.cluster.enter(job, "chemistry", 6, kind)
    harness.rounds(2)
    assert harness.runs == {"c1", "c2"}
    harness.cluster.pass_time(4000)
