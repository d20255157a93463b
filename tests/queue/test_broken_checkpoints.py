"""Checkpoints that nodes call broken: three nodes break one, one bad node destroys none."""

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import ReturnReason
from gleaner.control.daemon.storage_gc import JobArchive, is_garbage
from gleaner.control.policy.retries import LONGEST_ELSEWHERE_S
from gleaner.control.queue import queries
from gleaner.control.states import State


def test_the_last_two_checkpoints_stay_named_until_the_end(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    for attempt in range(1, 5):
        harness.claim("a")
        harness.record_save(job, attempt, number=attempt)
    assert harness.look(queries.archives_to_keep, [job]) == {
        job: queries.Kept(False, 4, frozenset({(4, 4), (3, 3)}), None)
    }
    harness.claim("a")
    kept = harness.look(queries.archives_to_keep, [job, 99])
    assert kept == {job: queries.Kept(False, 5, frozenset({(4, 4), (3, 3)}), None)}
    harness.record_completion(job, 5, output=True)
    assert harness.look(queries.archives_to_keep, [job]) == {job: queries.Kept(True, 5, frozenset(), 5)}


def test_of_a_broken_checkpoint_the_one_before_counts_and_then_the_beginning(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    for attempt in (1, 2):
        harness.claim("a")
        harness.record_save(job, attempt)
    for state, from_ in ((State.SAVED, "1/1"), (State.NEW, None)):
        harness.broken("a", "pages.img: wrong digest")
        assert harness.row(job).state is state
        (checkpoints,) = (harness.detail(job).checkpoints,)
        assert [f"{g.attempt}/{g.number}" for g in checkpoints] == ([from_] if from_ else [])
    told = [event.detail for event in harness.detail(job).events if event.what == "checkpoint broken"]
    assert told == ["checkpoint 2/1 is broken; 1/1 counts now", "checkpoint 1/1 is broken, and none is left"]
    assert harness.claim_one("a").checkpoint is None
    assert harness.detail(job).failures == 0


def _saved_twice(harness: QueueHarness, count: int) -> tuple[int, ...]:
    """Return jobs with two whole checkpoints each, saved on a good node."""
    jobs = harness.submit(indices=tuple(range(count))).jobs
    harness.agent("good", node="good")
    for attempt in (1, 2):
        assert len(harness.claim("good")) == count
        for job in jobs:
            harness.record_save(job, attempt)
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("why", [ReturnReason.CHECKPOINT_BROKEN, ReturnReason.CANNOT_RESTORE])
def test_one_node_that_calls_every_checkpoint_broken_destroys_none_and_the_jobs_go_on_elsewhere(
    harness: QueueHarness, why: ReturnReason
) -> None:
    jobs = _saved_twice(harness, 20)
    harness.agent("bad", node="bad")
    for _ in range(5):
        for work in harness.claim("bad"):
            harness.record_return(work.job, work.attempt, why, "wrong digest")
    assert [harness.row(job).state for job in jobs] == [State.SAVED] * 20
    for job in jobs:
        assert harness.endings(job).count("returned") == 1
        for checkpoint in ((1, 1), (2, 1)):
            found = JobArchive("", job, *checkpoint)
            assert not is_garbage(found, harness.look(queries.archives_to_keep, [job])[job])
    made = [work.checkpoint for work in harness.claim("good")]
    assert [(each.attempt, each.number) for each in made if each is not None] == [(2, 1)] * 20


@pytest.mark.parametrize("why", [ReturnReason.CHECKPOINT_BROKEN, ReturnReason.CANNOT_RESTORE])
def test_one_node_that_says_so_for_hours_while_the_others_have_no_room_destroys_nothing(
    harness: QueueHarness, why: ReturnReason
) -> None:
    (job,) = _saved_twice(harness, 1)
    harness.agent("bad", node="bad")
    for attempt in range(3, 8):
        assert not harness.row(job).held
        harness.claim_one("bad")
        harness.record_return(job, attempt, why, "wrong digest")
        harness.now_s += LONGEST_ELSEWHERE_S
    assert harness.row(job).held
    assert harness.claim("bad") == ()
    assert [(each.attempt, each.number) for each in harness.detail(job).checkpoints] == [(1, 1), (2, 1)]
    harness.release(job)
    assert harness.begins_from("good") == (2, 1)


@pytest.mark.parametrize(
    "whys",
    [
        (ReturnReason.CHECKPOINT_BROKEN,),
        (ReturnReason.CANNOT_RESTORE,),
        (ReturnReason.CHECKPOINT_BROKEN, ReturnReason.CANNOT_RESTORE),
    ],
)
def test_a_checkpoint_that_three_nodes_find_broken_is_set_aside_until_the_end(
    harness: QueueHarness, whys: tuple[ReturnReason, ...]
) -> None:
    (job,) = _saved_twice(harness, 1)
    for number, name in enumerate(("n1", "n2", "n3")):
        assert harness.claim_one(harness.agent(name)).checkpoint is not None
        harness.record_return(job, 3 + number, whys[number % len(whys)])
    assert harness.begins_from("good") == (1, 1)
    assert (2, 1) in harness.look(queries.archives_to_keep, [job])[job].checkpoints, "it is kept aside"
    harness.record_completion(job, 6)
    assert harness.look(queries.archives_to_keep, [job])[job].checkpoints == frozenset()


@pytest.mark.parametrize("nodes", [1, 2])
def test_fewer_nodes_find_out_a_broken_checkpoint_after_five_tries(harness: QueueHarness, nodes: int) -> None:
    job = harness.job()
    names = [harness.agent(f"n{number}", node=f"n{number}") for number in range(nodes)]
    harness.claim_one("n0")
    harness.record_save(job, 1)
    for attempt in range(5):
        assert harness.row(job).state is State.SAVED
        for name in names:
            for _ in harness.claim(name):
                harness.record_return(job, attempt + 2, ReturnReason.CHECKPOINT_BROKEN)
                break
            else:
                continue
            break
    assert harness.row(job).state is State.NEW


@pytest.mark.parametrize(
    ("why", "starts", "begun"),
    [(ReturnReason.CANNOT_RESTORE, 1, "once"), (ReturnReason.CHECKPOINT_BROKEN, 3, "3 times")],
)
def test_a_job_whose_saves_can_never_be_restored_does_not_begin_for_ever(
    harness: QueueHarness, why: ReturnReason, starts: int, begun: str
) -> None:
    job = harness.job()
    nodes = [harness.agent(name) for name in ("a", "b", "c")]
    for name in nodes[:starts]:
        assert not harness.row(job).held
        harness.record_save(job, harness.claim_one(name).attempt)
        for other in nodes:
            harness.record_return(job, harness.claim_one(other).attempt, why, "it holds a device")
        assert harness.row(job).state is State.NEW
    assert harness.look(queries.hold_reason, job) == (
        f"nothing that it saved could be restored, although it has begun {begun}; the last time: "
        f"{why}: it holds a device"
    )
