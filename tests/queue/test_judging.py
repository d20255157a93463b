"""One bad node cannot eat a queue, and one bad campaign makes no node bad."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine, func, select
from tests.queue.floor import AT_ONCE, CORES, WELL, Floor
from tests.queue.scene import Scene

from gleaner.agent.protocol import Completed, Slice, Why
from gleaner.control.life import Outcome, State
from gleaner.control.policy import judging as policy
from gleaner.control.queue import agents, moves, pauses, reads
from gleaner.control.queue.engine import connect, migrate
from gleaner.control.queue.judging_tables import FAILURE, Blame
from gleaner.control.queue.tables import ATTEMPT, JOB

MANY = 300


def _jobs(scene: Scene, count: int = MANY, *, retries: int = 2) -> tuple[int, ...]:
    return scene.submit(indices=tuple(range(count)), retries=retries, cpus=1, memory_mib=512).jobs


def _fail(scene: Scene, node: str, *, computed_s: float = 0.0) -> int:
    """One job that is claimed on this node, and fails there."""
    work = scene.claim_one(node)
    scene.now_s += computed_s
    report = Completed(exit_code=1, slice=Slice(started_s=1.0, compute_s=computed_s))
    scene.do(moves.completed, work.job, work.attempt, report, now_s=scene.now_s)
    return work.job


@pytest.mark.slow
@pytest.mark.parametrize("takes_s", [5.0, 20.0])
def test_one_bad_node_cannot_eat_a_queue(scene: Scene, takes_s: float) -> None:
    jobs = _jobs(scene)
    floor = Floor(scene, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (takes_s, 0))
    ends = floor.work_off(jobs, within_s=3 * MANY / CORES * takes_s + 3600)
    assert ends == {Outcome.SUCCEEDED: MANY}
    assert floor.ever_avoided == {"bad"}
    assert floor.failures_until_avoided["bad"] <= 10
    assert floor.quick["bad"] < 60
    counted = select(func.count()).where(JOB.c.failures > 0)
    with scene.engine.connect() as connection:
        at_most = policy.MARGIN_UNTIL_BAD  # they had succeeded elsewhere before the node was found bad
        assert connection.execute(counted).scalar_one() <= at_most


@pytest.mark.slow
def test_a_bad_node_is_found_out_also_while_the_good_one_has_no_room(scene: Scene) -> None:
    jobs = _jobs(scene, 40)
    floor = Floor(scene, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else WELL, busy={"good": 1500.0})
    while scene.now_s < floor.began_s + 600:
        floor.step()
    assert (floor.avoided(), floor.quick["bad"]) == (("bad",), 10)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.SUCCEEDED: 40}


@pytest.mark.slow
def test_jobs_that_fail_everywhere_make_no_node_bad(scene: Scene) -> None:
    jobs = _jobs(scene)
    floor = Floor(scene, ("n1", "n2", "n3"), lambda node, job: AT_ONCE)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.FAILED: MANY}
    assert floor.ever_avoided == set()
    assert {scene.detail(job).failures for job in jobs[::10]} == {3}
    with scene.engine.connect() as connection:
        tries = connection.execute(select(func.count()).select_from(ATTEMPT)).scalar_one()
    assert tries <= MANY * 3 + 30


@pytest.mark.slow
def test_on_one_node_alone_failures_are_the_jobs_own(scene: Scene) -> None:
    jobs = _jobs(scene, 20)
    floor = Floor(scene, ("only",), lambda node, job: AT_ONCE)
    assert floor.work_off(jobs, within_s=3600) == {Outcome.FAILED: 20}
    assert (floor.ever_avoided, floor.quick["only"]) == (set(), 60)


def test_a_bad_job_among_good_ones_fails_alone(scene: Scene) -> None:
    jobs = _jobs(scene, 40)
    floor = Floor(scene, ("n1", "n2"), lambda node, job: AT_ONCE if job == jobs[7] else WELL)
    assert floor.work_off(jobs, within_s=3600) == {Outcome.SUCCEEDED: 39, Outcome.FAILED: 1}
    assert (scene.row(jobs[7]).outcome, scene.detail(jobs[7]).failures) == (Outcome.FAILED, 3)
    assert floor.ever_avoided == set()
    assert len({attempt.node for attempt in scene.detail(jobs[7]).attempts}) == 2


@pytest.mark.slow
def test_the_bad_jobs_of_a_campaign_that_one_node_took_alone_do_not_make_it_bad(scene: Scene) -> None:
    jobs = _jobs(scene, 60)
    floor = Floor(scene, ("n1", "n2"), lambda node, job: AT_ONCE if job in jobs[:CORES] else WELL)
    ends = floor.work_off(jobs, within_s=7200)
    assert ends == {Outcome.SUCCEEDED: 60 - CORES, Outcome.FAILED: CORES}
    assert floor.ever_avoided == set()


@pytest.mark.slow
def test_a_node_on_which_jobs_fail_late_is_not_judged(scene: Scene) -> None:
    jobs = _jobs(scene, 24)
    floor = Floor(scene, ("slow", "good"), lambda node, job: (600.0, 1) if node == "slow" else WELL)
    assert floor.work_off(jobs, within_s=4 * 3600) == {Outcome.SUCCEEDED: 24}
    assert (floor.ever_avoided, floor.doubted()) == (set(), [])


@pytest.mark.slow
def test_two_bad_nodes_of_three_are_found_out(scene: Scene) -> None:
    jobs = _jobs(scene, 100)
    floor = Floor(scene, ("bad1", "bad2", "good"), lambda node, job: WELL if node == "good" else AT_ONCE)
    ends = floor.work_off(jobs, within_s=4 * 3600)
    assert ends == {Outcome.SUCCEEDED: 100}
    assert floor.ever_avoided == {"bad1", "bad2"}
    assert max(floor.failures_until_avoided.values()) <= 16


@pytest.mark.slow
@pytest.mark.parametrize("retries", [0, 1])
def test_no_job_ends_for_good_by_one_nodes_word(scene: Scene, retries: int) -> None:
    jobs = _jobs(scene, 30, retries=retries)
    floor = Floor(scene, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else WELL)
    assert floor.work_off(jobs, within_s=7200) == {Outcome.SUCCEEDED: 30}


def test_a_bad_node_that_is_there_first_in_a_round_ends_no_job_for_good(scene: Scene) -> None:
    jobs = _jobs(scene, 10, retries=0)
    scene.agent("yesterday", node="good")
    scene.farewell("yesterday")
    scene.agent("bad", node="bad")
    for _ in jobs:
        _fail(scene, "bad")
    scene.now_s += 20
    scene.agent("good", node="good")
    assert {each.job for each in scene.claim("good")} == set(jobs)


@pytest.mark.slow
def test_a_job_without_retries_that_waits_in_vain_for_another_node_ends_all_the_same(scene: Scene) -> None:
    (job,) = _jobs(scene, 1, retries=0)
    scene.agent("gone", node="gone")
    scene.farewell("gone")
    scene.agent("only", node="only")
    for _ in range(policy.FORGIVEN_UNSEEN_AT_MOST):
        assert _fail(scene, "only") == job
        assert scene.claim("only") == ()
        for wait_s in (100, policy.LONGEST_ELSEWHERE_S):
            scene.now_s += wait_s
            scene.beat("only")
            if wait_s == 100:
                assert scene.claim("only") == ()
    assert _fail(scene, "only") == job
    assert scene.row(job).outcome is Outcome.FAILED


def test_a_job_without_retries_that_fails_on_two_good_nodes_has_failed(scene: Scene) -> None:
    (job,) = _jobs(scene, 1, retries=0)
    floor = Floor(scene, ("n1", "n2", "n3"), lambda node, job: AT_ONCE)
    assert floor.work_off((job,), within_s=3600) == {Outcome.FAILED: 1}
    detail = scene.detail(job)
    assert (detail.failures, [attempt.ending for attempt in detail.attempts]) == (1, ["failed"] * 2)
    assert len({attempt.node for attempt in detail.attempts}) == 2


def test_a_late_failure_of_a_job_without_retries_is_its_end(scene: Scene) -> None:
    (job,) = _jobs(scene, 1, retries=0)
    scene.agent("n1", node="n1")
    scene.agent("n2", node="n2")
    _fail(scene, "n1", computed_s=policy.QUICK_S)
    assert scene.row(job).outcome is Outcome.FAILED


def test_a_quick_failure_does_not_cost_a_job_what_it_has_saved_until_another_node_was_asked(scene: Scene) -> None:
    (job,) = _jobs(scene, 1)
    for node in ("n1", "bad"):
        scene.agent(node, node=node)
    scene.saved(job, scene.claim_one("n1").attempt)
    assert _fail(scene, "bad") == job
    assert (scene.row(job).state, scene.detail(job).failures) == (State.SAVED, 0)
    assert scene.detail(job).events[-1].detail == (
        "exit code 1; goes on from generation 1/1, 2 retries left, for bad may be to blame"
    )
    scene.now_s += 20
    assert scene.claim("bad") == ()
    assert scene.claim_one("n1").generation is not None
    report = Completed(exit_code=1, slice=Slice(started_s=1.0))
    scene.do(moves.completed, job, 3, report, now_s=scene.now_s)
    assert (scene.row(job).state, scene.detail(job).failures) == (State.NEW, 2)


def test_failures_of_before_a_node_was_found_bad_are_given_back(scene: Scene) -> None:
    jobs = _jobs(scene, 4)
    for node in ("bad", "good"):
        scene.agent(node, node=node)
    assert [_fail(scene, "bad") for _ in range(3)] == list(jobs[:3])
    assert [scene.detail(job).failures for job in jobs] == [1, 1, 1, 0]
    scene.now_s += 16
    done = scene.claim("good", most=3)
    for work in done[:2]:
        scene.completed(work.job, work.attempt)
    assert scene.look(agents.avoided, scene.now_s) == ()
    scene.saved(done[2].job, done[2].attempt)
    assert scene.look(agents.avoided, scene.now_s) == ("bad",)
    assert scene.detail(done[2].job).failures == 0
    assert "retries given back" in scene.events(done[2].job)
    with scene.engine.connect() as connection:
        blamed = connection.execute(select(FAILURE.c.blame).where(FAILURE.c.job == done[2].job)).scalars().all()
    assert blamed == [Blame.NODE]
    found = scene.look(agents.node_failures, now_s=scene.now_s)["bad"]
    assert found.avoided_until_s == scene.now_s + policy.FIRST_AVOID_S
    assert found.reason == "3 different jobs in a row failed within 30 s of their start, and run elsewhere"


@pytest.mark.slow
def test_a_bad_node_is_probed_with_one_job_and_a_success_clears_it(scene: Scene) -> None:
    _jobs(scene, 40)
    floor = Floor(scene, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (5.0, 0))
    while not floor.avoided():
        floor.step()
    assert scene.claim("bad") == ()
    scene.now_s += policy.FIRST_AVOID_S + 1
    assert floor.avoided() == ()
    _jobs(scene, 10)
    (probe,) = scene.claim("bad")
    assert scene.claim("bad") == ()
    scene.completed(probe.job, probe.attempt)
    assert len(scene.claim("bad")) > 1
    assert scene.look(agents.node_failures, now_s=scene.now_s) == {}


@pytest.mark.slow
def test_a_probe_that_fails_leaves_the_node_alone_for_longer(scene: Scene) -> None:
    _jobs(scene, 40)
    floor = Floor(scene, ("bad", "good"), lambda node, job: AT_ONCE if node == "bad" else (5.0, 0))
    while not floor.avoided():
        floor.step()
    before = floor.quick["bad"]
    scene.now_s += policy.FIRST_AVOID_S + 1
    _jobs(scene, 10)
    while not floor.avoided():
        floor.step()
    assert floor.quick["bad"] == before + 1
    until_s = scene.look(agents.node_failures, now_s=scene.now_s)["bad"].avoided_until_s
    assert until_s == scene.now_s - floor.every_s + 2 * policy.FIRST_AVOID_S


def test_a_job_that_runs_on_steadily_clears_a_doubted_node(scene: Scene) -> None:
    jobs = _jobs(scene, 60)
    floor = Floor(scene, ("n1", "n2"), lambda node, job: AT_ONCE if job in jobs[: CORES - 1] else (1e6, 0))
    floor.step()
    assert floor.doubted() == ["n1"]
    floor.running["n1"] = []  # its cores are free, for all that control knows
    assert scene.claim("n1") == ()
    scene.now_s += policy.STEADY_S
    assert len(scene.claim("n1", cpus=3)) == 3
    assert floor.doubted() == []


def test_a_job_that_began_before_the_failures_clears_nothing(scene: Scene) -> None:
    _jobs(scene, 20)
    for node in ("bad", "good"):
        scene.agent(node, node=node)
    old = scene.claim_one("bad")
    scene.now_s += 1000
    for _ in range(5):
        _fail(scene, "bad")
    scene.completed(old.job, old.attempt)
    assert scene.claim("bad") == ()


def test_an_admin_can_have_a_node_used_again_at_once(scene: Scene) -> None:
    _jobs(scene, 20)
    for node in ("bad", "good"):
        scene.agent(node, node=node)
    for _ in range(5):
        _fail(scene, "bad")
    assert scene.claim("bad") == ()
    assert scene.do(agents.forget_failures, "bad")
    assert not scene.do(agents.forget_failures, "bad")
    assert len(scene.claim("bad", cpus=3)) == 3


def test_a_pause_holds_up_nobody_else_and_grows_and_has_a_bound(scene: Scene) -> None:
    first, second = _jobs(scene, 2, retries=20)
    scene.agent("only", node="only")
    assert _fail(scene, "only") == first
    until_s = scene.look(pauses.until, first)
    assert until_s is not None
    assert 5 <= until_s - scene.now_s <= 15
    assert [each.job for each in scene.claim("only")] == [second]
    paused: list[float] = []
    for _ in range(10):
        until_s = scene.look(pauses.until, first)
        assert until_s is not None
        paused.append(until_s - scene.now_s)
        scene.now_s = until_s - 0.1
        assert scene.claim("only") == ()
        scene.now_s += 0.2
        assert _fail(scene, "only") == first
    assert paused[0] < 16
    assert 300 <= paused[-1] <= 900


def test_a_job_that_only_one_node_can_take_waits_a_bounded_time_for_another(scene: Scene) -> None:
    (job,) = _jobs(scene, 1)
    scene.agent("n1", node="n1")
    scene.agent("gone", node="gone")
    scene.farewell("gone")
    _fail(scene, "n1")
    scene.now_s += 16
    assert scene.claim("n1") == ()
    scene.now_s += policy.LONGEST_ELSEWHERE_S
    assert scene.claim_one("n1").job == job


def _lose_all_agents_and_wait(scene: Scene, back: str) -> None:
    """All agents are lost; much later one of them is heard again."""
    scene.silence()
    scene.now_s += policy.LONGEST_ELSEWHERE_S
    scene.beat(back)


def test_a_job_kept_off_a_node_for_a_while_may_go_there_again_though_its_next_agent_was_lost(scene: Scene) -> None:
    (job,) = _jobs(scene, 1)
    for node in ("n1", "bad"):
        scene.agent(node, node=node)
    scene.saved(job, scene.claim_one("n1").attempt)
    assert _fail(scene, "bad") == job
    scene.now_s += 20
    assert scene.claim("bad") == ()
    assert scene.claim_one("n1").job == job
    _lose_all_agents_and_wait(scene, "bad")
    assert scene.claim_one("bad").job == job


def test_a_node_that_called_a_generation_broken_gets_it_again_though_the_next_agent_was_lost(scene: Scene) -> None:
    (job,) = _jobs(scene, 1)
    for node in ("n1", "bad"):
        scene.agent(node, node=node)
    scene.saved(job, scene.claim_one("n1").attempt)
    scene.given_back(job, scene.claim_one("bad").attempt, Why.GENERATION_BROKEN)
    assert scene.claim("bad") == ()
    assert scene.claim_one("n1").job == job
    _lose_all_agents_and_wait(scene, "bad")
    assert scene.claim_one("bad").job == job


def test_what_is_known_of_failures_outlives_a_restart_of_control(queue_engine: Engine) -> None:
    scene = Scene(queue_engine)
    _jobs(scene, 20)
    for node in ("bad", "good"):
        scene.agent(node, node=node)
    for _ in range(5):
        _fail(scene, "bad")
    waiting = scene.look(pauses.until, 1)
    again = Scene(connect(queue_engine.url.render_as_string(hide_password=False)), now_s=scene.now_s)
    assert again.claim("bad") == ()
    assert again.look(pauses.until, 1) == waiting
    assert len(again.claim("good")) == 15


def test_a_job_that_was_cancelled_or_held_in_its_pause_stays_so(scene: Scene) -> None:
    cancelled, held = _jobs(scene, 2)
    scene.agent("only", node="only")
    for _ in range(2):
        _fail(scene, "only")
    scene.cancel(cancelled)
    scene.hold(held)
    scene.now_s += 1000
    assert scene.claim("only") == ()
    assert (scene.row(cancelled).state, scene.row(held).state) == (State.COMPLETE, State.NEW)
    scene.release(held)
    assert scene.claim_one("only").job == held


def test_jobs_that_pause_are_no_work_for_the_planner(scene: Scene) -> None:
    _jobs(scene, 1)
    scene.agent("only", node="only")
    _fail(scene, "only")
    assert scene.look(reads.waiting) == ()
    scene.now_s += 16
    scene.claim("only", cpus=0 + 1, memory_mib=1)
    assert [each.count for each in scene.look(reads.waiting)] == [1]


def test_the_same_failure_reported_again_changes_nothing(scene: Scene) -> None:
    (job,) = _jobs(scene, 1)
    scene.agent("n1", node="n1")
    scene.claim_one("n1")
    scene.completed(job, 1, exit_code=1)
    before = scene.everything()
    scene.completed(job, 1, exit_code=1)
    assert scene.everything() == before


@pytest.mark.slow
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
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
    scene = Scene(engine)
    jobs = _jobs(scene, len(broken), retries=retries)
    names = tuple(f"bad{number}" if is_bad else f"good{number}" for number, is_bad in enumerate(bad))
    is_broken = dict(zip(jobs, broken, strict=True))
    floor = Floor(scene, names, lambda node, job: AT_ONCE if "bad" in node or is_broken[job] else (takes_s, 0), 30.0)
    floor.work_off(jobs, within_s=48 * 3600)
    for job in jobs:
        detail = scene.detail(job)
        endings = [attempt.ending for attempt in detail.attempts]
        assert endings.count("succeeded") <= 1
        assert detail.failures <= min(endings.count("failed"), retries + 1)
        assert len(endings) <= retries + 2 + policy.FORGIVEN_AT_MOST
        assert (detail.job.outcome is Outcome.SUCCEEDED) == ("succeeded" in endings)
        if is_broken[job]:
            assert detail.job.outcome is Outcome.FAILED
