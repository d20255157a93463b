"""A running job is told to leave its node, and goes on elsewhere."""

from typing import Any

import pytest
from tests.queue.scene import Scene

from gleaner.agent.protocol import Order, Why
from gleaner.control.queue import lanes, migrating, pauses, reads
from gleaner.control.queue.errors import Refused

PATIENCE_S = 100.0


def ask(scene: Scene, job: int, to: str | None = None) -> None:
    scene.do(migrating.ask, job, to=to, by="alice", now_s=scene.now_s)


def tend(scene: Scene) -> tuple[int, ...]:
    return scene.do(migrating.tend, patience_s=PATIENCE_S, now_s=scene.now_s)


def two_agents(scene: Scene, **other: Any) -> int:
    """A job that runs on `one`; there is also an agent `two`, on node-of-two."""
    job = scene.job()
    scene.agent("one")
    scene.claim_one("one")
    scene.agent("two", **other)
    return job


def test_its_agent_is_told_to_save_it_and_nothing_else(scene: Scene) -> None:
    job = two_agents(scene)
    other = scene.job()
    scene.claim_one("one")
    assert scene.beat("one", (job, 1), (other, 1)).orders == (Order.GO_ON, Order.GO_ON)
    ask(scene, job)
    orders = scene.beat("one", (job, 1), (other, 1))
    assert orders.orders == (Order.VACATE, Order.GO_ON)
    assert not orders.vacate


def test_it_is_not_claimed_again_on_the_node_that_it_has_left(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job)
    scene.saved(job, 1)
    assert scene.claim("one") == ()
    assert [each.job for each in scene.claim("two")] == [job]
    assert tend(scene) == (job,)
    assert scene.look(migrating.one, job) is None
    assert scene.detail(job).events[-1].detail == "from node-of-one to node-of-two"


def test_it_is_kept_off_also_where_the_lane_of_what_was_saved_there_is_known(scene: Scene) -> None:
    other = scene.job()
    job = two_agents(scene)
    scene.claim("one")
    scene.saved(min(job, other), 1)
    job = max(job, other)
    ask(scene, job)
    scene.saved(job, 1)
    assert [each.job for each in scene.claim("one")] == [min(job, other)]


def test_once_it_is_saved_again_it_may_go_on_anywhere(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job)
    scene.saved(job, 1)
    scene.claim("two")
    tend(scene)
    scene.saved(job, 2)
    assert [each.job for each in scene.claim("one")] == [job]


def test_a_job_that_is_to_go_to_one_node_is_claimed_by_no_other(scene: Scene) -> None:
    job = two_agents(scene)
    scene.agent("three")
    ask(scene, job, to="node-of-two")
    scene.saved(job, 1)
    assert scene.claim("one") == scene.claim("three") == ()
    (waiting,) = scene.look(reads.waiting)
    assert waiting.misfits == {"node-of-one", "node-of-three"}
    assert [each.job for each in scene.claim("two")] == [job]


def test_a_job_that_nobody_there_takes_may_go_on_anywhere_after_a_while(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job, to="node-of-two")
    scene.saved(job, 1)
    scene.farewell("two")
    scene.now_s += PATIENCE_S - 1
    assert tend(scene) == ()
    assert scene.claim("one") == ()
    scene.now_s += 2
    tend(scene)
    assert scene.detail(job).events[-1].what == "not migrated"
    assert [each.job for each in scene.claim("one")] == [job]


def test_a_job_that_could_not_be_saved_in_time_stays_and_is_told_no_more(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job)
    scene.now_s += PATIENCE_S + 1
    scene.register("one")
    tend(scene)
    assert scene.beat("one", (job, 1)).orders == (Order.GO_ON,)
    assert "stays on node-of-one" in scene.detail(job).events[-1].detail


def test_a_job_that_ends_before_it_is_saved_has_ended(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job)
    scene.completed(job, 1)
    tend(scene)
    assert scene.look(migrating.all_of_them) == ()
    assert scene.row(job).outcome == "succeeded"


@pytest.mark.parametrize(
    ("to", "why"),
    [
        ("node-of-one", "runs on node-of-one already"),
        ("node-of-three", "no live agent there has 1 core and 512 MiB free"),
        ("nowhere", "no live agent there"),
    ],
)
def test_a_target_without_room_is_refused_in_one_line_and_nothing_changes(scene: Scene, to: str, why: str) -> None:
    job = two_agents(scene)
    scene.agent("three", cpus=2)
    ids = [scene.job(cpus=2)]
    assert [each.job for each in scene.claim("three", cpus=2)] == ids
    before = scene.everything()
    with pytest.raises(Refused, match=why):
        ask(scene, job, to=to)
    assert scene.everything() == before


def test_room_that_is_promised_to_one_job_is_not_promised_to_another(scene: Scene) -> None:
    job = two_agents(scene, cpus=1)
    other = scene.job()
    scene.claim_one("one")
    ask(scene, job, to="node-of-two")
    with pytest.raises(Refused, match="no live agent there"):
        ask(scene, other, to="node-of-two")


def test_a_node_that_cannot_restore_it_is_refused(scene: Scene) -> None:
    job = two_agents(scene, cpu_features=("avx",))
    with pytest.raises(Refused, match="cannot be restored on node-of-two"):
        ask(scene, job, to="node-of-two")


def test_only_what_runs_can_be_migrated(scene: Scene) -> None:
    job = two_agents(scene)
    scene.saved(job, 1)
    with pytest.raises(Refused, match="it does not run, it is Saved"):
        ask(scene, job)


def test_a_job_whose_last_save_failed_is_not_migrated(scene: Scene) -> None:
    job = two_agents(scene)
    scene.given_back(job, 1, Why.SAVE_FAILED, "no space")
    scene.claim("one")
    with pytest.raises(Refused, match=r"cannot be saved \(the last time, it could not be\)"):
        ask(scene, job)


def test_a_target_that_refuses_what_was_saved_is_offered_it_no_more(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job, to="node-of-two")
    scene.saved(job, 1)
    scene.claim("two")
    scene.given_back(job, 2, Why.INCOMPATIBLE, "CPU")
    assert scene.claim("two") == ()
    assert [each.job for each in scene.claim("one")] == [job]


def test_a_job_kept_off_by_refusals_is_kept_off_by_one_more(scene: Scene) -> None:
    job = two_agents(scene)
    scene.saved(job, 1)
    assert scene.do(lanes.keep_off, job, "n2") == ("n2",)
    assert scene.do(lanes.keep_off, job, "n1") == ("n1", "n2")


def test_a_job_that_was_moved_waits_for_no_node_alone_though_its_agent_there_is_lost(scene: Scene) -> None:
    job = two_agents(scene)
    scene.agent("three")
    ask(scene, job, to="node-of-two")
    scene.saved(job, 1)
    assert scene.claim("three") == ()
    assert scene.claim_one("two").job == job
    assert tend(scene) == (job,)
    scene.silence()
    scene.beat("three")
    assert scene.claim_one("three").job == job


def test_a_move_that_comes_to_nothing_takes_the_job_to_no_node_that_has_refused_it(scene: Scene) -> None:
    job = two_agents(scene)
    scene.saved(job, 1)
    scene.given_back(job, scene.claim_one("two").attempt, Why.INCOMPATIBLE, "CPU")
    again = scene.claim_one("one").attempt
    scene.agent("three")
    ask(scene, job, to="node-of-three")
    scene.now_s += PATIENCE_S + 1
    tend(scene)
    scene.given_back(job, again, Why.NODE_FAULT)
    scene.beat("two")
    assert scene.claim("two") == ()


def test_a_move_that_comes_to_nothing_ends_no_pause_after_a_failure(scene: Scene) -> None:
    job = two_agents(scene)
    ask(scene, job, to="node-of-two")
    scene.completed(job, 1, exit_code=1)
    until_s = scene.look(pauses.until, job)
    assert until_s is not None
    scene.do(migrating.tend, patience_s=0.1, now_s=scene.now_s + 1)
    assert scene.look(pauses.until, job) == until_s
    assert scene.claim("two") == ()
