"""What reports have measured, kept for each node, and what a new agent is told of it."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.queue.scene import LEASE_S, SPENT, Scene, digest

from gleaner.agent.protocol import (
    Checkpointed,
    Completed,
    Generation,
    GivenBack,
    Measured,
    NodeRates,
    RestoreMeasured,
    Saved,
    Way,
    Why,
)
from gleaner.control.policy.rates import RateRules
from gleaner.control.queue import agents, rates
from gleaner.control.queue.engine import connect

MIB = 1024 * 1024
DAY = 86_400.0
RULES = RateRules(half_life=20, half_life_s=60 * DAY, prior_s=30 * DAY)


def _measured(mib: int, took_s: float) -> Measured:
    return Measured(memory_bytes=mib * MIB, stored_bytes=1, took_s=took_s, way=Way.SHIM)


def _saved(mib: int = 100, took_s: float = 1.0) -> Saved:
    made = Generation(attempt=1, number=1, digest=digest(1), size_bytes=1, log_lines=0)
    return Saved(generation=made, slice=SPENT, measured=_measured(mib, took_s))


def _learn(scene: Scene, job: int, report: Saved | Checkpointed | Completed | GivenBack) -> None:
    scene.do(rates.learn, job, 1, report, rules=RULES, now_s=scene.now_s)


def _running_on(scene: Scene, node: str) -> int:
    scene.agent(f"on-{node}", node=node)
    scene.job()
    return scene.claim_one(f"on-{node}").job


def _told(scene: Scene, node: str) -> NodeRates:
    found = scene.look(rates.of_node, node)
    assert found is not None
    return found


def test_nothing_is_told_of_a_fleet_that_has_saved_nothing(scene: Scene) -> None:
    _running_on(scene, "n1")
    assert scene.look(rates.of_node, "n1") is None


def test_a_node_is_told_what_its_own_saves_have_cost(scene: Scene) -> None:
    here, there = _running_on(scene, "n1"), _running_on(scene, "n2")
    for mib in (100, 200, 400):
        _learn(scene, here, _saved(mib, 0.5 + mib / 200))
        _learn(scene, there, _saved(mib, mib / 50))
    told = _told(scene, "n1")
    assert (told.save_fixed_s, told.save_mib_s) == (pytest.approx(0.5), pytest.approx(200))
    assert 2.8 < told.saves < 3
    assert (told.restores, told.restore_mib_s) == (0, None)
    assert _told(scene, "n2").save_mib_s == pytest.approx(50)


def test_a_restore_counts_at_the_attempts_end_and_not_at_each_periodic_save(scene: Scene) -> None:
    job = _running_on(scene, "n1")
    cost = RestoreMeasured(stored_bytes=100 * MIB, took_s=0.5, way=Way.SHIM)
    spent = SPENT.model_copy(update={"restored": cost})
    made = Generation(attempt=1, number=1, digest=digest(1), size_bytes=1, log_lines=0)
    _learn(scene, job, Checkpointed(generation=made, slice=spent))
    assert scene.look(rates.of_node, "n1") is None
    _learn(scene, job, Completed(exit_code=0, slice=spent))
    _learn(scene, job, GivenBack(why=Why.SAVE_FAILED, slice=spent))
    told = _told(scene, "n1")
    assert (told.restore_fixed_s, told.restore_mib_s) == (0, pytest.approx(200))
    assert 1.9 < told.restores < 2


def test_a_workload_that_saves_itself_says_nothing_of_its_node(scene: Scene) -> None:
    job = _running_on(scene, "n1")
    slow = RestoreMeasured(stored_bytes=MIB, took_s=60, way=Way.SELF)
    itself = _saved().model_copy(
        update={
            "measured": _measured(1, 60).model_copy(update={"way": Way.SELF}),
            "slice": SPENT.model_copy(update={"restored": slow}),
        }
    )
    _learn(scene, job, itself)
    assert _told(scene, "n1") == NodeRates()
    _learn(scene, job, itself.model_copy(update={"measured": None}))
    assert _told(scene, "n1") == NodeRates()


def test_a_node_is_told_how_many_others_saved_around_the_last_boundary(scene: Scene) -> None:
    jobs = [_running_on(scene, f"n{number}") for number in range(4)]
    _learn(scene, jobs[0], _saved())
    scene.now_s += 3600
    for job in (jobs[1], jobs[1], jobs[2]):
        _learn(scene, job, _saved())
        scene.now_s += 30
    assert [_told(scene, f"n{number}").saves_elsewhere for number in range(4)] == [3, 1, 2, 3]


def test_periodic_saves_are_no_boundary(scene: Scene) -> None:
    job = _running_on(scene, "n1")
    made = _saved()
    _learn(scene, job, Checkpointed(generation=made.generation, slice=SPENT, measured=made.measured))
    assert scene.look(rates.of_node, "n1") is None
    assert scene.look(rates.of_node, "n2") is None


def test_what_a_save_costs_while_jobs_compute_says_nothing_of_the_end_where_they_stand_still(scene: Scene) -> None:
    job = _running_on(scene, "n1")
    made = _saved(100, 1.0)
    slow = _measured(100, 9.0)
    for _ in range(3):
        _learn(scene, job, Checkpointed(generation=made.generation, slice=SPENT, measured=slow))
    _learn(scene, job, made)
    assert _told(scene, "n1").save_mib_s == pytest.approx(100)


def _mtbf_s(scene: Scene) -> float:
    return scene.look(rates.node_mtbf_s, RULES)


def test_agents_that_end_well_make_the_fleet_look_safer(scene: Scene) -> None:
    assert _mtbf_s(scene) == RULES.prior_s
    scene.agent("a", end_s=scene.now_s + 5 * DAY)
    scene.now_s += 5 * DAY
    scene.beat("a")
    scene.farewell("a")
    scene.do(rates.left, "a", vanished=False, rules=RULES, now_s=scene.now_s)
    assert _mtbf_s(scene) == pytest.approx(35 * DAY)


def _vanish(scene: Scene, name: str) -> None:
    scene.silence()
    assert scene.do(agents.close_silent, name, now_s=scene.now_s, losses_until_held=3, reason="gone")
    scene.do(rates.left, name, vanished=True, rules=RULES, now_s=scene.now_s)


def test_an_agent_that_vanishes_long_before_its_end_is_a_loss(scene: Scene) -> None:
    scene.agent("a", end_s=scene.now_s + 5 * DAY)
    scene.now_s += DAY
    scene.beat("a")
    _vanish(scene, "a")
    assert _mtbf_s(scene) == pytest.approx((30 * DAY + DAY + LEASE_S) / 2)


def test_an_agent_that_falls_silent_at_its_end_is_none(scene: Scene) -> None:
    scene.agent("a", end_s=scene.now_s + DAY)
    scene.now_s += DAY - LEASE_S / 2
    scene.beat("a")
    _vanish(scene, "a")
    assert _mtbf_s(scene) == pytest.approx(31 * DAY, rel=1e-3)


def test_what_was_seen_long_ago_counts_less(scene: Scene) -> None:
    scene.agent("a", end_s=scene.now_s + DAY)
    _vanish(scene, "a")
    scene.now_s += RULES.half_life_s
    scene.agent("b", node="node-of-a")
    scene.farewell("b")
    scene.do(rates.left, "b", vanished=False, rules=RULES, now_s=scene.now_s)
    assert _mtbf_s(scene) == pytest.approx(30 * DAY / 1.5, rel=1e-3)


@pytest.mark.postgres
def test_reports_of_one_node_at_once_all_count(postgres_url: str) -> None:
    scene = Scene(connect(postgres_url))
    job = _running_on(scene, "n1")
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: _learn(scene, job, _saved()), range(12)))
    assert _told(scene, "n1").saves == pytest.approx(sum(0.5 ** (age / 20) for age in range(12)))
