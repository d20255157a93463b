"""What the tests of draining have in common: a control program, its queue, and nodes in memory."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.databases import new_sqlite
from tests.draining.made_nodes import AGENTS_IN, GOVERNED, MadeNodes
from tests.queue.scene import Scene

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.draining.drainer import Drainer
from gleaner.control.queue import agents, drains, moves
from gleaner.control.queue.drain_tables import DrainTask
from gleaner.control.queue.drains import StoredDrain
from gleaner.control.queue.engine import connect, transaction
from gleaner.control.settings import ClusterSettings, GoverningSettings, QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site

GRACE_S = 60.0


@dataclass
class Yard:
    """`changes` are settings of `[governing]`."""

    folder: Path
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    nodes: MadeNodes = field(default_factory=MadeNodes)
    now_s: float = 1000.0
    scene: Scene = field(init=False)
    site: Site = field(init=False)
    drainer: Drainer = field(init=False)

    def __post_init__(self) -> None:
        self.scene = Scene(connect(new_sqlite(self.folder)))
        self.restart()

    def restart(self) -> None:
        """Forget everything, as a program that was killed and started again."""
        told: dict[str, Any] = {"partitions": (GOVERNED,), "grace_s": GRACE_S} | self.changes
        settings = Settings(
            queue=QueueSettings(url=f"sqlite:///{self.folder}/queue.db"),
            cluster=ClusterSettings(gateway="slurm", partition=AGENTS_IN),
            storage=StorageSettings(folder=self.folder),
            governing=GoverningSettings(**told),
        )
        self.site = Site(settings, self.scene.engine, FolderStorage(self.folder), leads_until_s=math.inf)
        self.drainer = Drainer(self.site, self.nodes, self.nodes)

    def ask(self, *nodes: str, task: DrainTask = DrainTask.DRAIN, **how: Any) -> int:
        return self.scene.do(drains.ask, task=task, nodes=nodes, by="root", now_s=self.now_s, **how)

    def resume(self, *nodes: str) -> StoredDrain:
        return self.done(self.ask(*nodes, task=DrainTask.RESUME))

    def drain(self, *nodes: str, rounds: int = 6, **how: Any) -> StoredDrain:
        return self.done(self.ask(*nodes, **how), rounds=rounds)

    def done(self, number: int, *, rounds: int = 6) -> StoredDrain:
        """How it stands after so many rounds."""
        for _ in range(rounds):
            self.drainer.a_round(self.now_s)
            self.now_s += 2
        return self.seen(number)

    def seen(self, number: int) -> StoredDrain:
        return self.scene.look(drains.one, number)

    def agent(self, scheduler_id: str, node: str, *, jobs: int = 0, **facts: Any) -> list[int]:
        """An agent of ours with that many jobs; their numbers."""
        name = self.scene.agent(f"gleaner-{scheduler_id}", node=node, **facts)
        with transaction(self.scene.engine) as db:
            agents.submitted(db, name, scheduler_id)
        made = [self.scene.job() for _ in range(jobs)]
        self.scene.claim(name)
        self.nodes.run(scheduler_id, node, partition=AGENTS_IN)
        return made

    def cancel(self, job: int) -> None:
        self.scene.do(moves.cancel, job, now_s=self.now_s)
