"""Where a saved job can go on: what was saved on one node is offered only to nodes that can restore it."""

from typing import Any

import pytest
from sqlalchemy import select, text
from tests.queue.scene import FACTS, Scene

from gleaner.agent.protocol import NodeFacts, SelfSave, Why
from gleaner.control.life import State
from gleaner.control.queue import kinds, reads
from gleaner.control.queue.engine import connect, transaction
from gleaner.control.queue.errors import QueueBusy
from gleaner.control.queue.reports import REFUSALS_UNTIL_HELD
from gleaner.control.queue.site_tables import FIT as FITS

NEWER: dict[str, Any] = {"cpu_features": ("avx", "avx512f", "sse")}


def _saved_on(scene: Scene, *, has_memory: bool = True, **facts: Any) -> int:
    """A job that was saved on a node with these facts, which is gone."""
    job = scene.job()
    scene.agent("saver", node="n-saver", **facts)
    scene.claim_one("saver")
    scene.saved(job, 1, has_memory=has_memory)
    scene.farewell("saver")
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
def test_a_saved_job_is_not_offered_to_a_node_that_cannot_restore_it(scene: Scene, what: str) -> None:
    saved_on, node, lacks = UNFIT[what]
    job = _saved_on(scene, **saved_on)
    scene.agent("a", node="n-a", **node)
    assert scene.claim("a") == ()
    found = scene.look(kinds.obstacles, job)
    assert found is not None
    assert (found.saved_on, found.lacking) == ("n-saver", {"n-a": lacks})
    assert scene.look(reads.waiting)[0].misfits == {"n-a"}
    scene.agent("b", **saved_on)
    assert [each.job for each in scene.claim("b")] == [job]


@pytest.mark.parametrize("what", FIT)
def test_a_saved_job_goes_on_wherever_nothing_is_lacking(scene: Scene, what: str) -> None:
    saved_on, node = FIT[what]
    job = _saved_on(scene, **saved_on)
    scene.agent("a", **node)
    assert scene.look(kinds.obstacles, job) is None
    assert [each.job for each in scene.claim("a", cpus=1, memory_mib=512)] == [job]


def test_what_a_workload_saved_by_itself_goes_on_anywhere(scene: Scene) -> None:
    job = _saved_on(scene, has_memory=False, **NEWER)
    made = scene.claim_one(scene.agent("a", criu="", architecture="aarch64", cpu_features=()))
    assert made.job == job
    assert made.generation is not None
    assert not made.generation.has_memory


def test_a_new_job_is_offered_only_to_nodes_that_can_save_it(scene: Scene) -> None:
    job = scene.job()
    scene.agent("a", node="n-a", criu="")
    assert scene.claim("a") == ()
    assert scene.look(reads.waiting)[0].misfits == {"n-a"}
    found = scene.look(kinds.obstacles, job)
    assert found is not None
    assert (found.saved_on, found.lacking) == ("", {"n-a": "checkpoints"})
    assert [each.job for each in scene.claim(scene.agent("b", node="n-b"))] == [job]


def test_a_new_job_that_saves_itself_is_offered_everywhere(scene: Scene) -> None:
    job = scene.job(saves_itself=SelfSave())
    assert scene.claim_one(scene.agent("a", criu="")).job == job
    scene.given_back(job, 1, Why.GENERATION_BROKEN)
    assert scene.claim_one("a").job == job


def test_a_job_that_starts_over_may_start_wherever_it_can_be_saved(scene: Scene) -> None:
    job = _saved_on(scene, **NEWER)
    scene.agent("b", **NEWER)
    scene.claim_one("b")
    scene.now_s += 1000
    scene.completed(job, 2, exit_code=1)
    scene.now_s += 1000
    assert scene.claim_one(scene.agent("a")).job == job


def test_a_job_without_a_whole_generation_may_start_anywhere(scene: Scene) -> None:
    job = _saved_on(scene, **NEWER)
    for node in ("n-b", "n-c", "n-d"):
        work = scene.claim_one(scene.agent(node, node=node, **NEWER))
        scene.given_back(work.job, work.attempt, Why.GENERATION_BROKEN, "")
    assert scene.row(job).state is State.NEW
    assert scene.claim_one(scene.agent("a")).job == job


def test_a_broken_generation_leaves_the_job_where_the_one_before_fits(scene: Scene) -> None:
    job = _saved_on(scene)
    scene.agent("b", **NEWER)
    scene.claim_one("b")
    scene.saved(job, 2)
    assert scene.claim(scene.agent("a")) == ()
    scene.broken("b")
    scene.beat("a")
    made = scene.claim_one("a").generation
    assert made is not None
    assert (made.attempt, made.number) == (1, 1)


def test_a_periodic_save_ties_the_job_as_well(scene: Scene) -> None:
    job = scene.job()
    scene.agent("b", **NEWER)
    scene.claim_one("b")
    scene.checkpointed(job, 1)
    scene.silence()
    assert scene.row(job).state is State.SAVED
    assert scene.claim(scene.agent("a")) == ()


def test_a_node_that_has_changed_counts_as_what_it_is_now(scene: Scene) -> None:
    job = _saved_on(scene, **NEWER)
    scene.agent("a", node="n-a")
    assert scene.claim("a") == ()
    scene.agent("later", node="n-a", **NEWER)
    assert scene.look(kinds.obstacles, job) is None
    assert scene.claim_one("later").job == job


def test_a_node_that_refuses_a_generation_is_not_offered_it_again_and_nothing_is_lost(scene: Scene) -> None:
    job = _saved_on(scene)
    other = scene.job(priority=-1)
    for name in ("a", "b"):
        scene.agent(name, node=f"n-{name}")
    scene.claim_one("a")
    scene.given_back(job, 2, Why.INCOMPATIBLE, "the manifest demands amx")
    assert scene.row(job).state is State.SAVED
    assert scene.detail(job).generations[0].attempt == 1
    assert [each.job for each in scene.claim("a")] == [other]  # that job alone is kept off, and only there
    found = scene.look(kinds.obstacles, job)
    assert found is not None
    assert found.lacking == {"n-a": ""}
    assert scene.claim_one("b").job == job
    scene.saved(job, 3)
    assert scene.claim_one("a").job == job


@pytest.mark.parametrize("why", [Why.INCOMPATIBLE, Why.GENERATION_BROKEN, Why.CANNOT_RESTORE])
def test_an_attempt_says_nothing_against_a_generation_that_it_has_published_itself(scene: Scene, why: Why) -> None:
    """It never restored it: such a word would keep the node off for good, or set aside what was just saved."""
    job = scene.job()
    for name in ("a", "b", "c"):
        scene.agent(name, node=f"n-{name}")
    scene.claim_one("a")
    scene.checkpointed(job, 1)
    scene.given_back(job, 1, why)
    assert (scene.row(job).state, scene.row(job).held) == (State.SAVED, False)
    again = scene.claim_one("a").generation
    assert again is not None
    assert (again.attempt, again.number) == (1, 1)


def test_a_generation_that_many_nodes_refuse_is_held(scene: Scene) -> None:
    job = _saved_on(scene)
    for number in range(REFUSALS_UNTIL_HELD):
        assert not scene.row(job).held
        scene.claim_one(scene.agent(f"a{number}"))
        scene.given_back(job, number + 2, Why.INCOMPATIBLE, "the manifest demands amx")
    assert scene.look(reads.hold_reason, job) == (
        f"{REFUSALS_UNTIL_HELD} nodes could not restore it, the last said: incompatible: the manifest demands amx"
    )
    scene.release(job)
    assert scene.claim("a0") == ()
    assert scene.claim_one(scene.agent("another")).job == job


def test_saved_jobs_of_all_kinds_are_claimed_in_the_queues_order(scene: Scene) -> None:
    jobs = scene.submit(indices=tuple(range(4))).jobs
    scene.agent("old")
    scene.agent("new", **NEWER)
    for job, agent in zip(jobs, ("old", "new", "old", "new"), strict=True):
        assert scene.claim_one(agent).job == job
    for job in jobs:
        scene.saved(job, 1)
    assert {each.job for each in scene.claim("old")} == {jobs[0], jobs[2]}
    for job in (jobs[0], jobs[2]):
        scene.saved(job, 2)
    assert [each.job for each in scene.claim("new")] == list(jobs)


@pytest.mark.postgres
def test_kinds_that_register_at_once_cannot_miss_each_other(postgres_url: str) -> None:
    engine = connect(postgres_url)
    some = NodeFacts(**(FACTS | {"node": "n1", "cpu_features": ("a",)}))
    more = NodeFacts(**(FACTS | {"node": "n2", "cpu_features": ("a", "b")}))
    with transaction(engine) as first:
        kinds.registered(first, some)
        with pytest.raises(QueueBusy), transaction(engine) as second:
            second.execute(text("SET lock_timeout = '50ms'"))
            kinds.registered(second, more)
    with transaction(engine) as second:
        kinds.registered(second, more)
    with engine.connect() as connection:
        pairs = connection.execute(select(FITS)).all()
    assert len(pairs) == 5  # each can save and fits itself, and the one that has more fits the other
