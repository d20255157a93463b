"""Attempts whose save came too late for their agent's end: what they cost, and what control learns from them."""

from typing import Any

import pytest
from tests.queue.queue_harness import SPENT, QueueHarness, digest

from gleaner.agent.messages import (
    Checkpoint,
    Deregistration,
    NodeRates,
    Order,
    Returned,
    ReturnReason,
    Saved,
    SaveMeasurement,
    Way,
)
from gleaner.agent.timing.save_cost import MIB
from gleaner.control.policy.node_rates import ERRORS_KEPT
from gleaner.control.queue import node_rates
from gleaner.control.queue.errors import NotCurrent
from gleaner.control.queue.relocation import unsavable
from gleaner.control.states import State


def measured(took_s: float, expected_s: float | None = None, mib: int = 100) -> SaveMeasurement:
    return SaveMeasurement(memory_bytes=mib * MIB, stored_bytes=0, took_s=took_s, expected_s=expected_s, way=Way.SHIM)


def learn(harness: QueueHarness, job: int, report: Saved | Returned) -> None:
    harness.do(node_rates.record_report, job, 1, report, now_s=harness.now_s)


def saved(cost: SaveMeasurement) -> Saved:
    made = Checkpoint(attempt=1, number=1, digest=digest(1), size_bytes=1, log_lines=0)
    return Saved(checkpoint=made, slice=SPENT, measured=cost)


def running_on(harness: QueueHarness, node: str, **facts: Any) -> int:
    harness.agent(f"on-{node}", node=node, **facts)
    job = harness.job()
    harness.claim_one(f"on-{node}")
    return job


def told(harness: QueueHarness, node: str) -> NodeRates:
    return harness.look(node_rates.of_node, node)


@pytest.mark.parametrize("why", [ReturnReason.TOO_LATE, ReturnReason.SAVE_FAILED, ReturnReason.STORAGE_FAULT])
def test_what_is_published_after_the_job_was_returned_counts_until_somebody_claims_it(
    harness: QueueHarness, why: ReturnReason
) -> None:
    job, other = running_on(harness, "n1"), running_on(harness, "n2")
    for each in (job, other):
        harness.record_return(each, 1, why)
        assert harness.detail(each).job.state is State.NEW
    harness.record_save(job, 1)
    assert harness.detail(job).job.state is State.SAVED
    (assignment,) = harness.claim("on-n1", most=1)
    if assignment.job == job:
        (assignment,) = harness.claim("on-n1", most=1)
    assert assignment.job == other
    with pytest.raises(NotCurrent):
        harness.record_save(other, 1)


def test_a_job_that_was_returned_is_not_revived_by_a_late_heartbeat(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    harness.record_return(job, 1, ReturnReason.TOO_LATE)
    assert harness.record_heartbeat("on-n1", (job, 1)).orders == (Order.DROP,)
    assert harness.detail(job).job.state is State.NEW


def test_the_same_return_said_twice_counts_once_and_another_is_refused(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    assert harness.record_return(job, 1, ReturnReason.TOO_LATE, "x")
    before = harness.everything()
    assert not harness.record_return(job, 1, ReturnReason.TOO_LATE, "x")
    with pytest.raises(NotCurrent):
        harness.record_return(job, 1, ReturnReason.TOO_LATE, "y")
    assert harness.everything() == before


def test_slices_that_come_too_late_hold_no_job_and_keep_no_node_from_being_drained(harness: QueueHarness) -> None:
    """On a cluster whose saves are all late no node could else be drained, and every job would be held in the end."""
    job = running_on(harness, "n1")
    for attempt in range(1, 12):
        harness.record_return(job, attempt, ReturnReason.TOO_LATE)
        assert not harness.detail(job).job.held
        harness.claim_one("on-n1")
    assert harness.look(unsavable, "on-n1") == {}


def test_a_save_that_came_too_late_counts_as_longer_than_it_took_and_is_remembered_until_one_is_in_time(
    harness: QueueHarness,
) -> None:
    job = running_on(harness, "n1")
    learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT, measured=measured(10.0, 4.0)))
    known = told(harness, "n1")
    assert known.late
    assert known.saves == ((100, 15.0),)
    learn(harness, job, saved(measured(2.0, 4.0)))
    assert not told(harness, "n1").late


def test_a_save_that_began_just_before_the_end_makes_no_node_look_faster(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    learn(harness, job, saved(measured(10.0)))
    for _ in range(3):
        learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT, measured=measured(0.2, 10.0)))
    assert told(harness, "n1").saves == ((100, 10.0),) * 4


def test_what_is_published_after_it_was_given_up_was_late_all_the_same(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    harness.record_return(job, 1, ReturnReason.TOO_LATE)
    learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT, measured=measured(10.0, 4.0)))
    harness.record_save(job, 1)
    learn(harness, job, saved(measured(11.0, 4.0)))
    assert told(harness, "n1").late


def test_a_save_that_had_not_begun_says_nothing_of_the_node(harness: QueueHarness) -> None:
    job = running_on(harness, "n1")
    learn(harness, job, Returned(why=ReturnReason.TOO_LATE, slice=SPENT))
    assert told(harness, "n1") == NodeRates()


def test_how_far_the_estimate_of_an_agents_end_was_off_is_kept_and_a_late_one_counts_as_longer(
    harness: QueueHarness,
) -> None:
    running_on(harness, "n1")
    for number in range(ERRORS_KEPT + 5):
        said = Deregistration(ended_s=1.0, saving_s=float(number + 1), saving_expected_s=2.0)
        harness.do(node_rates.record_deregistration, "on-n1", said)
    assert told(harness, "n1").errors == tuple((number + 1) / 2 for number in range(5, ERRORS_KEPT + 5))
    late = Deregistration(ended_s=1.0, saving_s=4.0, saving_expected_s=2.0, was_late=True)
    harness.do(node_rates.record_deregistration, "on-n1", late)
    harness.do(node_rates.record_deregistration, "on-n1", Deregistration(ended_s=1.0))
    assert told(harness, "n1").errors[-1] == 3.0


def test_a_node_that_has_not_saved_is_told_what_the_slowest_node_of_its_kind_took(harness: QueueHarness) -> None:
    slow, fast = running_on(harness, "slow"), running_on(harness, "fast")
    other = running_on(harness, "other", cpu_features=("avx512",))
    for job, took_s in ((slow, 10.0), (fast, 1.0), (other, 1000.0)):
        learn(harness, job, saved(measured(took_s)))
    running_on(harness, "new")
    known = told(harness, "new")
    assert (known.borrowed, known.saves, known.errors) == (True, ((100, 10.0),), ())
    assert not told(harness, "fast").borrowed
    running_on(harness, "first-of-its-kind", criu="9.9")
    first = told(harness, "first-of-its-kind")
    assert (first.saves, first.borrowed) == ((), False)
