"""Requests to drain nodes as they are stored, on both databases."""

from dataclasses import replace

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from tests.queue.scene import Scene

from gleaner.control.policy.draining import Deed, Kind
from gleaner.control.queue import agents, drains, savable
from gleaner.control.queue.drain_tables import DRAIN, DrainPhase, DrainTask
from gleaner.control.queue.drains import DrainedJob, StoredDrain
from gleaner.control.queue.engine import transaction
from gleaner.control.queue.errors import Refused, Unknown

JOB = DrainedJob("7_1", "alice", Kind.AGENT, Deed.SEND_HOME, ("n1", "n2"), until_s=None, at_first=4, left=2, told_s=5.0)


def ask(scene: Scene, *nodes: str, task: DrainTask = DrainTask.DRAIN) -> StoredDrain:
    number = scene.do(drains.ask, task=task, nodes=nodes, by="root", now_s=scene.now_s)
    return scene.look(drains.one, number)


def test_what_is_noted_is_read_again(scene: Scene) -> None:
    noted = replace(ask(scene, "n1", "n2"), phase=DrainPhase.EMPTYING, said="waits", jobs=(JOB,))
    scene.do(drains.note, noted)
    assert scene.look(drains.one, noted.id) == noted
    assert scene.look(drains.open_ones) == scene.look(drains.latest, 5) == (noted,)
    assert scene.look(drains.nodes_drained) == {"n1": noted, "n2": noted}


def test_words_are_stored_as_they_are_shown_and_one_that_is_none_of_ours_is_an_error(scene: Scene) -> None:
    noted = replace(ask(scene, "n1"), jobs=(JOB,))
    scene.do(drains.note, noted)
    with transaction(scene.engine) as db:
        stored, spanning = db.execute(select(DRAIN.c.jobs, DRAIN.c.spanning)).one()
        assert (stored[0]["kind"], stored[0]["deed"], spanning) == ("agent", "send home", "refuse")
        db.execute(update(DRAIN).values(jobs=[stored[0] | {"deed": "pause"}]))
    with pytest.raises(ValueError, match="'pause' is not a valid Deed"):
        scene.look(drains.one, noted.id)


def test_what_is_over_is_open_no_more_and_has_an_end(scene: Scene) -> None:
    drain = replace(ask(scene, "n1"), phase=DrainPhase.EMPTY, ended_s=scene.now_s)
    scene.do(drains.note, drain)
    assert scene.look(drains.open_ones) == ()
    assert set(scene.look(drains.nodes_drained)) == {"n1"}
    with pytest.raises(IntegrityError), transaction(scene.engine) as db:
        db.execute(update(DRAIN).values(ended_s=None))


def test_old_requests_are_removed_but_for_drains_whose_nodes_are_not_set_back(scene: Scene) -> None:
    for node, phase, ended_s in (
        ("n1", DrainPhase.EMPTY, 10.0), ("n2", DrainPhase.REFUSED, 10.0), ("n3", DrainPhase.REFUSED, 30.0),
    ):  # fmt: skip
        scene.do(drains.note, replace(ask(scene, node), phase=phase, ended_s=ended_s))
    ask(scene, "n4")
    assert scene.do(drains.remove_old, before_s=20.0) == 1
    assert [drain.nodes for drain in scene.look(drains.latest, 9)] == [("n4",), ("n3",), ("n1",)]


def test_only_drains_are_in_each_others_way(scene: Scene) -> None:
    first = ask(scene, "n1")
    ask(scene, "n1", task=DrainTask.DRY_RUN)
    ask(scene, "n1", task=DrainTask.RESUME)
    with pytest.raises(Refused, match=f"drain {first.id}"):
        ask(scene, "n1")
    with pytest.raises(Unknown, match="no drain 99"):
        scene.look(drains.one, 99)


def test_agents_are_found_by_what_the_scheduler_calls_them(scene: Scene) -> None:
    scene.agent("one")
    jobs = [scene.job(), scene.job(saves_itself={"signal": "SIGTERM", "exit_code": 85})]
    scene.claim("one")
    scene.do(agents.submitted, "one", "4711")
    assert scene.look(savable.agents_found, ["4711", "4712"]) == {"4711": savable.AgentFound("one", tuple(jobs), "")}
    scene.register("one", criu="", runtime="none")
    found = scene.look(savable.agents_found, ["4711"])["4711"]
    assert found.cannot == f"job {jobs[0]} cannot be saved (its node saves nothing)", "the other saves itself"
