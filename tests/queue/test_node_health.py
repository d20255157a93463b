"""A node is excluded for what it does to jobs that run elsewhere, and never for what jobs do to themselves."""

import pytest
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy import returns
from gleaner.control.policy.retries import LONGEST_ELSEWHERE_S
from gleaner.control.queue import lanes, node_health
from gleaner.control.states import Outcome, State

HOUR_S, DAY_S = 3600.0, 86400.0


def _jobs(harness: QueueHarness, count: int = 10, *, retries: int = 2, group: str = "physics") -> tuple[int, ...]:
    indices = tuple(range(count))
    return harness.submit(indices=indices, retries=retries, cpus=1, memory_mib=512, group=group).jobs


def _nodes(harness: QueueHarness, *nodes: str) -> None:
    for node in nodes:
        harness.agent(node, node=node)


def _fail(harness: QueueHarness, node: str, *, computed_s: float = 0.0) -> int:
    """Let a job be claimed on this node, and fail there."""
    work = harness.claim_one(node)
    harness.now_s += computed_s
    harness.record_completion(work.job, work.attempt, exit_code=1, spent=computed(computed_s))
    return work.job


def _run(harness: QueueHarness, node: str = "good", *, most: int = 64) -> list[int]:
    """Let jobs run well on this node, also those that pause. Return them."""
    harness.now_s += 16
    harness.record_heartbeat(node)
    found = harness.claim(node, most=most)
    for work in found:
        harness.record_completion(work.job, work.attempt)
    return [work.job for work in found]


def _excluded(harness: QueueHarness) -> tuple[str, ...]:
    return harness.look(node_health.excluded_nodes, harness.now_s)


def _failed_and_ran(harness: QueueHarness, groups: str) -> None:
    """Let jobs of these groups fail on one node in a row and then run on another."""
    _nodes(harness, "bad", "good")
    for group in groups:
        _jobs(harness, 1, group=group)
        _fail(harness, "bad")
    _run(harness)


def _until_s(harness: QueueHarness) -> float | None:
    return harness.look(node_health.distrusted_nodes)["bad"].excluded_until_s


@pytest.mark.parametrize(
    ("groups", "is_excluded"), [("aab", True), ("aba", True), ("ab", False), ("aaaa", False), ("aaaaa", True)]
)
def test_three_jobs_of_two_groups_or_five_exclude_a_node_if_they_ran_elsewhere(
    harness: QueueHarness, groups: str, *, is_excluded: bool
) -> None:
    _failed_and_ran(harness, groups)
    assert _excluded(harness) == (("bad",) if is_excluded else ())
    if is_excluded:
        found = harness.look(node_health.distrusted_nodes)["bad"]
        assert found.reason == f"{len(groups)} jobs in a row failed here and ran elsewhere"
        assert found.excluded_until_s == harness.now_s + HOUR_S


def test_jobs_that_fail_everywhere_exclude_no_node(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 20)
    _nodes(harness, "n1", "n2", "n3")
    while any(harness.row(job).state is not State.COMPLETE for job in jobs):
        for node in ("n1", "n2", "n3"):
            harness.record_heartbeat(node)
            for work in harness.claim(node, most=3):
                harness.record_completion(work.job, work.attempt, exit_code=1, spent=computed(0.0))
        harness.now_s += 20
    assert {harness.detail(job).failures for job in jobs} == {3}
    assert harness.look(node_health.distrusted_nodes) == {}


@pytest.mark.parametrize("computed_s", [0.0, returns.QUICK_S])
def test_what_ran_elsewhere_earlier_counts_only_if_it_failed_here_at_once(
    harness: QueueHarness, computed_s: float
) -> None:
    _jobs(harness, 5)
    _nodes(harness, "good", "bad")
    for work in harness.claim("good", most=5):
        harness.record_save(work.job, work.attempt)
    for _ in range(5):
        _fail(harness, "bad", computed_s=computed_s)
        harness.record_heartbeat("bad")
    assert _excluded(harness) == (("bad",) if computed_s == 0 else ())


@pytest.mark.parametrize("why", [ReturnReason.CANNOT_RESTORE, ReturnReason.CHECKPOINT_BROKEN])
@pytest.mark.parametrize("restored_elsewhere", [True, False])
def test_a_refused_restore_counts_if_the_same_checkpoint_is_restored_elsewhere(
    harness: QueueHarness, why: ReturnReason, *, restored_elsewhere: bool
) -> None:
    _jobs(harness, 5)
    _nodes(harness, "good", "bad")
    for work in harness.claim("good", most=5):
        harness.record_save(work.job, work.attempt)
    for work in harness.claim("bad", most=5):
        harness.record_return(work.job, work.attempt, why)
    for work in harness.claim("good", most=5):
        if restored_elsewhere:
            harness.record_checkpoint(work.job, work.attempt)
        else:
            harness.record_return(work.job, work.attempt, ReturnReason.UNSTARTED)
    assert _excluded(harness) == (("bad",) if restored_elsewhere else ())
    assert not any(harness.row(job).held for job in (1, 2, 3, 4, 5))


def test_a_job_that_runs_well_ends_the_row_unless_it_began_before_it(harness: QueueHarness) -> None:
    _jobs(harness, 1)
    _nodes(harness, "bad", "good")
    old = harness.claim_one("bad")
    harness.now_s += 1
    _jobs(harness, 4)
    for _ in range(4):
        _fail(harness, "bad")
    harness.record_completion(old.job, old.attempt)
    _jobs(harness, 1)
    _fail(harness, "bad")
    assert len(_run(harness, most=4)) == 4
    assert _excluded(harness) == ()
    _jobs(harness, 2)
    _run(harness, "bad", most=1)
    _run(harness)
    assert _excluded(harness) == (), "the fifth has run elsewhere, but the row is over"


def test_an_excluded_node_takes_no_job_then_one_and_all_when_that_runs_well(harness: QueueHarness) -> None:
    _failed_and_ran(harness, "aaaaa")
    _jobs(harness, 9)
    assert harness.claim("bad") == ()
    harness.now_s += HOUR_S
    harness.record_heartbeat("bad")
    assert _excluded(harness) == ()
    (canary,) = harness.claim("bad")
    assert harness.claim("bad") == ()
    harness.now_s += returns.CANARY_S
    harness.record_heartbeat("bad", (canary.job, canary.attempt))
    assert len(harness.claim("bad")) == 1, "it still gets one at a time"
    harness.record_completion(canary.job, canary.attempt)
    assert len(harness.claim("bad", cpus=3)) == 3
    assert harness.look(node_health.distrusted_nodes) == {}


def test_each_canary_that_fails_and_runs_elsewhere_doubles_the_time_up_to_a_day(harness: QueueHarness) -> None:
    _failed_and_ran(harness, "aaaaa")
    hours = []
    for _ in range(6):
        harness.now_s = _until_s(harness) or 0.0
        harness.record_heartbeat("bad")
        _jobs(harness, 1)
        _fail(harness, "bad")
        assert harness.claim("bad") == ()
        _run(harness)
        hours.append(((_until_s(harness) or 0.0) - harness.now_s) / HOUR_S)
    assert hours == [2, 4, 8, 16, 24, 24]


def test_the_retries_that_an_excluded_node_has_cost_are_refunded(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 6)
    _nodes(harness, "bad", "good")
    late = harness.claim_one("bad")
    for _ in range(5):
        _fail(harness, "bad")
    assert [harness.detail(job).failures for job in jobs] == [0, 1, 1, 1, 1, 1]
    harness.now_s += 16
    done = harness.claim("good", most=5)
    harness.record_save(done[0].job, done[0].attempt)
    for work in done[1:]:
        harness.record_checkpoint(work.job, work.attempt)
    assert _excluded(harness) == ("bad",)
    assert [harness.detail(job).failures for job in jobs] == [0] * 6
    assert harness.detail(jobs[1]).events[-1].detail == "1 refunded: bad is excluded"
    harness.record_completion(late.job, late.attempt, exit_code=1)
    assert harness.detail(late.job).failures == 0, "it was there when the node was excluded"
    assert harness.detail(late.job).events[-1].detail.endswith("2 retries left, for bad may be to blame")


def test_a_job_without_retries_is_spared_once_while_another_node_may_try_it(harness: QueueHarness) -> None:
    (job,) = _jobs(harness, 1, retries=0)
    _nodes(harness, "only", "gone")
    harness.record_deregistration("gone")
    assert _fail(harness, "only") == job
    for wait_s in (100, LONGEST_ELSEWHERE_S):
        assert harness.claim("only") == ()
        harness.now_s += wait_s
        harness.record_heartbeat("only")
    assert _fail(harness, "only") == job
    assert (harness.row(job).outcome, harness.detail(job).failures) == (Outcome.FAILED, 1)


@pytest.mark.parametrize(("nodes", "computed_s"), [(("n1",), 0.0), (("n1", "n2"), returns.QUICK_S)])
def test_where_no_other_node_is_known_or_it_computed_before_it_is_not_spared(
    harness: QueueHarness, nodes: tuple[str, ...], computed_s: float
) -> None:
    (job,) = _jobs(harness, 1, retries=0)
    _nodes(harness, *nodes)
    _fail(harness, "n1", computed_s=computed_s)
    assert harness.row(job).outcome is Outcome.FAILED


def test_a_quick_failure_does_not_cost_a_job_what_it_has_saved_until_another_node_was_asked(
    harness: QueueHarness,
) -> None:
    (job,) = _jobs(harness, 1)
    _nodes(harness, "n1", "bad")
    harness.record_save(job, harness.claim_one("n1").attempt)
    assert _fail(harness, "bad") == job
    assert (harness.row(job).state, harness.detail(job).failures) == (State.SAVED, 1)
    assert harness.detail(job).events[-1].detail == "exit code 1; goes on from checkpoint 1/1, 1 retries left"
    harness.now_s += 20
    assert harness.claim("bad") == ()
    assert harness.claim_one("n1").checkpoint is not None
    harness.record_completion(job, 3, exit_code=1, spent=computed(0.0))
    assert (harness.row(job).state, harness.detail(job).failures) == (State.NEW, 2)


def test_an_admin_can_have_a_node_used_again_at_once(harness: QueueHarness) -> None:
    _failed_and_ran(harness, "aaaaa")
    assert harness.do(node_health.forget, "bad")
    assert not harness.do(node_health.forget, "bad")
    _jobs(harness, 3)
    assert len(harness.claim("bad", cpus=3)) == 3


def test_agents_that_fail_exclude_their_node_for_longer_each_time_until_a_job_runs_well(harness: QueueHarness) -> None:
    _nodes(harness, "bad")
    for hours in (0, 0, 1, 2):
        harness.do(node_health.record_fault, "bad", now_s=harness.now_s, faults_until_excluded=3)
        until_s = _until_s(harness)
        assert until_s == (harness.now_s + hours * HOUR_S if hours else None)
        harness.now_s = until_s or harness.now_s
    found = harness.look(node_health.distrusted_nodes)["bad"]
    assert (found.faults, found.reason) == (4, "agents failed here 4 times in a row")
    harness.do(node_health.record_sound_agent, "bad")
    assert harness.look(node_health.distrusted_nodes)["bad"].faults == 0
    _jobs(harness, 1)
    _run(harness, "bad")
    assert harness.look(node_health.distrusted_nodes) == {}


def test_a_job_that_pauses_holds_up_nobody_else_and_is_tried_again(harness: QueueHarness) -> None:
    first, second = _jobs(harness, 2, retries=20)
    harness.agent("only", node="only")
    assert _fail(harness, "only") == first
    until_s = harness.look(lanes.paused_until, first)
    assert until_s is not None
    assert until_s - harness.now_s == 10
    assert [each.job for each in harness.claim("only")] == [second]
    harness.now_s = until_s - 0.1
    assert harness.claim("only") == ()
    harness.now_s += 0.2
    assert _fail(harness, "only") == first


def test_a_job_that_was_cancelled_or_held_in_its_pause_stays_so(harness: QueueHarness) -> None:
    cancelled, held = _jobs(harness, 2)
    harness.agent("only", node="only")
    for _ in range(2):
        _fail(harness, "only")
    harness.cancel(cancelled)
    harness.hold(held)
    harness.now_s += 1000
    assert harness.claim("only") == ()
    assert (harness.row(cancelled).state, harness.row(held).state) == (State.COMPLETE, State.NEW)
    harness.release(held)
    assert harness.claim_one("only").job == held
