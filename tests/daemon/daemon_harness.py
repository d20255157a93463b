"""The harness of the tests of the live loop."""

import json
import math
import time
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy import Engine, literal

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import Assignments, ClaimRequest, Deregistration, NodeFacts, Registration
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.leader import Leadership
from gleaner.control.daemon.loops import Loop
from gleaner.control.daemon.provisioning import Provisioning
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.jobs import Submission
from gleaner.control.queue import agents, claims, jobs, node_health, queries
from gleaner.control.queue.database import connect, snapshot, transaction
from gleaner.control.settings import ClusterSettings, QueueSettings, RoundSettings, Settings, StorageSettings
from gleaner.control.slurm.factory import cluster
from gleaner.control.slurm.interface import Cluster, SnapshotCache

LEASE_S = 180.0


def settings(url: str, folder: Path, *, rounds: RoundSettings | None = None) -> Settings:
    """Settings for the faked Slurm: long rounds, so that no boundary comes in a test's way."""
    return Settings(
        queue=QueueSettings(url=url, lease_s=LEASE_S, heartbeat_s=20),
        rounds=rounds or RoundSettings(length_s=1e6, shortest_slice_s=60, poll_s=20, pending_limit_s=300),
        cluster=ClusterSettings(backend="slurm", timeout_s=20, submits_per_s=50),
        storage=StorageSettings(folder=folder),
    )


@dataclass
class DaemonHarness:
    """One control program's rounds. Time is real time plus what a test lets pass."""

    url: str
    folder: Path
    rounds_settings: RoundSettings | None = None
    ahead_s: float = 0.0
    state: ControlState = field(init=False)
    cluster: Cluster = field(init=False)
    provisioning: Loop = field(init=False)

    def __post_init__(self) -> None:
        FolderStorage(self.folder).prepare()
        self.restart()

    @property
    def now_s(self) -> float:
        return time.time() + self.ahead_s

    def restart(self) -> None:
        """Forget everything, as a program that was killed and started again."""
        found = settings(self.url, self.folder, rounds=self.rounds_settings)
        self.state = ControlState(found, connect(self.url), FolderStorage(self.folder), leads_until_s=math.inf)
        self.cluster = cluster(found)
        self.provisioning = Loop(
            "provisioning", 20, Provisioning(self.state, self.cluster, SnapshotCache(self.cluster)).step
        )

    def round(self) -> None:
        """Look, decide, act."""
        self.provisioning.run_once(self.state, self.now_s)

    def submit_jobs(self, count: int = 1, *, cpus: int = 6, needs_at_least_s: int | None = None) -> tuple[int, ...]:
        """Jobs that wait; by default each fills a node."""
        needs = {"cpus": cpus, "memory_mib": 100, "needs_at_least_s": needs_at_least_s}
        spec = JobSpec.model_validate({"name": "j", "image": "i", "command": ("true",)} | needs)
        wanted = Submission(job=spec, indices=tuple(range(count)))
        with transaction(self.state.engine) as db:
            return jobs.submit(db, wanted, group="g", rules=jobs.SubmissionRules(1), now_s=self.now_s).jobs

    def agents(self) -> list[AgentRow]:
        """All agents in the queue, the oldest first."""
        with snapshot(self.state.engine) as db:
            return sorted(queries.agent_rows(db, now_s=self.now_s), key=lambda row: (row.submitted_s, row.name))

    def state_of(self, job: int) -> str:
        """A job's state."""
        with snapshot(self.state.engine) as db:
            return str(queries.job_row(db, job).state)

    def excluded(self) -> tuple[str, ...]:
        """The nodes that are excluded now."""
        with snapshot(self.state.engine) as db:
            return node_health.excluded_nodes(db, self.now_s)

    def register(self, name: str, node: str, *, criu: str = "4.1") -> None:
        """Speak for an agent: it has started."""
        facts = NodeFacts(node=node, cpus=6, memory_mib=4000, runtime="docker", criu=criu, kernel="6", architecture="x")
        with transaction(self.state.engine) as db:
            agents.register(
                db, name, Registration(facts=facts, end_s=self.now_s + 600), lease_s=LEASE_S, now_s=self.now_s
            )

    def claim(self, name: str) -> Assignments:
        """Speak for an agent: it takes what fits."""
        with transaction(self.state.engine) as db:
            return claims.claim(db, name, ClaimRequest(cpus=6, memory_mib=4000), now_s=self.now_s)

    def farewell(self, name: str) -> None:
        """Speak for an agent: it ends well."""
        with transaction(self.state.engine) as db:
            agents.record_deregistration(db, name, Deregistration(ended_s=self.now_s), now_s=self.now_s)


@dataclass
class Program:
    """A control program on this database. Its own clock stands still: once it leads it believes so for ever."""

    engine: Engine
    holder: str
    now_s: float = 1000.0
    state: ControlState = field(init=False)

    def __post_init__(self) -> None:
        folder = Path("/nowhere")
        self.state = ControlState(settings("sqlite:///unused", folder), self.engine, FolderStorage(folder))
        self.state.steady_clock = lambda: 0.0
        self.state.database_clock = lambda: literal(self.now_s)
        self.leadership = Leadership(self.state, self.holder)

    def tick(self, now_s: float | None = None) -> bool:
        """Try to lead, at this time of the database."""
        self.now_s = self.now_s if now_s is None else now_s
        self.leadership.tick(self.now_s)
        return self.state.is_leader


def end_jobs(bin_folder: Path, *names: str, state: str = "COMPLETED") -> None:
    """Let these agents end for the faked Slurm, in whatever state they are; without names, all."""
    path = bin_folder / "jobs.json"
    jobs = json.loads(path.read_text())
    for job in jobs:
        if not names or job["name"] in names:
            job["state"] = state
    path.write_text(json.dumps(jobs))


def start_jobs(bin_folder: Path) -> None:
    """Let all agents that pend start on the first nodes of the faked Slurm."""
    path = bin_folder / "jobs.json"
    jobs = json.loads(path.read_text())
    for number, job in enumerate([job for job in jobs if job["state"] == "PENDING"], 1):
        job |= {"state": "RUNNING", "node": f"n{number}", "start": int(time.time()), "end": int(time.time()) + 3600}
    path.write_text(json.dumps(jobs))
