"""Requests to drain nodes as they are stored, on both databases."""

import pytest
from sqlalchemy import select, update
from sqlalchemy.exc import IntegrityError
from tests.queue.queue_harness import QueueHarness

from gleaner.control.models.base import replaced
from gleaner.control.models.drains import DrainedJob, DrainPhase, DrainRow, DrainTask
from gleaner.control.policy.draining import Deed
from gleaner.control.queue import agents, drains, relocation
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import DRAIN

JOB = DrainedJob(
    job="7_1",
    user="alice",
    deed=Deed.VACATE,
    nodes=("n1", "n2"),
    until_s=None,
    at_first=4,
    left=2,
    told_s=5.0,
)


def ask(harness: QueueHarness, *nodes: str, task: DrainTask = DrainTask.DRAIN) -> DrainRow:
    number = harness.do(drains.ask, task=task, nodes=nodes, by="root", now_s=harness.now_s)
    return harness.look(drains.one, number)


def test_what_is_noted_is_read_again(harness: QueueHarness) -> None:
    noted = replaced(ask(harness, "n1", "n2"), phase=DrainPhase.EMPTYING, said="waits", jobs=(JOB,))
    harness.do(drains.record_progress, noted)
    assert harness.look(drains.one, noted.id) == noted
    assert harness.look(drains.open_ones) == harness.look(drains.latest, 5) == (noted,)
    assert harness.look(drains.drain_by_node) == {"n1": noted, "n2": noted}


def test_words_are_stored_as_they_are_shown_and_one_that_is_none_of_ours_is_an_error(harness: QueueHarness) -> None:
    noted = replaced(ask(harness, "n1"), jobs=(JOB,))
    harness.do(drains.record_progress, noted)
    with transaction(harness.engine) as db:
        stored, spanning = db.execute(select(DRAIN.c.jobs, DRAIN.c.spanning)).one()
        assert (stored[0]["deed"], spanning) == ("vacate", "refuse")
        db.execute(update(DRAIN).values(jobs=[stored[0] | {"deed": "pause"}]))
    with pytest.raises(ValueError, match=r"jobs\.0\.deed"):
        harness.look(drains.one, noted.id)


def test_what_is_over_is_open_no_more_and_has_an_end(harness: QueueHarness) -> None:
    drain = replaced(ask(harness, "n1"), phase=DrainPhase.EMPTY, ended_s=harness.now_s)
    harness.do(drains.record_progress, drain)
    assert harness.look(drains.open_ones) == ()
    assert set(harness.look(drains.drain_by_node)) == {"n1"}
    with pytest.raises(IntegrityError), transaction(harness.engine) as db:
        db.execute(update(DRAIN).values(ended_s=None))


def test_old_requests_are_removed_but_for_drains_whose_nodes_are_not_set_back(harness: QueueHarness) -> None:
    for node, phase, ended_s in (
        ("n1", DrainPhase.EMPTY, 10.0), ("n2", DrainPhase.REFUSED, 10.0), ("n3", DrainPhase.REFUSED, 30.0),
    ):  # fmt: skip
        harness.do(drains.record_progress, replaced(ask(harness, node), phase=phase, ended_s=ended_s))
    ask(harness, "n4")
    assert harness.do(drains.remove_old, before_s=20.0) == 1
    assert [drain.nodes for drain in harness.look(drains.latest, 9)] == [("n4",), ("n3",), ("n1",)]


def test_only_drains_are_in_each_others_way(harness: QueueHarness) -> None:
    first = ask(harness, "n1")
    ask(harness, "n1", task=DrainTask.DRY_RUN)
    ask(harness, "n1", task=DrainTask.RESUME)
    with pytest.raises(Conflict, match=f"drain {first.id}"):
        ask(harness, "n1")
    with pytest.raises(NotFound, match="no drain 99"):
        harness.look(drains.one, 99)


def test_agents_are_found_by_what_the_scheduler_calls_them(harness: QueueHarness) -> None:
    harness.agent("one")
    jobs = [harness.job(), harness.job(saves_itself={"signal": "SIGTERM", "exit_code": 85})]
    harness.claim("one")
    harness.do(agents.record_submission, "one", "4711")
    assert harness.look(relocation.find_agents, ["4711", "4712"]) == {
        "4711": relocation.AgentFound("one", tuple(jobs), "")
    }
    harness.register("one", criu="", runtime="none")
    found = harness.look(relocation.find_agents, ["4711"])["4711"]
    assert found.cannot == f"job {jobs[0]} cannot be saved (its node saves nothing)", "the other saves itself"
