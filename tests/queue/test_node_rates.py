"""Node rates: what reports have measured on each node, and what a new agent is told of it."""

from typing import Any

import pytest
from tests.queue.queue_harness import LEASE_S, SPENT, QueueHarness, checkpoint

from gleaner.agent.messages import (
    Checkpointed,
    Completed,
    Deregistration,
    NodeRates,
    RestoreMeasurement,
    Returned,
    ReturnReason,
    Saved,
    SaveMeasurement,
    Way,
)
from gleaner.agent.timing.save_cost import MIB
from gleaner.control.policy.rate_estimates import ERRORS_KEPT, RateRules
from gleaner.control.queue import agents, node_health

DAY = 86_400.0
RULES = RateRules(half_life_s=60 * DAY, prior_s=30 * DAY)


def _measured(mib: int, took_s: float, expected_s: float | None = None) -> SaveMeasurement:
    return SaveMeasurement(memory_bytes=mib * MIB, stored_bytes=1, took_s=took_s, expected_s=expected_s, way=Way.SHIM)


def _saved(mib: int = 100, took_s: float = 1.0, expected_s: float | None = None) -> Saved:
    return Saved(checkpoint=checkpoint(1), slice=SPENT, measured=_measured(mib, took_s, expected_s))


def _learn(harness: QueueHarness, job: int, report: Saved | Checkpointed | Completed | Returned) -> None:
    harness.do(node_health.record_costs, job, 1, report, now_s=harness.now_s)


def _running_on(harness: QueueHarness, node: str, **facts: Any) -> int:
    harness.agent(f"on-{node}", node=node, **facts)
    harness.job()
    return harness.claim_one(f"on-{node}").job


def _told(harness: QueueHarness, node: str) -> NodeRates:
    return harness.look(node_health.rates_of, node)


def test_a_node_is_told_what_its_own_saves_have_cost(harness: QueueHarness) -> None:
    here, there = _running_on(harness, "n1"), _running_on(harness, "n2")
    for mib in (100, 200, 400):
        _learn(harness, here, _saved(mib, 0.5 + mib / 200))
        _learn(harness, there, _saved(mib, mib / 50))
    told = _told(harness, "n1")
    assert (told.saves, told.restores) == (((100, 1.0), (200, 1.5), (400, 2.5)), ())
    assert _told(harness, "n2").saves == ((100, 2.0), (200, 4.0), (400, 8.0))


def test_a_restore_counts_at_the_attempts_end_and_not_at_each_periodic_save(harness: QueueHarness) -> None:
    job = _running_on(harness, "n1")
    cost = RestoreMeasurement(stored_bytes=100 * MIB, took_s=0.5, way=Way.SHIM)
    spent = SPENT.model_copy(update={"restored": cost})
    _learn(harness, job, Checkpointed(checkpoint=checkpoint(1), slice=spent))
    assert _told(harness, "n1") == NodeRates()
    _learn(harness, job, Completed(exit_code=0, slice=spent))
    _learn(harness, job, Returned(why=ReturnReason.SAVE_FAILED, slice=spent))
    assert _told(harness, "n1").restores == ((100, 0.5), (100, 0.5))


def test_a_node_is_told_how_many_others_saved_around_the_last_boundary(harness: QueueHarness) -> None:
    jobs = [_running_on(harness, f"n{number}") for number in range(4)]
    _learn(harness, jobs[0], _saved())
    harness.now_s += 3600
    for job in (jobs[1], jobs[1], jobs[2]):
        _learn(harness, job, _saved())
        harness.now_s += 30
    assert [_told(harness, f"n{number}").saves_elsewhere for number in range(4)] == [3, 1, 2, 3]


def test_what_a_save_costs_while_jobs_compute_says_nothing_of_the_end_where_they_stand_still(
    harness: QueueHarness,
) -> None:
    job = _running_on(harness, "n1")
    made = _saved(100, 1.0)
    slow = _measured(100, 9.0)
    for _ in range(3):
        _learn(harness, job, Checkpointed(checkpoint=made.checkpoint, slice=SPENT, measured=slow))
    assert _told(harness, "n1") == _told(harness, "n2") == NodeRates(), "and it is no boundary"
    _learn(harness, job, made)
    assert _told(harness, "n1").saves == ((100, 1.0),)


def test_a_save_that_came_too_late_counts_as_longer_than_it_took_and_is_remembered_until_one_is_in_time(
    harness: QueueHarness,
) -> None:
    job = _running_on(harness, "n1")
    _learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT, measured=_measured(100, 10.0, 4.0)))
    known = _told(harness, "n1")
    assert known.late
    assert known.saves == ((100, 15.0),)
    _learn(harness, job, _saved(100, 2.0, 4.0))
    assert not _told(harness, "n1").late


def test_a_save_that_began_just_before_the_end_makes_no_node_look_faster(harness: QueueHarness) -> None:
    job = _running_on(harness, "n1")
    _learn(harness, job, _saved(100, 10.0))
    for _ in range(3):
        _learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT, measured=_measured(100, 0.2, 10.0)))
    assert _told(harness, "n1").saves == ((100, 10.0),) * 4


def test_how_far_the_estimate_of_an_agents_end_was_off_is_kept_and_a_late_one_counts_as_longer(
    harness: QueueHarness,
) -> None:
    _running_on(harness, "n1")
    for number in range(ERRORS_KEPT + 5):
        said = Deregistration(ended_s=1.0, saving_s=float(number + 1), saving_expected_s=2.0)
        harness.do(node_health.record_estimate_error, "on-n1", said)
    assert _told(harness, "n1").errors == tuple((number + 1) / 2 for number in range(5, ERRORS_KEPT + 5))
    late = Deregistration(ended_s=1.0, saving_s=4.0, saving_expected_s=2.0, was_late=True)
    harness.do(node_health.record_estimate_error, "on-n1", late)
    harness.do(node_health.record_estimate_error, "on-n1", Deregistration(ended_s=1.0))
    assert _told(harness, "n1").errors[-1] == 3.0


def test_a_node_that_has_not_saved_is_told_what_the_slowest_node_of_its_kind_took(harness: QueueHarness) -> None:
    slow, fast = _running_on(harness, "slow"), _running_on(harness, "fast")
    other = _running_on(harness, "other", cpu_features=("avx512",))
    for job, took_s in ((slow, 10.0), (fast, 1.0), (other, 1000.0)):
        _learn(harness, job, _saved(100, took_s))
    _running_on(harness, "new")
    known = _told(harness, "new")
    assert (known.borrowed, known.saves, known.errors) == (True, ((100, 10.0),), ())
    assert not _told(harness, "fast").borrowed
    _running_on(harness, "first-of-its-kind", criu="9.9")
    first = _told(harness, "first-of-its-kind")
    assert (first.saves, first.borrowed) == ((), False)


def _mtbf_s(harness: QueueHarness) -> float:
    return harness.look(node_health.node_mtbf_s, RULES)


def test_agents_that_end_well_make_the_fleet_look_safer(harness: QueueHarness) -> None:
    assert _mtbf_s(harness) == RULES.prior_s
    harness.agent("a", end_s=harness.now_s + 5 * DAY)
    harness.now_s += 5 * DAY
    harness.record_heartbeat("a")
    harness.record_deregistration("a")
    harness.do(node_health.record_exposure, "a", vanished=False, rules=RULES, now_s=harness.now_s)
    assert _mtbf_s(harness) == pytest.approx(35 * DAY)


def test_an_agent_that_vanishes_long_before_its_end_is_a_loss(harness: QueueHarness) -> None:
    harness.agent("a", end_s=harness.now_s + 5 * DAY)
    harness.now_s += DAY
    harness.record_heartbeat("a")
    harness.silence()
    assert harness.do(agents.close_silent, "a", now_s=harness.now_s, losses_until_held=3, rates=RULES)
    assert _mtbf_s(harness) == pytest.approx((30 * DAY + DAY + LEASE_S) / 2)
