"""The harm meter's loop, on a Slurm in memory and a real queue."""

from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import Engine
from tests.queue.queue_harness import QueueHarness
from tests.slurm.fake_cluster import FakeCluster
from tests.slurm.records import agent, node, seen

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.harm_meter import HarmMeter
from gleaner.control.queue import node_history
from gleaner.control.settings import Settings
from gleaner.control.slurm.interface import ClusterUnavailable
from gleaner.control.slurm.snapshot import SlurmJob

START_S = 1_800_000_000.0
NODES = ("n1", "n2")


@dataclass
class MeterHarness:
    """Two nodes with an agent each. A look tells which nodes agents have, and which regular jobs have."""

    queue: QueueHarness
    state: ControlState
    cluster: FakeCluster = field(default_factory=FakeCluster)
    questions: list[tuple[str, ...]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.meter = HarmMeter(self.state, self)  # type: ignore[arg-type]
        self.look(agents=NODES)

    def read_recent(self, nodes: list[str]) -> tuple[SlurmJob, ...]:
        self.questions.append(tuple(nodes))
        if self.cluster.is_away:
            raise ClusterUnavailable("away")
        return self.cluster.read_recent(nodes)

    def look(self, agents: tuple[str, ...] = (), regular: tuple[str, ...] = ()) -> None:
        self.queue.now_s += 20
        there = [node(name, 6, 4000, "ALLOCATED" if name in (*agents, *regular) else "IDLE") for name in NODES]
        ours = tuple(agent(f"gleaner-{name}", name, id=f"agent of {name}") for name in agents)
        self.state.cluster = seen(self.queue.now_s, *there, jobs=ours)
        self.meter.step(self.queue.now_s)

    def preempted(self, name: str, after_s: float) -> None:
        """Let Slurm know an agent that had to leave so long after the beginning."""
        gone = agent(f"gleaner-{name}", name, state="PREEMPTED", id=f"agent of {name}", preempted_s=START_S + after_s)
        self.cluster.jobs[gone.id] = gone

    def started(self, after_s: float, *nodes: str) -> None:
        """Let Slurm know a regular job that started then."""
        job = agent("theirs", *nodes, id="4711", is_own=False, submitted_s=START_S, start_s=START_S + after_s)
        self.cluster.jobs[job.id] = job

    def delays_s(self) -> list[float]:
        return self.queue.look(node_history.delays_s, begin_s=0, end_s=9e9)


@pytest.fixture
def harness(queue_engine: Engine, tmp_path: Path) -> MeterHarness:
    state = ControlState(Settings(), queue_engine, FolderStorage(tmp_path), leads_until_s=float("inf"))
    return MeterHarness(QueueHarness(queue_engine, now_s=START_S), state)


def test_a_wide_job_pays_from_the_last_agent_that_had_to_leave_until_its_start(harness: MeterHarness) -> None:
    harness.preempted("n1", 21)
    harness.look(agents=("n2",))
    harness.preempted("n2", 55)
    harness.look()
    assert harness.delays_s() == []
    harness.started(63, *NODES)
    harness.look(regular=NODES)
    assert harness.delays_s() == [8.0]
    harness.look(regular=NODES)
    assert (harness.delays_s(), len(harness.questions)) == ([8.0], 3), "counted once, and Slurm is asked no more"


def test_agents_that_end_by_themselves_cost_nobody_anything(harness: MeterHarness) -> None:
    harness.cluster.jobs["agent of n1"] = agent("gleaner-n1", "n1", state="COMPLETED", id="agent of n1")
    harness.started(30, "n1")
    harness.look(agents=("n2",), regular=("n1",))
    assert harness.delays_s() == []


def test_slurm_that_does_not_answer_is_asked_again(harness: MeterHarness) -> None:
    harness.preempted("n1", 21)
    harness.started(30, "n1")
    harness.cluster.is_away = True
    with pytest.raises(ClusterUnavailable):
        harness.look(agents=("n2",), regular=("n1",))
    harness.cluster.is_away = False
    harness.look(agents=("n2",), regular=("n1",))
    assert harness.delays_s() == [9.0]
