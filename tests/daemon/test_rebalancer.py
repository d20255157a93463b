"""Moving running jobs: what people asked for is seen to its end, and what a policy chose is stored."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.messages import Order, RestoreMeasurement, Saved, SaveMeasurement, Slice, Way
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import Loop
from gleaner.control.daemon.rebalancer import Rebalancer
from gleaner.control.policy import replay
from gleaner.control.queue import decisions, node_health, relocation
from gleaner.control.queue.database import connect
from gleaner.control.queue.relocation import nodes_and_jobs
from gleaner.control.settings import MigrationSettings, QueueSettings, Settings


@pytest.fixture
def queue(sqlite_url: str) -> QueueHarness:
    return QueueHarness(connect(sqlite_url))


def rebalancer(queue: QueueHarness, folder: Path, *, leads: bool = True, **changes: Any) -> Callable[[float], None]:
    """Return the loop's step, as a function of the time."""
    told: dict[str, Any] = {"policy": "compaction", "every_s": 30, "assumed_s": 10} | changes
    settings = Settings(
        queue=QueueSettings(url=str(queue.engine.url)),
        migration=MigrationSettings(**told),
    )
    state = ControlState(settings, queue.engine, FolderStorage(folder), leads_until_s=math.inf if leads else 0)
    return partial(Loop("rebalancer", 5, Rebalancer(state).step).run_once, state)


def two_partly_used(queue: QueueHarness) -> tuple[int, int]:
    """A job on each of two agents, which have room for both."""
    found: list[int] = []
    for name in ("one", "two"):
        queue.agent(name, cpus=4, end_s=queue.now_s + 3600)
        job = queue.job(cpus=2)
        assert [each.job for each in queue.claim(name, cpus=4)] == [job]
        found.append(job)
    queue.now_s += 60
    for name, job in zip(("one", "two"), found, strict=True):
        queue.record_heartbeat(name, (job, 1))
    return found[0], found[1]


def test_the_policy_moves_one_job_and_what_it_decided_from_is_stored(queue: QueueHarness, tmp_path: Path) -> None:
    stays, moves = two_partly_used(queue)
    part = rebalancer(queue, tmp_path)
    part(queue.now_s)
    assert queue.record_heartbeat("two", (moves, 1)).orders == (Order.VACATE,)
    assert queue.record_heartbeat("one", (stays, 1)).orders == (Order.GO_ON,)
    (stored,) = queue.look(decisions.latest, f"job {moves}", 5)
    assert (stored.kind, stored.acted) == ("migrate", True)
    assert stored.answer["move"]["cost_core_s"] == 20
    assert stored.answer["move"]["gain_core_s"] == 4 * (3600 - 60 - 10)
    assert replay.REPLAYS[stored.policy](stored.given) == stored.answer


def test_nothing_moves_by_default_or_where_this_program_does_not_lead(queue: QueueHarness, tmp_path: Path) -> None:
    two_partly_used(queue)
    rebalancer(queue, tmp_path, policy="none")(queue.now_s)
    assert Settings().migration.policy == "none"
    rebalancer(queue, tmp_path, leads=False)(queue.now_s)
    assert queue.look(relocation.all_relocations) == ()


def test_work_goes_to_the_preferred_nodes(queue: QueueHarness, tmp_path: Path) -> None:
    stays, moves = two_partly_used(queue)
    rebalancer(queue, tmp_path, policy="priorities", prefer=("node-of-two",))(queue.now_s)
    (found,) = queue.look(relocation.all_relocations)
    assert (found.job, found.to_node) == (stays, "node-of-two")
    assert moves != stays


def test_priorities_that_prefer_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no nodes are named to prefer"):
        MigrationSettings(policy="priorities")
    with pytest.raises(ValueError, match="names no nodes"):
        MigrationSettings(prefer=("node 1",))


def test_migratable_is_what_has_settled_and_can_be_saved_and_its_cost_is_what_was_measured(
    queue_engine: Engine,
) -> None:
    queue = QueueHarness(queue_engine)
    job, held = two_partly_used(queue)
    queue.hold(held)

    def seen(**how: float) -> dict[int, tuple[bool, float]]:
        _, jobs = queue.look(nodes_and_jobs, **({"settled_s": 60.0, "assumed_s": 7.0, "now_s": queue.now_s} | how))
        return {each.job: (each.is_migratable, each.cost_s) for each in jobs}

    assert seen() == {job: (True, 7.0), held: (False, 7.0)}
    assert seen(settled_s=61.0)[job] == (False, 7.0)
    learn(queue, held)
    assert seen()[held][1] == pytest.approx(4.0 * 512 / 256 + 2.0 * 512 / 256)


def learn(queue: QueueHarness, job: int) -> None:
    """A save of 256 MiB took 4 s on the job's node, and a restore of as much 2 s."""
    made = {"attempt": 1, "number": 1, "digest": f"sha256:{1:064x}", "size_bytes": 2**28, "log_lines": 0}
    restored = RestoreMeasurement(stored_bytes=2**28, took_s=2.0, way=Way.SHIM)
    report = Saved.model_validate(
        {
            "checkpoint": made,
            "slice": Slice(started_s=1.0, restored=restored),
            "measured": SaveMeasurement(memory_bytes=2**28, stored_bytes=2**28, took_s=4.0, way=Way.SHIM),
        }
    )
    queue.do(node_health.record_costs, job, 1, report, now_s=queue.now_s)
