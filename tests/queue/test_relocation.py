"""A running job is told to migrate, and goes on elsewhere."""

from typing import Any

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import Order, ReturnReason
from gleaner.control.queue import lanes, queries, relocation
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


def test_it_is_kept_off_also_where_the_lane_of_what_was_saved_there_is_known(harness: QueueHarness) -> None:
    other = harness.job()
    job = two_agents(harness)
    harness.claim("one")
    harness.record_save(min(job, other), 1)
    job = max(job, other)
    ask(harness, job)
    harness.record_save(job, 1)
    assert [each.job for each in harness.claim("one")] == [min(job, other)]


def test_once_it_is_saved_again_it_may_go_on_anywhere(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job)
    ask(harness, job)
    assert [event.what for event in harness.detail(job).events].count("migrate") == 1
    harness.record_save(job, 1)
    harness.claim("two")
    tend(harness)
    harness.record_save(job, 2)
    assert [each.job for each in harness.claim("one")] == [job]


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


def test_a_job_that_ends_before_it_is_saved_has_ended(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job)
    harness.record_completion(job, 1)
    tend(harness)
    assert harness.look(relocation.all_relocations) == ()
    assert harness.row(job).outcome == "succeeded"


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


def test_room_that_is_promised_to_one_job_is_not_promised_to_another(harness: QueueHarness) -> None:
    job = two_agents(harness, cpus=1)
    other = harness.job()
    harness.claim_one("one")
    ask(harness, job, to="node-of-two")
    with pytest.raises(Conflict, match="no live agent there"):
        ask(harness, other, to="node-of-two")


def test_a_node_that_cannot_restore_it_is_refused(harness: QueueHarness) -> None:
    job = two_agents(harness, cpu_features=("avx",))
    with pytest.raises(Conflict, match="to node-of-two: it cannot continue there"):
        ask(harness, job, to="node-of-two")


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


def test_a_target_that_refuses_what_was_saved_is_offered_it_no_more(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job, to="node-of-two")
    harness.record_save(job, 1)
    harness.claim("two")
    harness.record_return(job, 2, ReturnReason.INCOMPATIBLE, "CPU")
    assert harness.claim("two") == ()
    assert [each.job for each in harness.claim("one")] == [job]


def test_a_job_kept_off_by_refusals_is_kept_off_by_one_more(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.record_save(job, 1)
    assert harness.do(lanes.keep_off, job, "n2") == ("n2",)
    assert harness.do(lanes.keep_off, job, "n1") == ("n1", "n2")


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


def test_a_move_that_comes_to_nothing_takes_the_job_to_no_node_that_has_refused_it(harness: QueueHarness) -> None:
    job = two_agents(harness)
    harness.record_save(job, 1)
    harness.record_return(job, harness.claim_one("two").attempt, ReturnReason.INCOMPATIBLE, "CPU")
    again = harness.claim_one("one").attempt
    harness.agent("three")
    ask(harness, job, to="node-of-three")
    harness.now_s += PATIENCE_S + 1
    tend(harness)
    harness.record_return(job, again, ReturnReason.NODE_FAULT)
    harness.record_heartbeat("two")
    assert harness.claim("two") == ()


def test_a_move_that_comes_to_nothing_ends_no_pause_after_a_failure(harness: QueueHarness) -> None:
    job = two_agents(harness)
    ask(harness, job, to="node-of-two")
    harness.record_completion(job, 1, exit_code=1)
    until_s = harness.look(lanes.paused_until, job)
    assert until_s is not None
    harness.do(relocation.conclude, patience_s=0.1, now_s=harness.now_s + 1)
    assert harness.look(lanes.paused_until, job) == until_s
    assert harness.claim("two") == ()
