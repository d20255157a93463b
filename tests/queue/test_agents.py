"""Agents: their leases, orders and ends, and the nodes that are avoided because of them."""

from typing import Any

import pytest
from tests.queue.queue_harness import LEASE_S, QueueHarness

from gleaner.agent.messages import Order
from gleaner.control.models.jobs import NOT_SAVED
from gleaner.control.queue import agents, node_health, queries, tokens
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.states import Outcome, State


def test_orders_follow_what_people_want(harness: QueueHarness) -> None:
    held, cancelled, plain = harness.submit(indices=(1, 2, 3)).jobs
    harness.claim(harness.agent("a"))
    harness.hold(held)
    harness.cancel(cancelled)
    named = [(job, 1) for job in (held, cancelled, plain, 99)]
    assert harness.record_heartbeat("a", *named).orders == (Order.VACATE, Order.DROP, Order.GO_ON, Order.DROP)
    harness.do(agents.vacate, "a")
    told = harness.record_heartbeat("a", *named)
    assert (told.vacate, told.orders) == (True, (Order.VACATE, Order.DROP, Order.VACATE, Order.DROP))
    harness.job()
    assert harness.claim("a") == ()


def test_a_failed_save_is_said_once_while_the_job_goes_on_and_no_more_after_one_that_works(
    harness: QueueHarness,
) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    for reason in ("save failed: a fault", "cannot be saved: a queue", "cannot be saved: a queue"):
        harness.record_heartbeat("a", (job, 1), unsaved=reason)
    told = [event.detail for event in harness.detail(job).events if event.what == NOT_SAVED]
    assert told == ["save failed: a fault", "cannot be saved: a queue"]
    assert harness.detail(job).not_saved_because == "cannot be saved: a queue"
    harness.record_checkpoint(job, 1)
    assert harness.detail(job).not_saved_because is None
    harness.record_heartbeat("a", (job, 1), unsaved="cannot be saved: a queue")
    assert harness.detail(job).not_saved_because == "cannot be saved: a queue"


def test_a_farewell_returns_what_is_left_and_tells_the_shared_end_once(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    assert harness.record_deregistration("a", reason="its end came") == 9e9
    assert harness.record_deregistration("a") is None
    assert (harness.row(job).state, harness.endings(job)) == (State.NEW, ["returned"])
    (row,) = harness.look(queries.agent_rows, now_s=harness.now_s)
    assert (row.phase, row.reason, row.ended_s, row.jobs) == ("ended", "its end came", harness.now_s, ())
    for act in (lambda: harness.claim("a"), lambda: harness.record_heartbeat("a"), lambda: harness.register("a")):
        with pytest.raises(Conflict, match="agent a may not"):
            act()


def test_after_a_restart_of_control_every_live_agent_has_a_full_lease(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    harness.now_s += 100 * LEASE_S  # control was down, and so nobody could be heard
    harness.do(agents.renew_leases, now_s=harness.now_s, lease_s=LEASE_S)
    assert harness.expire() == []
    harness.now_s += LEASE_S - 1
    assert harness.expire() == []
    harness.now_s += 2
    assert harness.expire() == ["a"]
    assert harness.row(job).state is State.NEW


def test_an_agent_that_never_started_is_closed_and_its_token_is_worth_nothing(harness: QueueHarness) -> None:
    harness.do(agents.expect, name="a", end_s=5.0, token_hash=tokens.digest("secret"), now_s=1.0)
    harness.do(agents.record_submission, "a", "4711")
    known = harness.look(tokens.identify, "secret")
    assert known is not None
    assert (known.role, known.name, known.group) == ("agent", "a", None)
    assert harness.do(agents.forget_unstarted, "a", now_s=2.0, reason="withdrawn")
    assert harness.look(tokens.identify, "secret") is None
    with pytest.raises(Conflict, match=r"agent a may not register: it has ended \(withdrawn\)"):
        harness.register("a")
    harness.agent("b")
    assert not harness.do(agents.forget_unstarted, "b", now_s=2.0, reason="withdrawn")
    assert harness.look(queries.agent_phases, now_s=harness.now_s) == {"submitted": 0, "live": 1, "silent": 0}


def test_a_silent_agent_that_slurm_calls_gone_is_closed_but_may_still_report(harness: QueueHarness) -> None:
    job = harness.job()
    harness.claim(harness.agent("a"))
    close: dict[str, Any] = {"losses_until_held": 3}
    assert not harness.do(agents.close_silent, "a", now_s=harness.now_s, **close)  # unreachable is not dead
    harness.silence()
    assert harness.do(agents.close_silent, "a", now_s=harness.now_s, **close)
    harness.record_completion(job, 1)
    assert harness.row(job).outcome is Outcome.SUCCEEDED
    assert harness.look(tokens.identify, "a") is not None


def test_registering_twice_is_no_error_and_an_unknown_agent_is(harness: QueueHarness) -> None:
    harness.agent("a")
    harness.register("a")
    with pytest.raises(NotFound, match="there is no agent b"):
        harness.register("b")
    with pytest.raises(NotFound, match="there is no agent b"):
        harness.claim("b")
    with pytest.raises(NotFound, match="there is no agent b"):
        harness.record_heartbeat("b")


def test_an_agent_that_has_not_registered_may_neither_claim_nor_beat(harness: QueueHarness) -> None:
    harness.do(agents.expect, name="a", end_s=5.0, token_hash="x", now_s=1.0)
    with pytest.raises(Conflict, match="agent a may not claim: it is submitted"):
        harness.claim("a")
    with pytest.raises(Conflict, match="agent a may not beat: it is submitted"):
        harness.record_heartbeat("a")


def test_a_farewell_for_a_fault_counts_against_the_node(harness: QueueHarness) -> None:
    for name in ("a", "b", "c"):
        harness.agent(name, node="bad")
        harness.record_deregistration(name, fault=True, reason="no Docker here")
    assert harness.look(node_health.excluded_nodes, harness.now_s) == ("bad",)


@pytest.mark.parametrize("has_run", [False, True])
def test_only_an_agent_that_ran_a_job_clears_the_faults_of_its_node(harness: QueueHarness, *, has_run: bool) -> None:
    for name in ("a", "b"):
        harness.agent(name, node="bad")
        harness.record_deregistration(name, fault=True)
    harness.agent("c", node="bad")
    if has_run:
        job = harness.job()
        harness.claim_one("c")
        harness.now_s += 40
        harness.record_completion(job, 1, exit_code=3)
    harness.record_deregistration("c")
    faults = [node.faults for node in harness.look(node_health.distrusted_nodes).values()]
    assert faults == ([] if has_run else [2])
