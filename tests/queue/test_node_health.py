"""One bad node cannot consume a queue, and one bad campaign makes no node bad."""

from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import func, select
from tests.effort import examples
from tests.queue.agents_harness import AT_ONCE, CORES, WELL, Floor
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.agent.messages import ReturnReason
from gleaner.control.models.jobs import Ending
from gleaner.control.policy import node_health as policy
from gleaner.control.policy.node_health import Blame
from gleaner.control.queue import lanes, node_health, queries
from gleaner.control.queue.database import connect, migrate
from gleaner.control.queue.tables import ATTEMPT, FAILURE, JOB, NODE
from gleaner.control.states import Outcome, State

MANY = examples(150)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=[pytest.mark.postgres, pytest.mark.extended])])
def long_harness(request: pytest.FixtureRequest) -> Iterator[QueueHarness]:
    """Return an empty queue, for tests of what is decided in hundreds of claims, whatever the database."""
    engine = connect(request.getfixturevalue(f"{request.param}_url"))
    yield QueueHarness(engine)
    engine.dispose()


def _jobs(harness: QueueHarness, count: int = MANY, *, retries: int = 2) -> tuple[int, ...]:
    return harness.submit(indices=tuple(range(count)), retries=retries, cpus=1, memory_mib=512).jobs


def _fail(harness: QueueHarness, node: str, *, computed_s: float = 0.0) -> int:
    """Let a job be claimed on this node, and fail there."""
    work = harness.claim_one(node)
    harness.now_s += computed_s
    harness.record_completion(work.job, work.attempt, exit_code=1, spent=computed(computed_s))
    return work.job


@pytest.mark.slow
@pytest.mark.parametrize("takes_s", [5.0, 20.0])
def test_one_bad_node_cannot_eat_a_queue(long_harness: QueueHarness, takes_s: float) -> None:
    jobs = _jobs(long_harness)
    floor = Floor(long_harness, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (takes_s, 0))
    ends = floor.work_off(jobs, within_s=3 * MANY / CORES * takes_s + 3600)
    assert ends == {Outcome.SUCCEEDED: MANY}
    assert floor.ever_excluded == {"bad"}
    assert floor.failures_until_excluded["bad"] <= 10
    assert floor.quick["bad"] < 60
    counted = select(func.count()).where(JOB.c.failures > 0)
    with long_harness.engine.connect() as connection:
        at_most = policy.MARGIN_UNTIL_EXCLUDED  # they had succeeded elsewhere before the node was found bad
        assert connection.execute(counted).scalar_one() <= at_most


@pytest.mark.slow
def test_a_bad_node_is_found_out_also_while_the_good_one_has_no_room(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness, 40)
    floor = Floor(
        long_harness, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else WELL, busy={"good": 1500.0}
    )
    while long_harness.now_s < floor.began_s + 600:
        floor.step()
    assert (floor.avoided(), floor.quick["bad"]) == (("bad",), 10)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.SUCCEEDED: 40}


@pytest.mark.slow
def test_jobs_that_fail_everywhere_make_no_node_bad(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness)
    floor = Floor(long_harness, ("n1", "n2", "n3"), lambda node, job: AT_ONCE)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.FAILED: MANY}
    assert floor.ever_excluded == set()
    assert {long_harness.detail(job).failures for job in jobs[::10]} == {3}
    with long_harness.engine.connect() as connection:
        tries = connection.execute(select(func.count()).select_from(ATTEMPT)).scalar_one()
    assert tries <= MANY * 3 + 30


@pytest.mark.slow
def test_on_one_node_alone_failures_are_the_jobs_own(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness, 20)
    floor = Floor(long_harness, ("only",), lambda node, job: AT_ONCE)
    assert floor.work_off(jobs, within_s=3600) == {Outcome.FAILED: 20}
    assert (floor.ever_excluded, floor.quick["only"]) == (set(), 60)


def test_a_bad_job_among_good_ones_fails_alone(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 40)
    floor = Floor(harness, ("n1", "n2"), lambda node, job: AT_ONCE if job == jobs[7] else WELL)
    assert floor.work_off(jobs, within_s=3600) == {Outcome.SUCCEEDED: 39, Outcome.FAILED: 1}
    assert (harness.row(jobs[7]).outcome, harness.detail(jobs[7]).failures) == (Outcome.FAILED, 3)
    assert floor.ever_excluded == set()
    assert len({attempt.node for attempt in harness.detail(jobs[7]).attempts}) == 2


@pytest.mark.slow
def test_the_bad_jobs_of_a_campaign_that_one_node_took_alone_do_not_make_it_bad(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness, 60)
    floor = Floor(long_harness, ("n1", "n2"), lambda node, job: AT_ONCE if job in jobs[:CORES] else WELL)
    ends = floor.work_off(jobs, within_s=7200)
    assert ends == {Outcome.SUCCEEDED: 60 - CORES, Outcome.FAILED: CORES}
    assert floor.ever_excluded == set()


@pytest.mark.slow
def test_a_node_on_which_jobs_fail_late_is_not_judged(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness, 24)
    floor = Floor(long_harness, ("slow", "good"), lambda node, job: (600.0, 1) if node == "slow" else WELL)
    assert floor.work_off(jobs, within_s=4 * 3600) == {Outcome.SUCCEEDED: 24}
    assert (floor.ever_excluded, floor.suspect()) == (set(), [])


@pytest.mark.slow
def test_two_bad_nodes_of_three_are_found_out(long_harness: QueueHarness) -> None:
    jobs = _jobs(long_harness, 100)
    floor = Floor(long_harness, ("bad1", "bad2", "good"), lambda node, job: WELL if node == "good" else AT_ONCE)
    ends = floor.work_off(jobs, within_s=4 * 3600)
    assert ends == {Outcome.SUCCEEDED: 100}
    assert floor.ever_excluded == {"bad1", "bad2"}
    assert max(floor.failures_until_excluded.values()) <= 16


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_no_job_ends_for_good_by_one_nodes_word(long_harness: QueueHarness, retries: int) -> None:
    jobs = _jobs(long_harness, 30, retries=retries)
    floor = Floor(long_harness, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else WELL)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.SUCCEEDED: 30}


def test_a_bad_node_that_is_there_first_in_a_round_ends_no_job_for_good(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 10, retries=0)
    harness.agent("yesterday", node="good")
    harness.record_deregistration("yesterday")
    harness.agent("bad", node="bad")
    for _ in jobs:
        _fail(harness, "bad")
    harness.now_s += 20
    harness.agent("good", node="good")
    assert {each.job for each in harness.claim("good")} == set(jobs)


@pytest.mark.slow
def test_a_job_without_retries_that_waits_in_vain_for_another_node_ends_all_the_same(
    long_harness: QueueHarness,
) -> None:
    (job,) = _jobs(long_harness, 1, retries=0)
    long_harness.agent("gone", node="gone")
    long_harness.record_deregistration("gone")
    long_harness.agent("only", node="only")
    for _ in range(policy.FORGIVEN_UNSEEN_AT_MOST):
        assert _fail(long_harness, "only") == job
        assert long_harness.claim("only") == ()
        for wait_s in (100, policy.LONGEST_ELSEWHERE_S):
            long_harness.now_s += wait_s
            long_harness.record_heartbeat("only")
            if wait_s == 100:
                assert long_harness.claim("only") == ()
    assert _fail(long_harness, "only") == job
    assert long_harness.row(job).outcome is Outcome.FAILED


def test_a_job_without_retries_that_fails_on_two_good_nodes_has_failed(harness: QueueHarness) -> None:
    (job,) = _jobs(harness, 1, retries=0)
    floor = Floor(harness, ("n1", "n2", "n3"), lambda node, job: AT_ONCE)
    assert floor.work_off((job,), within_s=3600) == {Outcome.FAILED: 1}
    detail = harness.detail(job)
    assert (detail.failures, [attempt.ending for attempt in detail.attempts]) == (1, ["failed"] * 2)
    assert len({attempt.node for attempt in detail.attempts}) == 2


def test_a_late_failure_of_a_job_without_retries_is_its_end(harness: QueueHarness) -> None:
    (job,) = _jobs(harness, 1, retries=0)
    harness.agent("n1", node="n1")
    harness.agent("n2", node="n2")
    _fail(harness, "n1", computed_s=policy.QUICK_S)
    assert harness.row(job).outcome is Outcome.FAILED


def _saved_on_n1(harness: QueueHarness) -> int:
    """Return a job that was saved on n1; there is an agent on the node `bad`, too."""
    (job,) = _jobs(harness, 1)
    for node in ("n1", "bad"):
        harness.agent(node, node=node)
    harness.record_save(job, harness.claim_one("n1").attempt)
    return job


def test_a_quick_failure_does_not_cost_a_job_what_it_has_saved_until_another_node_was_asked(
    harness: QueueHarness,
) -> None:
    job = _saved_on_n1(harness)
    assert _fail(harness, "bad") == job
    assert (harness.row(job).state, harness.detail(job).failures) == (State.SAVED, 0)
    assert harness.detail(job).events[-1].detail == (
        "exit code 1; goes on from checkpoint 1/1, 2 retries left, for bad may be to blame"
    )
    harness.now_s += 20
    assert harness.claim("bad") == ()
    assert harness.claim_one("n1").checkpoint is not None
    harness.record_completion(job, 3, exit_code=1, spent=computed(0.0))
    assert (harness.row(job).state, harness.detail(job).failures) == (State.NEW, 2)


FAULTS: dict[str, Any] = {"faults_until_excluded": 3, "excluded_s": 7200.0}


def test_a_good_job_ends_the_row_of_failed_jobs_but_no_exclusion_for_faults(harness: QueueHarness) -> None:
    _jobs(harness, 2)
    harness.agent("n1", node="n1")
    _fail(harness, "n1")
    for _ in range(3):
        harness.do(node_health.record_fault, "n1", now_s=harness.now_s, **FAULTS)
    work = harness.claim_one("n1")
    harness.record_completion(work.job, work.attempt)
    with harness.engine.connect() as connection:
        assert connection.execute(select(NODE.c.failed_jobs, NODE.c.faults)).all() == [(0, 3)]
    assert harness.look(node_health.excluded, harness.now_s + 7199) == ("n1",)


def test_a_sound_agent_ends_the_row_of_faults_but_no_exclusion_for_failed_jobs(harness: QueueHarness) -> None:
    _jobs(harness, 3)
    for node in ("bad", "good"):
        harness.agent(node, node=node)
    for _ in range(3):
        _fail(harness, "bad")
    harness.now_s += 16
    for work in harness.claim("good", most=3):
        harness.record_completion(work.job, work.attempt)
    harness.do(node_health.record_fault, "bad", now_s=harness.now_s, **FAULTS)
    harness.do(node_health.record_sound_agent, "bad")
    found = harness.look(node_health.unhealthy, harness.now_s)["bad"]
    assert (found.faults, found.excluded_until_s) == (0, harness.now_s + policy.FIRST_EXCLUSION_S)


def test_failures_of_before_a_node_was_found_bad_are_refunded(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 4)
    for node in ("bad", "good"):
        harness.agent(node, node=node)
    assert [_fail(harness, "bad") for _ in range(3)] == list(jobs[:3])
    assert [harness.detail(job).failures for job in jobs] == [1, 1, 1, 0]
    harness.now_s += 16
    done = harness.claim("good", most=3)
    for work in done[:2]:
        harness.record_completion(work.job, work.attempt)
    assert harness.look(node_health.excluded, harness.now_s) == ()
    harness.record_save(done[2].job, done[2].attempt)
    assert harness.look(node_health.excluded, harness.now_s) == ("bad",)
    assert harness.detail(done[2].job).failures == 0
    assert "retries refunded" in harness.events(done[2].job)
    with harness.engine.connect() as connection:
        blamed = connection.execute(select(FAILURE.c.blame).where(FAILURE.c.job == done[2].job)).scalars().all()
    assert blamed == [Blame.NODE]
    found = harness.look(node_health.unhealthy, harness.now_s)["bad"]
    assert found.excluded_until_s == harness.now_s + policy.FIRST_EXCLUSION_S
    assert found.reason == "3 different jobs in a row failed within 30 s of their start, and run elsewhere"


@pytest.mark.slow
def test_a_bad_node_is_probed_with_one_job_and_a_success_clears_it(long_harness: QueueHarness) -> None:
    _jobs(long_harness, 40)
    floor = Floor(long_harness, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (5.0, 0))
    while not floor.avoided():
        floor.step()
    assert long_harness.claim("bad") == ()
    long_harness.now_s += policy.FIRST_EXCLUSION_S + 1
    assert floor.avoided() == ()
    _jobs(long_harness, 10)
    (probe,) = long_harness.claim("bad")
    assert long_harness.claim("bad") == ()
    long_harness.record_completion(probe.job, probe.attempt)
    assert len(long_harness.claim("bad")) > 1
    assert long_harness.look(node_health.unhealthy, long_harness.now_s) == {}


@pytest.mark.slow
def test_a_probe_that_fails_leaves_the_node_alone_for_longer(long_harness: QueueHarness) -> None:
    _jobs(long_harness, 40)
    floor = Floor(long_harness, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (5.0, 0))
    while not floor.avoided():
        floor.step()
    before = floor.quick["bad"]
    long_harness.now_s += policy.FIRST_EXCLUSION_S + 1
    _jobs(long_harness, 10)
    while not floor.avoided():
        floor.step()
    assert floor.quick["bad"] == before + 1
    until_s = long_harness.look(node_health.unhealthy, long_harness.now_s)["bad"].excluded_until_s
    assert until_s == long_harness.now_s - floor.every_s + 2 * policy.FIRST_EXCLUSION_S


def test_a_job_that_runs_on_steadily_clears_a_suspect_node(harness: QueueHarness) -> None:
    jobs = _jobs(harness, 60)
    floor = Floor(harness, ("n1", "n2"), lambda node, job: AT_ONCE if job in jobs[: CORES - 1] else (1e6, 0))
    floor.step()
    assert floor.suspect() == ["n1"]
    floor.running["n1"] = []  # its cores are free, for all that control knows
    assert harness.claim("n1") == ()
    harness.now_s += policy.STEADY_S
    assert len(harness.claim("n1", cpus=3)) == 3
    assert floor.suspect() == []


def test_a_job_that_began_before_the_failures_clears_nothing(harness: QueueHarness) -> None:
    _jobs(harness, 20)
    for node in ("bad", "good"):
        harness.agent(node, node=node)
    old = harness.claim_one("bad")
    harness.now_s += 1000
    for _ in range(5):
        _fail(harness, "bad")
    harness.record_completion(old.job, old.attempt)
    assert harness.claim("bad") == ()


def test_an_admin_can_have_a_node_used_again_at_once(harness: QueueHarness) -> None:
    _jobs(harness, 20)
    for node in ("bad", "good"):
        harness.agent(node, node=node)
    for _ in range(5):
        _fail(harness, "bad")
    assert harness.claim("bad") == ()
    assert harness.do(node_health.forget, "bad")
    assert not harness.do(node_health.forget, "bad")
    assert len(harness.claim("bad", cpus=3)) == 3


def test_a_pause_holds_up_nobody_else_and_grows_and_has_a_bound(harness: QueueHarness) -> None:
    first, second = _jobs(harness, 2, retries=20)
    harness.agent("only", node="only")
    assert _fail(harness, "only") == first
    until_s = harness.look(lanes.paused_until, first)
    assert until_s is not None
    assert until_s - harness.now_s == 10
    assert [each.job for each in harness.claim("only")] == [second]
    paused: list[float] = []
    for _ in range(10):
        until_s = harness.look(lanes.paused_until, first)
        assert until_s is not None
        paused.append(until_s - harness.now_s)
        harness.now_s = until_s - 0.1
        assert harness.claim("only") == ()
        harness.now_s += 0.2
        assert _fail(harness, "only") == first
    assert [round(pause_s) for pause_s in paused] == [10, 20, 40, 80, 160, 320, 600, 600, 600, 600]


def test_a_job_that_only_one_node_can_take_waits_a_bounded_time_for_another(harness: QueueHarness) -> None:
    (job,) = _jobs(harness, 1)
    harness.agent("n1", node="n1")
    harness.agent("gone", node="gone")
    harness.record_deregistration("gone")
    _fail(harness, "n1")
    harness.now_s += 16
    assert harness.claim("n1") == ()
    harness.now_s += policy.LONGEST_ELSEWHERE_S
    assert harness.claim_one("n1").job == job


def _lose_all_agents_and_wait(harness: QueueHarness, back: str) -> None:
    """Lose all agents; much later one of them is heard again."""
    harness.silence()
    harness.now_s += policy.LONGEST_ELSEWHERE_S
    harness.record_heartbeat(back)


def test_a_job_kept_off_a_node_for_a_while_may_go_there_again_though_its_next_agent_was_lost(
    harness: QueueHarness,
) -> None:
    job = _saved_on_n1(harness)
    assert _fail(harness, "bad") == job
    harness.now_s += 20
    assert harness.claim("bad") == ()
    assert harness.claim_one("n1").job == job
    _lose_all_agents_and_wait(harness, "bad")
    assert harness.claim_one("bad").job == job


def test_a_node_that_called_a_checkpoint_broken_gets_it_again_though_the_next_agent_was_lost(
    harness: QueueHarness,
) -> None:
    job = _saved_on_n1(harness)
    harness.record_return(job, harness.claim_one("bad").attempt, ReturnReason.CHECKPOINT_BROKEN)
    assert harness.claim("bad") == ()
    assert harness.claim_one("n1").job == job
    _lose_all_agents_and_wait(harness, "bad")
    assert harness.claim_one("bad").job == job


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


def test_jobs_that_pause_are_no_work_for_the_planner(harness: QueueHarness) -> None:
    _jobs(harness, 1)
    harness.agent("only", node="only")
    _fail(harness, "only")
    assert harness.look(queries.waiting) == ()
    harness.now_s += 16
    harness.claim("only", cpus=0 + 1, memory_mib=1)
    assert [each.count for each in harness.look(queries.waiting)] == [1]


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))  # pyright: ignore[reportArgumentType]
@given(
    bad=st.lists(st.booleans(), min_size=1, max_size=4),
    broken=st.lists(st.sampled_from([False, False, True]), min_size=1, max_size=30),
    retries=st.integers(0, 3),
    takes_s=st.sampled_from([5.0, 100.0, 700.0]),
)
def test_whatever_is_bad_every_job_ends_and_pays_for_its_own_failures_only(
    tmp_path_factory: pytest.TempPathFactory, bad: list[bool], broken: list[bool], retries: int, takes_s: float
) -> None:
    engine = connect(f"sqlite:///{tmp_path_factory.mktemp('queue') / 'queue.db'}")
    migrate(engine)
    harness = QueueHarness(engine)
    jobs = _jobs(harness, len(broken), retries=retries)
    names = tuple(f"bad{number}" if is_bad else f"good{number}" for number, is_bad in enumerate(bad))
    is_broken = dict(zip(jobs, broken, strict=True))
    floor = Floor(harness, names, lambda node, job: AT_ONCE if "bad" in node or is_broken[job] else (takes_s, 0), 30.0)
    floor.work_off(jobs, within_s=48 * 3600)
    for job in jobs:
        detail = harness.detail(job)
        endings = [attempt.ending for attempt in detail.attempts]
        assert endings.count(Ending.SUCCEEDED) <= 1
        assert detail.failures <= min(endings.count(Ending.FAILED), retries + 1)
        assert len(endings) <= retries + 2 + policy.FORGIVEN_AT_MOST
        assert (detail.job.outcome is Outcome.SUCCEEDED) == ("succeeded" in endings)
        if is_broken[job]:
            assert detail.job.outcome is Outcome.FAILED
