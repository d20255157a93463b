"""A running job is told to migrate, and goes on elsewhere."""

from typing import Any

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import Order, ReturnReason
from gleaner.control.queue import queries, relocation
from gleaner.control.queue.errors import Conflict

PATIENCE_S = 100.0


def ask(harness: QueueHarness, job: int, to: str | None = None) -> None:
    harness.do(relocation.ask, job, to=to, by="alice", now_s=harness.now_s)


def tend(harness: QueueHarness) -> tuple[int, ...]:
    return harness.do(relocation.conclude, patience_s=PATIENCE_S, now_s=harness.now_s)


def two_agents(harness: QueueHarness, **other: Any) -> int:
    """Return a job that runs on `one`; there is also an agent `two`, on node-of-two."""
    job = harness.job()
    harness.agent("one")
    harness.claim_one("one")
    harness.agent("two", **other)
    return job


def test_its_agent_is_told_to_save_it_and_nothing_else(harness: QueueHarness) -> None:
    job = two_agents(harness)
    other = harness.job()
    harness.claim_one("one")
    assert harness.record_heartbeat("one", (job, 1), (other, 1)).orders == (Order.GO_ON, Order.GO_ON)
    ask(harness, job)
    orders = harness.record_heartbeat("one", (job, 1), (other, 1))
    assert orders.orders == (Order.VACATE, Order.GO_ON)
    assert not orders.vacate


def test_it_is_not_claimed_again_on_the_node_that_it_has_left(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job)
    harness.record_save(job, 1)
    assert harness.claim("one") == ()
    assert [each.job for each in harness.claim("two")] == [job]
    assert tend(harness) == (job,)
    assert harness.look(relocation.relocation_of, job) is None
    assert harness.detail(job).events[-1].detail == "from node-of-one to node-of-two"


def test_a_job_that_is_to_go_to_one_node_is_claimed_by_no_other(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.agent("three")
    ask(harness, job, to="node-of-two")
    harness.record_save(job, 1)
    assert harness.claim("one") == harness.claim("three") == ()
    (waiting,) = harness.look(queries.waiting)
    assert waiting.misfits == {"node-of-one", "node-of-three"}
    assert [each.job for each in harness.claim("two")] == [job]


def test_a_job_that_nobody_there_takes_may_go_on_anywhere_after_a_while(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job, to="node-of-two")
    harness.record_save(job, 1)
    harness.record_deregistration("two")
    harness.now_s += PATIENCE_S - 1
    assert tend(harness) == ()
    assert harness.claim("one") == ()
    harness.now_s += 2
    tend(harness)
    assert harness.detail(job).events[-1].what == "not migrated"
    assert [each.job for each in harness.claim("one")] == [job]


def test_a_job_that_could_not_be_saved_in_time_stays_and_is_told_no_more(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job)
    harness.now_s += PATIENCE_S + 1
    harness.register("one")
    tend(harness)
    assert harness.record_heartbeat("one", (job, 1)).orders == (Order.GO_ON,)
    assert "stays on node-of-one" in harness.detail(job).events[-1].detail


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("node-of-one", "runs on node-of-one already"),
        ("node-of-three", "no live agent there has 1 core and 512 MiB free"),
        ("nowhere", "no live agent there"),
    ],
)
def test_a_target_without_room_is_refused_in_one_line_and_nothing_changes(
    harness: QueueHarness, to: str, why: str
) -> None:
    job = two_agents(harness)
    harness.agent("three", cpus=2)
    ids = [harness.job(cpus=2)]
    assert [each.job for each in harness.claim("three", cpus=2)] == ids
    before = harness.everything()
    with pytest.raises(Conflict, match=why):
        ask(harness, job, to=to)
    assert harness.everything() == before


def test_a_node_that_cannot_restore_it_is_refused(harness: QueueHarness) -> None:
    job = two_agents(harness, cpu_features=("avx",))
    with pytest.raises(Conflict, match="to node-of-two: it cannot continue there"):
        ask(harness, job, to="node-of-two")


@pytest.mark.parametrize("is_saved", [False, True])
def test_room_that_is_promised_to_one_job_is_not_promised_to_another(harness: QueueHarness, is_saved: bool) -> None:
    job = two_agents(harness, cpus=1)
    other = harness.job()
    harness.claim_one("one")
    ask(harness, job, to="node-of-two")
    if is_saved:
        harness.record_save(job, 1)
    with pytest.raises(Conflict, match="no live agent there"):
        ask(harness, other, to="node-of-two")


def test_only_what_runs_can_be_migrated(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.record_save(job, 1)
    with pytest.raises(Conflict, match="it does not run, it is Saved"):
        ask(harness, job)


def test_a_job_whose_last_save_failed_is_not_migrated(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.record_return(job, 1, ReturnReason.SAVE_FAILED, "no space")
    harness.claim("one")
    with pytest.raises(Conflict, match=r"cannot be saved \(the last time, it could not be\)"):
        ask(harness, job)


def test_a_job_that_was_moved_waits_for_no_node_alone_though_its_agent_there_is_lost(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.agent("three")
    ask(harness, job, to="node-of-two")
    harness.record_save(job, 1)
    assert harness.claim("three") == ()
    assert harness.claim_one("two").job == job
    assert tend(harness) == (job,)
    harness.silence()
    harness.record_heartbeat("three")
    assert harness.claim_one("three").job == job
