"""The harness of the tests of draining: a control program, its queue, and nodes in memory."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.databases import new_sqlite
from tests.queue.queue_harness import QueueHarness
from tests.slurm.fake_cluster import AGENTS_IN, OWNERS_IN, FakeCluster

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.drains import Drains
from gleaner.control.daemon.loops import Loop
from gleaner.control.models.drains import DrainRow, DrainTask
from gleaner.control.queue import agents, drains, jobs
from gleaner.control.queue.database import connect, transaction
from gleaner.control.settings import ClusterSettings, EntitlementSettings, QueueSettings, Settings, StorageSettings

GRACE_S = 60.0


@dataclass
class DrainsHarness:
    """`changes` are settings of `[entitlements]`."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: FakeCluster = field(default_factory=FakeCluster)
    now_s: float = 1000.0
    queue: QueueHarness = field(init=False)
    state: ControlState = field(init=False)
    drains: Loop = field(init=False)

    def __post_init__(self) -> None:
        self.queue = QueueHarness(connect(new_sqlite(self.folder)))
        self.restart()

    def restart(self) -> None:
        """Forget everything, as a program that was killed and started again."""
        told: dict[str, Any] = {"partitions": (OWNERS_IN,), "grace_s": GRACE_S} | self.changes
        settings = Settings(
            queue=QueueSettings(url=f"sqlite:///{self.folder}/queue.db"),
            cluster=ClusterSettings(backend="slurm", partition=AGENTS_IN),
            storage=StorageSettings(folder=self.folder),
            entitlements=EntitlementSettings(**told),
        )
        self.state = ControlState(settings, self.queue.engine, FolderStorage(self.folder), leads_until_s=math.inf)
        self.drains = Loop("drains", 2, Drains(self.state, self.nodes, self.nodes).step)

    def ask(self, *nodes: str, task: DrainTask = DrainTask.DRAIN, **how: Any) -> int:
        return self.queue.do(drains.ask, task=task, nodes=nodes, by="root", now_s=self.now_s, **how)

    def resume(self, *nodes: str) -> DrainRow:
        return self.done(self.ask(*nodes, task=DrainTask.RESUME))

    def drain(self, *nodes: str, rounds: int = 6, **how: Any) -> DrainRow:
        return self.done(self.ask(*nodes, **how), rounds=rounds)

    def done(self, number: int, *, rounds: int = 6) -> DrainRow:
        """Return the drain as it stands after so many rounds."""
        for _ in range(rounds):
            self.drains.run_once(self.state, self.now_s)
            self.now_s += 2
        return self.seen(number)

    def seen(self, number: int) -> DrainRow:
        return self.queue.look(drains.one, number)

    def agent(self, scheduler_id: str, node: str, *, jobs: int = 0, **facts: Any) -> list[int]:
        """An agent of ours with that many jobs; their numbers."""
        name = self.queue.agent(f"gleaner-{scheduler_id}", node=node, **facts)
        with transaction(self.queue.engine) as db:
            agents.record_submission(db, name, scheduler_id)
        made = [self.queue.job() for _ in range(jobs)]
        self.queue.claim(name)
        self.nodes.run(scheduler_id, node, partition=AGENTS_IN)
        return made

    def cancel(self, job: int) -> None:
        self.queue.do(jobs.cancel, job, now_s=self.now_s)
