"""Compatibility: what was saved on one node is offered only to nodes that can restore it."""

from typing import Any

import pytest
from sqlalchemy import select, text
from tests.queue.queue_harness import FACTS, QueueHarness

from gleaner.agent.job_spec import SelfSave
from gleaner.agent.messages import NodeFacts, ReturnReason
from gleaner.control.queue import compatibility, queries
from gleaner.control.queue.database import connect, transaction
from gleaner.control.queue.errors import QueueBusy
from gleaner.control.queue.tables import FIT as FITS
from gleaner.control.states import State

NEWER: dict[str, Any] = {"cpu_features": ("avx", "avx512f", "sse")}


def _saved_on(harness: QueueHarness, *, has_memory: bool = True, **facts: Any) -> int:
    """Return a job that was saved on a node with these facts; that node is gone."""
    job = harness.job()
    harness.agent("saver", node="n-saver", **facts)
    harness.claim_one("saver")
    harness.record_save(job, 1, has_memory=has_memory)
    harness.record_deregistration("saver")
    return job


UNFIT: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "a missing feature": (NEWER, {}, "CPU feature avx512f"),
    "an older CRIU": ({"criu": "4.10"}, {"criu": "4.9.1"}, "CRIU >= 4.10"),
    "no CRIU": ({}, {"criu": ""}, "CRIU >= 4.1"),
    "another runtime": ({}, {"runtime": "criu 4.1"}, "runtime docker"),
    "another architecture": ({}, {"architecture": "aarch64", "cpu_features": ()}, "architecture x86_64"),
}
FIT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "more features": ({}, NEWER),
    "a newer CRIU": ({"criu": "4.9"}, {"criu": "4.10"}),
    "the same CRIU written otherwise": ({"criu": "4.1.0"}, {"criu": "4.1 (gitid 0)"}),
    "another version of the same runtime": ({}, {"runtime": "docker 20"}),
    "another kernel and size": ({}, {"kernel": "5.4", "cpus": 2, "memory_mib": 600}),
}


@pytest.mark.parametrize("what", UNFIT)
def test_a_saved_job_is_not_offered_to_a_node_that_cannot_restore_it(harness: QueueHarness, what: str) -> None:
    saved_on, node, lacks = UNFIT[what]
    job = _saved_on(harness, **saved_on)
    harness.agent("a", node="n-a", **node)
    assert harness.claim("a") == ()
    found = harness.look(compatibility.obstacles, job)
    assert found is not None
    assert (found.saved_on, found.lacking) == ("n-saver", {"n-a": lacks})
    assert harness.look(queries.waiting)[0].misfits == {"n-a"}
    harness.agent("b", **saved_on)
    assert [each.job for each in harness.claim("b")] == [job]


@pytest.mark.parametrize("what", FIT)
def test_a_saved_job_goes_on_wherever_nothing_is_lacking(harness: QueueHarness, what: str) -> None:
    saved_on, node = FIT[what]
    job = _saved_on(harness, **saved_on)
    harness.agent("a", **node)
    assert harness.look(compatibility.obstacles, job) is None
    assert [each.job for each in harness.claim("a", cpus=1, memory_mib=512)] == [job]


def test_what_a_workload_saved_by_itself_goes_on_anywhere(harness: QueueHarness) -> None:
    job = _saved_on(harness, has_memory=False, **NEWER)
    made = harness.claim_one(harness.agent("a", criu="", architecture="aarch64", cpu_features=()))
    assert made.job == job
    assert made.checkpoint is not None
    assert not made.checkpoint.has_memory


def test_a_new_job_is_offered_only_to_nodes_that_can_save_it(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a", node="n-a", criu="")
    assert harness.claim("a") == ()
    assert harness.look(queries.waiting)[0].misfits == {"n-a"}
    found = harness.look(compatibility.obstacles, job)
    assert found is not None
    assert (found.saved_on, found.lacking) == ("", {"n-a": "checkpoints"})
    assert [each.job for each in harness.claim(harness.agent("b", node="n-b"))] == [job]


def test_a_new_job_that_saves_itself_is_offered_everywhere(harness: QueueHarness) -> None:
    job = harness.job(saves_itself=SelfSave())
    assert harness.claim_one(harness.agent("a", criu="")).job == job
    harness.record_return(job, 1, ReturnReason.CHECKPOINT_BROKEN)
    assert harness.claim_one("a").job == job


def test_a_job_without_a_whole_checkpoint_may_start_anywhere(harness: QueueHarness) -> None:
    job = _saved_on(harness, **NEWER)
    for node in ("n-b", "n-c", "n-d"):
        work = harness.claim_one(harness.agent(node, node=node, **NEWER))
        harness.record_return(work.job, work.attempt, ReturnReason.CHECKPOINT_BROKEN, "")
    assert harness.row(job).state is State.NEW
    assert harness.claim_one(harness.agent("a")).job == job


def test_a_broken_checkpoint_leaves_the_job_where_the_one_before_fits(harness: QueueHarness) -> None:
    job = _saved_on(harness)
    harness.agent("b", **NEWER)
    harness.claim_one("b")
    harness.record_save(job, 2)
    assert harness.claim(harness.agent("a")) == ()
    harness.broken("b")
    harness.record_heartbeat("a")
    assert harness.begins_from("a") == (1, 1)


def test_a_periodic_save_ties_the_job_as_well(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("b", **NEWER)
    harness.claim_one("b")
    harness.record_checkpoint(job, 1)
    harness.silence()
    assert harness.row(job).state is State.SAVED
    assert harness.claim(harness.agent("a")) == ()


def test_a_node_that_refuses_a_checkpoint_is_not_offered_it_again_and_nothing_is_lost(harness: QueueHarness) -> None:
    job = _saved_on(harness)
    other = harness.job(priority=-1)
    for name in ("a", "b"):
        harness.agent(name, node=f"n-{name}")
    harness.claim_one("a")
    harness.record_return(job, 2, ReturnReason.INCOMPATIBLE, "the manifest demands amx")
    assert harness.row(job).state is State.SAVED
    assert harness.detail(job).checkpoints[0].attempt == 1
    assert [each.job for each in harness.claim("a")] == [other]  # that job alone is kept off, and only there
    found = harness.look(compatibility.obstacles, job)
    assert found is not None
    assert found.lacking == {"n-a": ""}
    assert harness.claim_one("b").job == job
    harness.record_save(job, 3)
    assert harness.claim_one("a").job == job


@pytest.mark.parametrize(
    "why", [ReturnReason.INCOMPATIBLE, ReturnReason.CHECKPOINT_BROKEN, ReturnReason.CANNOT_RESTORE]
)
def test_an_attempt_says_nothing_against_a_checkpoint_that_it_has_published_itself(
    harness: QueueHarness, why: ReturnReason
) -> None:
    """The attempt never restored it: the report would keep the node off for good, or set aside what was just saved."""
    job = harness.job()
    for name in ("a", "b", "c"):
        harness.agent(name, node=f"n-{name}")
    harness.claim_one("a")
    harness.record_checkpoint(job, 1)
    harness.record_return(job, 1, why)
    assert (harness.row(job).state, harness.row(job).held) == (State.SAVED, False)
    assert harness.begins_from("a") == (1, 1)


def test_saved_jobs_of_all_kinds_are_claimed_in_the_queues_order(harness: QueueHarness) -> None:
    jobs = harness.submit(indices=tuple(range(4))).jobs
    harness.agent("old")
    harness.agent("new", **NEWER)
    for job, agent in zip(jobs, ("old", "new", "old", "new"), strict=True):
        assert harness.claim_one(agent).job == job
    for job in jobs:
        harness.record_save(job, 1)
    assert {each.job for each in harness.claim("old")} == {jobs[0], jobs[2]}
    for job in (jobs[0], jobs[2]):
        harness.record_save(job, 2)
    assert [each.job for each in harness.claim("new")] == list(jobs)


@pytest.mark.postgres
def test_kinds_that_register_at_once_cannot_miss_each_other(postgres_url: str) -> None:
    engine = connect(postgres_url)
    some = NodeFacts(**(FACTS | {"node": "n1", "cpu_features": ("a",)}))
    more = NodeFacts(**(FACTS | {"node": "n2", "cpu_features": ("a", "b")}))
    with transaction(engine) as first:
        compatibility.record_kind(first, some)
        with pytest.raises(QueueBusy), transaction(engine) as second:
            second.execute(text("SET lock_timeout = '50ms'"))
            compatibility.record_kind(second, more)
    with transaction(engine) as second:
        compatibility.record_kind(second, more)
    with engine.connect() as connection:
        pairs = connection.execute(select(FITS)).all()
    assert len(pairs) == 5  # each can save and fits itself, and the one that has more fits the other
