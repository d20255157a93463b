"""Agents that fall silent, die, come back, give back or forget: nothing is lost, and nothing costs a retry."""

import pytest
from tests.queue.scene import LEASE_S, Scene

from gleaner.agent.protocol import Order, SelfSave, Slice, Why
from gleaner.control.collector import Found, is_garbage
from gleaner.control.life import Outcome, State
from gleaner.control.policy.judging import LONGEST_ELSEWHERE_S
from gleaner.control.queue import agents, moves, reads, tokens
from gleaner.control.queue.errors import NotCurrent, Refused, Unknown
from gleaner.control.queue.reports import TRIES_UNTIL_BROKEN


def test_a_silent_agent_loses_its_jobs_saved_if_a_generation_is_whole_and_else_new(scene: Scene) -> None:
    fresh, saved = scene.submit(indices=(1, 2)).jobs
    scene.claim(scene.agent("a"), most=2)
    scene.saved(saved, 1)
    scene.claim(scene.agent("b"), most=1)
    scene.agent("c")
    scene.now_s += LEASE_S - 1
    scene.beat("c")
    assert scene.expire() == []
    scene.now_s += 2
    assert scene.expire() == ["a", "b"]
    assert (scene.row(fresh).state, scene.row(saved).state) == (State.NEW, State.SAVED)
    assert scene.endings(fresh) == ["lost"]
    assert scene.endings(saved) == ["saved", "lost"]
    assert scene.detail(fresh).failures == scene.detail(saved).failures == 0
    assert scene.expire() == []


def test_a_late_report_of_the_latest_attempt_counts(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.now_s += 1e6
    scene.completed(job, 1, output=True)
    assert scene.row(job).outcome is Outcome.SUCCEEDED
    assert scene.endings(job) == ["succeeded"]


def test_a_late_save_after_a_loss_is_where_the_job_goes_on(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.saved(job, 1, number=3, log_lines=9)
    (again,) = scene.claim(scene.agent("b"))
    assert again.generation is not None
    assert (again.generation.attempt, again.generation.number, again.generation.log_lines) == (1, 3, 9)


def test_the_report_of_an_attempt_that_was_overtaken_is_refused(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.claim(scene.agent("b"))
    with pytest.raises(NotCurrent, match="attempt 1 of job 1 may not report this any more: attempt 2 is the latest"):
        scene.completed(job, 1)
    scene.completed(job, 2)


def test_a_silent_agent_that_beats_again_keeps_what_nobody_has_claimed(scene: Scene) -> None:
    kept, taken = scene.submit(indices=(1, 2)).jobs
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.do(moves.set_priority, taken, 9, now_s=scene.now_s)
    assert scene.claim_one(scene.agent("b")).job == taken
    assert scene.beat("a", (kept, 1), (taken, 1)).orders == (Order.GO_ON, Order.DROP)
    assert (scene.row(kept).state, scene.row(kept).node) == (State.RUNNING, "node-of-a")
    assert scene.endings(kept) == [None]
    scene.completed(kept, 1)
    assert scene.expire() == []


def test_an_agent_revives_only_its_own_attempts(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.silence()
    scene.agent("b")
    assert scene.beat("b", (job, 1)).orders == (Order.DROP,)
    assert scene.row(job).state is State.NEW


def test_orders_follow_what_people_want(scene: Scene) -> None:
    held, cancelled, plain = scene.submit(indices=(1, 2, 3)).jobs
    scene.claim(scene.agent("a"))
    scene.hold(held)
    scene.cancel(cancelled)
    named = [(job, 1) for job in (held, cancelled, plain, 99)]
    assert scene.beat("a", *named).orders == (Order.VACATE, Order.DROP, Order.GO_ON, Order.DROP)
    scene.do(agents.vacate, "a")
    told = scene.beat("a", *named)
    assert (told.vacate, told.orders) == (True, (Order.VACATE, Order.DROP, Order.VACATE, Order.DROP))
    scene.job()
    assert scene.claim("a") == ()


@pytest.mark.parametrize("computed_s", [1.0, 60.0])
def test_a_job_that_saves_itself_again_and_again_without_computing_is_held(scene: Scene, computed_s: float) -> None:
    job = scene.job(saves_itself=SelfSave())
    scene.agent("a")
    for attempt in range(1, 6):
        assert not scene.row(job).held
        scene.claim_one("a")
        scene.saved(job, attempt, has_memory=False, spent=Slice(started_s=1, compute_s=computed_s))
    assert scene.row(job).held is (computed_s < 5)
    assert ("hold" in scene.events(job)) is (computed_s < 5)


def test_a_job_held_while_it_runs_is_saved_and_then_waits_for_its_release(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.hold(job, "by alice")
    scene.saved(job, 1)
    assert scene.claim("a") == ()
    assert scene.look(reads.hold_reason, job) == "by alice"
    scene.release(job)
    assert [each.job for each in scene.claim("a")] == [job]


def test_a_claim_whose_answer_was_lost_returns_after_a_lease_without_any_cost(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.now_s += LEASE_S - 1
    scene.beat("a")
    assert scene.row(job).state is State.RUNNING
    scene.now_s += 1
    scene.beat("a")
    assert (scene.row(job).state, scene.endings(job)) == (State.NEW, ["forgotten"])
    scene.completed(job, 1)  # it knew after all
    assert scene.row(job).outcome is Outcome.SUCCEEDED


def test_losses_on_three_different_nodes_in_a_row_hold_the_job(scene: Scene) -> None:
    job = scene.job()
    for name in ("a", "b", "c"):
        assert not scene.row(job).held
        scene.claim(scene.agent(name))
        scene.silence()
    assert scene.row(job).held
    reason = "lost together with its agent on 3 different nodes in a row: node-of-a, node-of-b, node-of-c"
    assert scene.look(reads.hold_reason, job) == reason
    assert scene.claim(scene.agent("d")) == ()
    scene.release(job)
    scene.claim("d")
    scene.silence()
    assert not scene.row(job).held  # the count began anew
    assert scene.detail(job).failures == 0


def test_losses_on_one_node_are_the_nodes_and_not_the_jobs(scene: Scene) -> None:
    job = scene.job()
    for name in ("a", "b", "c", "d"):
        scene.claim(scene.agent(name, node="bad"))
        scene.silence()
    assert not scene.row(job).held


@pytest.mark.parametrize("proof", ["saved", "failed"])
def test_a_report_in_between_shows_that_the_job_is_sound(scene: Scene, proof: str) -> None:
    job = scene.job()
    for number, name in enumerate(("a", "b", "c", "d", "e"), 1):
        scene.claim(scene.agent(name))
        if name == "c":
            if proof == "saved":
                scene.saved(job, number)
            else:
                scene.completed(job, number, exit_code=1)
        else:
            scene.silence()
    assert not scene.row(job).held


def test_an_attempt_given_back_unstarted_neither_counts_as_a_loss_nor_clears_the_count(scene: Scene) -> None:
    job = scene.job()
    for number, name in enumerate(("a", "b", "between", "c"), 1):
        scene.claim(scene.agent(name))
        if name == "between":
            scene.given_back(job, number, Why.UNSTARTED)
        else:
            scene.silence()
    assert scene.row(job).held


def test_only_its_own_failure_costs_a_retry_and_the_last_one_ends_it(scene: Scene) -> None:
    job = scene.job(retries=2)
    scene.agent("a")
    for attempt, exit_code in enumerate((1, 137, 9), 1):
        scene.claim_one("a")
        scene.completed(job, attempt, exit_code=exit_code)
        scene.now_s += 40  # more than the longest pause after two failures
        scene.beat("a")
    row = scene.row(job)
    assert (row.state, row.outcome, row.exit_code) == (State.COMPLETE, Outcome.FAILED, 9)
    assert scene.detail(job).failures == 3


def test_a_failure_starts_over_and_no_old_generation_is_named(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    scene.claim("a")
    scene.saved(job, 1)
    scene.claim("a")
    scene.completed(job, 2, exit_code=1)
    assert scene.row(job).state is State.NEW
    assert scene.named(job) == frozenset()
    scene.now_s += 40
    assert scene.claim_one("a").generation is None


def test_the_last_two_generations_stay_named_until_the_end(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    for attempt in range(1, 5):
        scene.claim("a")
        scene.saved(job, attempt, number=attempt)
    assert scene.look(reads.kept, [job]) == {job: reads.Kept(False, 4, frozenset({(4, 4), (3, 3)}), None)}
    scene.claim("a")
    kept = scene.look(reads.kept, [job, 99])
    assert kept == {job: reads.Kept(False, 5, frozenset({(4, 4), (3, 3)}), None)}
    scene.completed(job, 5, output=True)
    assert scene.look(reads.kept, [job]) == {job: reads.Kept(True, 5, frozenset(), 5)}


def test_of_a_broken_generation_the_one_before_counts_and_then_the_beginning(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a")
    for attempt in (1, 2):
        scene.claim("a")
        scene.saved(job, attempt)
    for state, from_ in ((State.SAVED, "1/1"), (State.NEW, None)):
        scene.broken("a", "pages.img: wrong digest")
        assert scene.row(job).state is state
        (generations,) = (scene.detail(job).generations,)
        assert [f"{g.attempt}/{g.number}" for g in generations] == ([from_] if from_ else [])
    told = [event.detail for event in scene.detail(job).events if event.what == "generation broken"]
    assert told == ["generation 2/1 is broken; 1/1 counts now", "generation 1/1 is broken, and none is left"]
    assert scene.claim_one("a").generation is None
    assert scene.detail(job).failures == 0


def test_nodes_that_cannot_restore_a_generation_do_not_break_it_until_there_are_three(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.saved(job, 1)
    for attempt, (agent, state) in enumerate((("b", State.SAVED), ("c", State.SAVED), ("d", State.NEW)), 2):
        scene.claim(scene.agent(agent))
        scene.given_back(job, attempt, Why.CANNOT_RESTORE, "CRIU cannot restore its memory")
        assert scene.row(job).state is state
    assert scene.detail(job).failures == 0


def test_one_node_alone_must_fail_often_to_break_a_generation(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.saved(job, 1)
    for attempt in range(2, 7):
        assert scene.row(job).state is State.SAVED
        scene.claim("a")
        scene.given_back(job, attempt, Why.CANNOT_RESTORE)
    assert scene.row(job).state is State.NEW


def _saved_twice(scene: Scene, count: int) -> tuple[int, ...]:
    """Jobs with two whole generations each, saved on a good node."""
    jobs = scene.submit(indices=tuple(range(count))).jobs
    scene.agent("good", node="good")
    for attempt in (1, 2):
        assert len(scene.claim("good")) == count
        for job in jobs:
            scene.saved(job, attempt)
    return jobs


@pytest.mark.parametrize("why", [Why.GENERATION_BROKEN, Why.CANNOT_RESTORE])
def test_one_node_that_calls_every_generation_broken_destroys_none_and_the_jobs_go_on_elsewhere(
    scene: Scene, why: Why
) -> None:
    jobs = _saved_twice(scene, 20)
    scene.agent("bad", node="bad")
    for _ in range(5):
        for work in scene.claim("bad"):
            scene.given_back(work.job, work.attempt, why, "wrong digest")
    assert [scene.row(job).state for job in jobs] == [State.SAVED] * 20
    for job in jobs:
        assert scene.endings(job).count("given back") == 1
        for generation in ((1, 1), (2, 1)):
            found = Found("", job, *generation)
            assert not is_garbage(found, scene.look(reads.kept, [job])[job])
    made = [work.generation for work in scene.claim("good")]
    assert [(each.attempt, each.number) for each in made if each is not None] == [(2, 1)] * 20


def test_what_a_bad_node_has_said_of_a_generation_is_forgotten_after_a_while(scene: Scene) -> None:
    """The other node may never have room: the job must not wait for ever."""
    (job,) = _saved_twice(scene, 1)
    scene.agent("bad", node="bad")
    scene.claim_one("bad")
    scene.given_back(job, 3, Why.GENERATION_BROKEN)
    assert scene.claim("bad") == ()
    scene.now_s += LONGEST_ELSEWHERE_S
    assert scene.claim_one("bad").generation is not None


@pytest.mark.parametrize("why", [Why.GENERATION_BROKEN, Why.CANNOT_RESTORE])
def test_one_node_that_says_so_for_hours_while_the_others_have_no_room_destroys_nothing(scene: Scene, why: Why) -> None:
    (job,) = _saved_twice(scene, 1)
    scene.agent("bad", node="bad")
    for attempt in range(3, 8):
        assert not scene.row(job).held
        scene.claim_one("bad")
        scene.given_back(job, attempt, why, "wrong digest")
        scene.now_s += LONGEST_ELSEWHERE_S
    assert scene.row(job).held
    assert scene.claim("bad") == ()
    assert [(each.attempt, each.number) for each in scene.detail(job).generations] == [(1, 1), (2, 1)]
    scene.release(job)
    made = scene.claim_one("good").generation
    assert made is not None
    assert (made.attempt, made.number) == (2, 1)


@pytest.mark.parametrize("whys", [(Why.GENERATION_BROKEN,), (Why.GENERATION_BROKEN, Why.CANNOT_RESTORE)])
def test_a_generation_that_three_nodes_find_broken_is_set_aside_until_the_end(
    scene: Scene, whys: tuple[Why, ...]
) -> None:
    (job,) = _saved_twice(scene, 1)
    for number, name in enumerate(("n1", "n2", "n3")):
        assert scene.claim_one(scene.agent(name)).generation is not None
        scene.given_back(job, 3 + number, whys[number % len(whys)])
    made = scene.claim_one("good").generation
    assert made is not None
    assert (made.attempt, made.number) == (1, 1)
    assert (2, 1) in scene.look(reads.kept, [job])[job].generations, "it is kept aside"
    scene.completed(job, 6)
    assert scene.look(reads.kept, [job])[job].generations == frozenset()


@pytest.mark.parametrize("nodes", [1, 2])
def test_fewer_nodes_find_out_a_broken_generation_after_five_tries(scene: Scene, nodes: int) -> None:
    job = scene.job()
    names = [scene.agent(f"n{number}", node=f"n{number}") for number in range(nodes)]
    scene.claim_one("n0")
    scene.saved(job, 1)
    for attempt in range(TRIES_UNTIL_BROKEN):
        assert scene.row(job).state is State.SAVED
        for name in names:
            for _ in scene.claim(name):
                scene.given_back(job, attempt + 2, Why.GENERATION_BROKEN)
                break
            else:
                continue
            break
    assert scene.row(job).state is State.NEW


def test_nodes_that_refuse_a_generation_stay_off_it_when_another_calls_it_broken(scene: Scene) -> None:
    (job,) = _saved_twice(scene, 1)
    scene.claim_one(scene.agent("n1"))
    scene.given_back(job, 3, Why.INCOMPATIBLE)
    scene.claim_one(scene.agent("n2"))
    scene.given_back(job, 4, Why.GENERATION_BROKEN)
    for later_s in (0.0, LONGEST_ELSEWHERE_S + 1):
        scene.now_s += later_s
        for name in ("n1", "n2", "good"):
            scene.beat(name)
        assert scene.claim("n1") == ()
    assert len(scene.claim("n2")) == 1


def test_a_late_word_of_a_broken_generation_starts_a_saved_job_over(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.saved(job, 1)
    for attempt, name in enumerate(("b", "c"), 2):
        scene.claim_one(scene.agent(name))
        scene.given_back(job, attempt, Why.GENERATION_BROKEN)
    scene.claim_one(scene.agent("d"))
    scene.silence()
    assert scene.row(job).state is State.SAVED
    scene.given_back(job, 4, Why.GENERATION_BROKEN)
    assert scene.row(job).state is State.NEW
    assert scene.events(job)[-1] == "start over"


@pytest.mark.parametrize("why", [Why.IMAGE_MISSING, Why.IMAGE_REFUSED])
def test_a_missing_image_holds_the_job_with_that_reason(scene: Scene, why: Why) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.given_back(job, 1, why, "no image pythia:8")
    assert (scene.row(job).state, scene.row(job).held) == (State.NEW, True)
    assert scene.look(reads.hold_reason, job) == f"{why}: no image pythia:8"


@pytest.mark.parametrize("why", [Why.UNSTARTED, Why.NODE_FAULT, Why.STORAGE_FAULT, Why.SAVE_FAILED])
def test_giving_back_costs_nothing_and_goes_back_to_the_last_generation(scene: Scene, why: Why) -> None:
    job = scene.job()
    scene.agent("a")
    scene.claim("a")
    scene.saved(job, 1)
    scene.claim("a")
    scene.given_back(job, 2, why)
    assert (scene.row(job).state, scene.row(job).held, scene.detail(job).failures) == (State.SAVED, False, 0)


def _futile(scene: Scene, job: int, node: str, why: Why) -> None:
    agent = scene.agent(f"on-{node}-{scene.row(job).attempt}", node=node)
    scene.given_back(job, scene.claim_one(agent).attempt, why, "killed")


def test_a_job_that_is_killed_on_three_different_nodes_is_held(scene: Scene) -> None:
    job = scene.job()
    for node in ("n1", "n2", "n1", "n3"):
        assert not scene.row(job).held
        _futile(scene, job, node, Why.NODE_FAULT)
    assert scene.row(job).held
    assert scene.look(reads.hold_reason, job) == (
        "came to nothing on 3 different nodes in a row (n1, n2, n3), the last time: node fault: killed"
    )
    scene.release(job)
    _futile(scene, job, "n4", Why.NODE_FAULT)
    assert not scene.row(job).held  # the count began anew
    assert scene.detail(job).failures == 0


def test_a_job_that_comes_to_nothing_five_times_is_held_also_where_there_is_one_node(scene: Scene) -> None:
    job = scene.job()
    for why in (Why.NODE_FAULT, Why.SAVE_FAILED, Why.SAVE_FAILED, Why.UNSTARTED, Why.NODE_FAULT, Why.SAVE_FAILED):
        assert not scene.row(job).held
        _futile(scene, job, "only", why)
    assert scene.look(reads.hold_reason, job) == "came to nothing 5 times in a row, the last time: save failed: killed"


def test_a_fault_of_the_storage_never_counts_against_the_job(scene: Scene) -> None:
    job = scene.job()
    for number in range(10):
        _futile(scene, job, f"n{number}", Why.STORAGE_FAULT)
    assert (scene.row(job).state, scene.row(job).held, scene.detail(job).failures) == (State.NEW, False, 0)
    assert scene.detail(job).attempts[-1].detail == "storage fault: killed"


def test_a_save_in_between_shows_that_the_job_gets_on(scene: Scene) -> None:
    job = scene.job()
    for node in ("n1", "n2"):
        _futile(scene, job, node, Why.NODE_FAULT)
    scene.saved(job, scene.claim_one(scene.agent("a")).attempt)
    for node in ("n3", "n4"):
        _futile(scene, job, node, Why.NODE_FAULT)
    assert not scene.row(job).held


def test_a_job_whose_saves_can_never_be_restored_does_not_begin_for_ever(scene: Scene) -> None:
    job = scene.job()
    nodes = [scene.agent(name) for name in ("a", "b", "c")]
    for name in nodes:
        assert not scene.row(job).held
        scene.saved(job, scene.claim_one(name).attempt)
        for other in nodes:
            scene.given_back(job, scene.claim_one(other).attempt, Why.CANNOT_RESTORE, "it holds a device")
        assert scene.row(job).state is State.NEW
    assert scene.look(reads.hold_reason, job) == (
        "nothing that it saved could be restored, although it has begun 3 times; "
        "the last time: cannot restore: it holds a device"
    )


def test_a_farewell_gives_back_what_is_left_and_tells_the_shared_end_once(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    assert scene.farewell("a", reason="its end came") == 9e9
    assert scene.farewell("a") is None
    assert (scene.row(job).state, scene.endings(job)) == (State.NEW, ["given back"])
    (row,) = scene.look(reads.agent_rows, now_s=scene.now_s)
    assert (row.phase, row.reason, row.ended_s, row.jobs) == ("ended", "its end came", scene.now_s, ())
    for act in (lambda: scene.claim("a"), lambda: scene.beat("a"), lambda: scene.register("a")):
        with pytest.raises(Refused, match="agent a may not"):
            act()


def test_after_a_restart_of_control_every_live_agent_has_a_full_lease(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    scene.now_s += 100 * LEASE_S  # control was down, and so nobody could be heard
    scene.do(agents.renew_leases, now_s=scene.now_s, lease_s=LEASE_S)
    assert scene.expire() == []
    scene.now_s += LEASE_S - 1
    assert scene.expire() == []
    scene.now_s += 2
    assert scene.expire() == ["a"]
    assert scene.row(job).state is State.NEW


def test_an_agent_that_never_started_is_closed_and_its_token_is_worth_nothing(scene: Scene) -> None:
    scene.do(agents.expect, name="a", end_s=5.0, token_hash=tokens.digest("secret"), now_s=1.0)
    scene.do(agents.submitted, "a", "4711")
    known = scene.look(tokens.identify, "secret")
    assert known is not None
    assert (known.role, known.name, known.group) == ("agent", "a", None)
    assert scene.do(agents.forget_unstarted, "a", now_s=2.0, reason="withdrawn")
    assert scene.look(tokens.identify, "secret") is None
    with pytest.raises(Refused, match=r"agent a may not register: it has ended \(withdrawn\)"):
        scene.register("a")
    scene.agent("b")
    assert not scene.do(agents.forget_unstarted, "b", now_s=2.0, reason="withdrawn")
    assert scene.look(reads.agent_phases, now_s=scene.now_s) == {"submitted": 0, "live": 1, "silent": 0}


def test_a_silent_agent_that_slurm_calls_gone_is_closed_but_may_still_report(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    close = {"losses_until_held": 3, "reason": "Slurm knows it no more"}
    assert not scene.do(agents.close_silent, "a", now_s=scene.now_s, **close)  # unreachable is not dead
    scene.silence()
    assert scene.do(agents.close_silent, "a", now_s=scene.now_s, **close)
    scene.completed(job, 1)
    assert scene.row(job).outcome is Outcome.SUCCEEDED
    assert scene.look(tokens.identify, "a") is not None


def test_registering_twice_is_no_error_and_an_unknown_agent_is(scene: Scene) -> None:
    scene.agent("a")
    scene.register("a")
    with pytest.raises(Unknown, match="there is no agent b"):
        scene.register("b")
    with pytest.raises(Unknown, match="there is no agent b"):
        scene.claim("b")
    with pytest.raises(Unknown, match="there is no agent b"):
        scene.beat("b")


def test_an_agent_that_has_not_registered_may_not_claim(scene: Scene) -> None:
    scene.do(agents.expect, name="a", end_s=5.0, token_hash="x", now_s=1.0)
    with pytest.raises(Refused, match="agent a may not claim: it is submitted"):
        scene.claim("a")


def test_a_silent_agent_gets_no_work_until_it_beats(scene: Scene) -> None:
    scene.job()
    scene.agent("a")
    scene.silence()
    assert scene.claim("a") == ()
    scene.beat("a")
    assert len(scene.claim("a")) == 1


def test_a_node_is_avoided_after_three_failures_in_a_row_and_a_success_clears_it(scene: Scene) -> None:
    rules = {"failures_until_avoided": 3, "avoid_s": 100.0}
    for _ in range(2):
        scene.do(agents.node_failed, "n1", now_s=10.0, **rules)
    assert scene.look(agents.avoided, 10.0) == ()
    scene.do(agents.node_failed, "n1", now_s=10.0, **rules)
    assert scene.look(agents.avoided, 109.0) == ("n1",)
    assert scene.look(agents.node_failures) == {"n1": agents.NodeFailures(3, 110.0)}
    assert scene.look(agents.avoided, 111.0) == ()
    scene.do(agents.node_failed, "n1", now_s=200.0, **rules)  # at once again
    assert scene.look(agents.avoided, 201.0) == ("n1",)
    scene.do(agents.node_worked, "n1")
    assert (scene.look(agents.avoided, 201.0), scene.look(agents.node_failures)) == ((), {})


def test_a_farewell_for_a_fault_counts_against_the_node(scene: Scene) -> None:
    for name in ("a", "b", "c"):
        scene.agent(name, node="bad")
        scene.farewell(name, fault=True, reason="no Docker here")
    assert scene.look(agents.avoided, scene.now_s) == ("bad",)


@pytest.mark.parametrize("report", ["none", "given back", "lost", "saved", "completed", "failed at once"])
def test_only_an_agent_that_ran_a_job_clears_its_nodes_failures(scene: Scene, report: str) -> None:
    for name in ("a", "b", "c"):
        scene.agent(name, node="bad")
        scene.farewell(name, fault=True)
    job = scene.job()
    scene.agent("d", node="bad")
    if report != "none":
        scene.claim_one("d")
    match report:
        case "given back":
            scene.given_back(job, 1, Why.UNSTARTED)
        case "lost":
            scene.silence()
        case "saved":
            scene.saved(job, 1)
        case "completed":
            scene.now_s += 40
            scene.completed(job, 1, exit_code=3)
        case "failed at once":
            scene.completed(job, 1, exit_code=3)
        case _:
            pass
    scene.farewell("d")
    ran = report in {"saved", "completed"}
    assert scene.look(agents.node_failures) == ({} if ran else {"bad": agents.NodeFailures(3, 4600.0)})


def test_a_job_claimed_in_the_moment_of_silence_is_lost_at_the_next_look(scene: Scene) -> None:
    job = scene.job()
    scene.claim(scene.agent("a"))
    with scene.engine.begin() as connection:  # what a claim that overlaps with `expire` leaves
        connection.exec_driver_sql("UPDATE agent SET phase = 'silent'")
    assert scene.expire() == ["a"]
    assert scene.row(job).state is State.NEW
