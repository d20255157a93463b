"""Moving running jobs: what people asked for is seen to its end, and what a policy chose is stored."""

import math
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine
from tests.queue.scene import Scene

from gleaner.agent.protocol import Measured, Order, RestoreMeasured, Saved, Slice, Way
from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.mover import Mover
from gleaner.control.policy import replaying
from gleaner.control.policy.rates import RateRules
from gleaner.control.policy.subjects import job_subject
from gleaner.control.queue import decisions, migrating, rates
from gleaner.control.queue.engine import connect
from gleaner.control.queue.movables import movables
from gleaner.control.settings import MigrationSettings, QueueSettings, Settings
from gleaner.control.site import Site


@pytest.fixture
def scene(sqlite_url: str) -> Scene:
    return Scene(connect(sqlite_url))


def mover(scene: Scene, folder: Path, *, leads: bool = True, **changes: Any) -> Mover:
    told: dict[str, Any] = {"policy": "compaction", "every_s": 30, "assumed_s": 10} | changes
    settings = Settings(
        queue=QueueSettings(url=str(scene.engine.url)),
        migration=MigrationSettings(**told),
    )
    return Mover(Site(settings, scene.engine, FolderStorage(folder), leads_until_s=math.inf if leads else 0))


def two_partly_used(scene: Scene) -> tuple[int, int]:
    """A job on each of two agents, which have room for both."""
    found: list[int] = []
    for name in ("one", "two"):
        scene.agent(name, cpus=4, end_s=scene.now_s + 3600)
        job = scene.job(cpus=2)
        assert [each.job for each in scene.claim(name, cpus=4)] == [job]
        found.append(job)
    scene.now_s += 60
    for name, job in zip(("one", "two"), found, strict=True):
        scene.beat(name, (job, 1))
    return found[0], found[1]


def test_the_policy_moves_one_job_and_what_it_decided_from_is_stored(scene: Scene, tmp_path: Path) -> None:
    stays, moves = two_partly_used(scene)
    part = mover(scene, tmp_path)
    part.a_round(scene.now_s)
    assert scene.beat("two", (moves, 1)).orders == (Order.VACATE,)
    assert scene.beat("one", (stays, 1)).orders == (Order.GO_ON,)
    (stored,) = scene.look(decisions.latest, job_subject(moves), 5)
    assert (stored.kind, stored.acted) == ("migrate", True)
    assert stored.answer["move"]["cost_core_s"] == 20
    assert stored.answer["move"]["gain_core_s"] == 4 * (3600 - 60 - 10)
    assert replaying.REPLAYS[stored.policy](stored.given) == stored.answer


def test_a_moved_job_runs_where_it_was_sent_and_the_agent_that_it_left_gets_nothing(
    scene: Scene, tmp_path: Path
) -> None:
    _, moves = two_partly_used(scene)
    part = mover(scene, tmp_path)
    part.a_round(scene.now_s)
    scene.saved(moves, 1)
    assert scene.claim("two", cpus=4) == ()
    assert [each.job for each in scene.claim("one", cpus=2)] == [moves]
    part.a_round(scene.now_s + 5)
    assert scene.look(migrating.all_of_them) == ()


def test_the_next_move_waits_for_this_one_and_for_its_time(scene: Scene, tmp_path: Path) -> None:
    _, moves = two_partly_used(scene)
    part = mover(scene, tmp_path)
    part.a_round(scene.now_s)
    part.a_round(scene.now_s + 31)
    assert len(scene.look(decisions.latest, job_subject(moves), 5)) == 1


def test_nothing_moves_while_a_job_waits(scene: Scene, tmp_path: Path) -> None:
    two_partly_used(scene)
    scene.job(cpus=64)
    mover(scene, tmp_path).a_round(scene.now_s)
    assert scene.look(migrating.all_of_them) == ()


def test_what_was_told_in_vain_is_not_told_again(scene: Scene, tmp_path: Path) -> None:
    _, moves = two_partly_used(scene)
    part = mover(scene, tmp_path, patience_s=100)
    part.a_round(scene.now_s)
    scene.now_s += 101
    for name in ("one", "two"):
        scene.register(name, cpus=4)
    part.a_round(scene.now_s)
    part.a_round(scene.now_s + 40)
    assert scene.look(migrating.all_of_them) == ()
    assert scene.detail(moves).events[-1].what == "not migrated"


def test_nothing_moves_by_default_or_where_this_program_does_not_lead(scene: Scene, tmp_path: Path) -> None:
    two_partly_used(scene)
    mover(scene, tmp_path, policy="none").a_round(scene.now_s)
    assert Settings().migration.policy == "none"
    mover(scene, tmp_path, leads=False).a_round(scene.now_s)
    assert scene.look(migrating.all_of_them) == ()


def test_work_goes_to_the_preferred_nodes(scene: Scene, tmp_path: Path) -> None:
    stays, moves = two_partly_used(scene)
    mover(scene, tmp_path, policy="priorities", prefer=("node-of-two",)).a_round(scene.now_s)
    (found,) = scene.look(migrating.all_of_them)
    assert (found.job, found.to_node) == (stays, "node-of-two")
    assert moves != stays


def test_priorities_that_prefer_nothing_are_refused() -> None:
    with pytest.raises(ValueError, match="no nodes are named to prefer"):
        MigrationSettings(policy="priorities")
    with pytest.raises(ValueError, match="names no nodes"):
        MigrationSettings(prefer=("node 1",))


def test_movable_is_what_has_settled_and_can_be_saved_and_its_cost_is_what_was_measured(queue_engine: Engine) -> None:
    scene = Scene(queue_engine)
    job, held = two_partly_used(scene)
    scene.hold(held)

    def seen(**how: float) -> dict[int, tuple[bool, float]]:
        _, jobs = scene.look(movables, **({"settled_s": 60.0, "assumed_s": 7.0, "now_s": scene.now_s} | how))
        return {each.job: (each.is_movable, each.cost_s) for each in jobs}

    assert seen() == {job: (True, 7.0), held: (False, 7.0)}
    assert seen(settled_s=61.0)[job] == (False, 7.0)
    learn(scene, held)
    assert seen()[held][1] == pytest.approx(4.0 * 512 / 256 + 2.0 * 512 / 256)


def learn(scene: Scene, job: int) -> None:
    """A save of 256 MiB took 4 s on the job's node, and a restore of as much 2 s."""
    made = {"attempt": 1, "number": 1, "digest": f"sha256:{1:064x}", "size_bytes": 2**28, "log_lines": 0}
    restored = RestoreMeasured(stored_bytes=2**28, took_s=2.0, way=Way.SHIM)
    report = Saved.model_validate(
        {
            "generation": made,
            "slice": Slice(started_s=1.0, restored=restored),
            "measured": Measured(memory_bytes=2**28, stored_bytes=2**28, took_s=4.0, way=Way.SHIM),
        }
    )
    scene.do(rates.learn, job, 1, report, rules=RateRules(20, 1e6, 1e6), now_s=scene.now_s)
