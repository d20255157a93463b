"""Slices whose save came too late for their agent's end: what they cost, and what they teach."""

import pytest
from tests.queue.scene import SPENT, Scene, digest

from gleaner.agent.leastsquares import MIB
from gleaner.agent.protocol import Farewell, Generation, GivenBack, Measured, NodeRates, Order, Saved, Way, Why
from gleaner.control.life import State
from gleaner.control.policy.rates import ERRORS_KEPT, RateRules
from gleaner.control.queue import moves, rates
from gleaner.control.queue.errors import NotCurrent
from gleaner.control.queue.savable import unsavable

RULES = RateRules(half_life=20, half_life_s=1e6, prior_s=1e6)


def measured(took_s: float, expected_s: float | None = None, mib: int = 100) -> Measured:
    return Measured(memory_bytes=mib * MIB, stored_bytes=0, took_s=took_s, expected_s=expected_s, way=Way.SHIM)


def learn(scene: Scene, job: int, report: Saved | GivenBack) -> None:
    scene.do(rates.learn, job, 1, report, rules=RULES, now_s=scene.now_s)


def saved(cost: Measured) -> Saved:
    made = Generation(attempt=1, number=1, digest=digest(1), size_bytes=1, log_lines=0)
    return Saved(generation=made, slice=SPENT, measured=cost)


def running_on(scene: Scene, node: str, **facts: object) -> int:
    scene.agent(f"on-{node}", node=node, **facts)
    job = scene.job()
    scene.claim_one(f"on-{node}")
    return job


def told(scene: Scene, node: str) -> NodeRates:
    found = scene.look(rates.of_node, node)
    assert found is not None
    return found


@pytest.mark.parametrize("why", [Why.TOO_LATE, Why.SAVE_FAILED, Why.STORAGE_FAULT])
def test_what_is_published_after_the_job_was_given_back_counts_until_somebody_claims_it(scene: Scene, why: Why) -> None:
    job, other = running_on(scene, "n1"), running_on(scene, "n2")
    for each in (job, other):
        scene.given_back(each, 1, why)
        assert scene.detail(each).job.state is State.NEW
    scene.saved(job, 1)
    assert scene.detail(job).job.state is State.SAVED
    (assignment,) = scene.claim("on-n1", most=1)
    if assignment.job == job:
        (assignment,) = scene.claim("on-n1", most=1)
    assert assignment.job == other
    with pytest.raises(NotCurrent):
        scene.saved(other, 1)


def test_a_job_that_was_given_back_is_not_revived_by_a_late_heartbeat(scene: Scene) -> None:
    job = running_on(scene, "n1")
    scene.given_back(job, 1, Why.TOO_LATE)
    assert scene.beat("on-n1", (job, 1)).orders == (Order.DROP,)
    assert scene.detail(job).job.state is State.NEW


def test_the_same_return_said_twice_counts_once_and_another_is_refused(scene: Scene) -> None:
    job = running_on(scene, "n1")
    report = GivenBack(why=Why.TOO_LATE, detail="x")
    assert scene.do(moves.given_back, job, 1, report, now_s=scene.now_s)
    before = scene.everything()
    assert not scene.do(moves.given_back, job, 1, report, now_s=scene.now_s)
    with pytest.raises(NotCurrent):
        scene.given_back(job, 1, Why.TOO_LATE, "y")
    assert scene.everything() == before


def test_slices_that_come_too_late_hold_no_job_and_keep_no_node_from_being_drained(scene: Scene) -> None:
    """A cluster whose saves are all late by its margin would otherwise drain no node, and hold every job in the end."""
    job = running_on(scene, "n1")
    for attempt in range(1, 12):
        scene.given_back(job, attempt, Why.TOO_LATE)
        assert not scene.detail(job).job.held
        scene.claim_one("on-n1")
    assert scene.look(unsavable, "on-n1") == {}


def test_a_save_that_came_too_late_counts_as_longer_than_it_took_and_is_remembered_until_one_is_in_time(
    scene: Scene,
) -> None:
    job = running_on(scene, "n1")
    learn(scene, job, GivenBack(why=Why.TOO_LATE, slice=SPENT, measured=measured(10.0, 4.0)))
    known = told(scene, "n1")
    assert known.late
    assert known.save_mib_s == pytest.approx(100 / 15)
    learn(scene, job, saved(measured(2.0, 4.0)))
    assert not told(scene, "n1").late


def test_a_save_that_began_just_before_the_end_makes_no_node_look_faster(scene: Scene) -> None:
    job = running_on(scene, "n1")
    learn(scene, job, saved(measured(10.0)))
    for _ in range(3):
        learn(scene, job, GivenBack(why=Why.TOO_LATE, slice=SPENT, measured=measured(0.2, 10.0)))
    assert told(scene, "n1").save_mib_s == pytest.approx(10)


def test_what_is_published_after_it_was_given_up_was_late_all_the_same(scene: Scene) -> None:
    job = running_on(scene, "n1")
    scene.given_back(job, 1, Why.TOO_LATE)
    learn(scene, job, GivenBack(why=Why.TOO_LATE, slice=SPENT, measured=measured(10.0, 4.0)))
    scene.saved(job, 1)
    learn(scene, job, saved(measured(11.0, 4.0)))
    assert told(scene, "n1").late


def test_a_save_that_had_not_begun_says_nothing_of_the_node(scene: Scene) -> None:
    job = running_on(scene, "n1")
    learn(scene, job, GivenBack(why=Why.TOO_LATE, slice=SPENT))
    assert scene.look(rates.of_node, "n1") is None


def test_how_far_the_estimate_of_an_agents_end_was_off_is_kept_and_a_late_one_counts_as_longer(scene: Scene) -> None:
    running_on(scene, "n1")
    for number in range(ERRORS_KEPT + 5):
        said = Farewell(ended_s=1.0, saving_s=float(number + 1), saving_expected_s=2.0)
        scene.do(rates.learn_end, "on-n1", said)
    assert told(scene, "n1").errors == tuple((number + 1) / 2 for number in range(5, ERRORS_KEPT + 5))
    scene.do(rates.learn_end, "on-n1", Farewell(ended_s=1.0, saving_s=4.0, saving_expected_s=2.0, was_late=True))
    scene.do(rates.learn_end, "on-n1", Farewell(ended_s=1.0))
    assert told(scene, "n1").errors[-1] == 3.0


def test_a_node_that_has_not_saved_is_told_what_the_slowest_node_of_its_kind_took(scene: Scene) -> None:
    slow, fast = running_on(scene, "slow"), running_on(scene, "fast")
    other = running_on(scene, "other", cpu_features=("avx512",))
    for job, took_s in ((slow, 10.0), (fast, 1.0), (other, 1000.0)):
        learn(scene, job, saved(measured(took_s)))
    running_on(scene, "new")
    known = told(scene, "new")
    assert (known.borrowed, known.save_mib_s, known.errors) == (True, pytest.approx(10), ())
    assert not told(scene, "fast").borrowed
    running_on(scene, "first-of-its-kind", criu="9.9")
    first = told(scene, "first-of-its-kind")
    assert (first.saves, first.borrowed) == (0, False)
