"""Periodic saves: what an attempt has published while it goes on counts as soon as it is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.queue.scene import LEASE_S, Scene, digest

from gleaner.agent.protocol import Checkpointed, Generation, Slice, Why
from gleaner.control.life import State
from gleaner.control.queue import attempts, moves
from gleaner.control.queue.errors import Invalid, NotCurrent
from gleaner.control.queue.logs import read


def _running(scene: Scene) -> int:
    job = scene.job()
    scene.claim_one(scene.agent("a"))
    return job


def test_a_lost_attempt_leaves_its_last_periodic_save(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1, number=1, log_lines=10)
    scene.checkpointed(job, 1, number=2, log_lines=20)
    assert (scene.row(job).state, scene.row(job).attempt) == (State.RUNNING, 1)
    assert scene.beat("a", (job, 1)).orders == ("go-on",)
    scene.silence()
    assert scene.row(job).state is State.SAVED
    made = scene.claim_one(scene.agent("b")).generation
    assert made is not None
    assert (made.attempt, made.number, made.digest, made.log_lines) == (1, 2, digest(2), 20)


def test_what_was_written_after_the_last_periodic_save_is_superseded(scene: Scene) -> None:
    job = _running(scene)
    scene.log(job, 1, 0, "one", "two", "three")
    scene.checkpointed(job, 1, log_lines=2)
    scene.silence()
    scene.claim_one(scene.agent("b"))
    scene.log(job, 2, 2, "again three")
    assert scene.look(read, job, 0, 10).lines == ("one", "two", "again three")


def test_only_the_last_two_generations_are_named(scene: Scene) -> None:
    job = _running(scene)
    for number in (1, 2, 5):
        scene.checkpointed(job, 1, number=number)
    assert scene.named(job) == {(1, 5), (1, 2)}
    scene.saved(job, 1, number=6)
    assert scene.named(job) == {(1, 6), (1, 5)}


def test_besides_the_last_two_the_newest_that_shares_no_file_with_the_last_stays_named(scene: Scene) -> None:
    job = _running(scene)
    for number in range(1, 8):
        scene.checkpointed(job, 1, number=number, chain="1/1" if number < 4 else "1/4")
    assert scene.named(job) == {(1, 7), (1, 6), (1, 3)}
    scene.checkpointed(job, 1, number=8, chain="1/8")
    assert scene.named(job) == {(1, 8), (1, 7)}, "the one before shares no file with it"
    scene.saved(job, 1, number=9, chain="1/8")
    assert scene.named(job) == {(1, 9), (1, 8), (1, 7)}
    scene.claim_one(scene.agent("b"))
    scene.checkpointed(job, 2, number=1, chain="1/8")
    assert scene.named(job) == {(2, 1), (1, 9), (1, 7)}


links = st.lists(st.sampled_from(["1/1", "1/5", "2/1", None]), min_size=1, max_size=8)


@given(links)
def test_whatever_is_named_the_last_two_stay_and_one_apart_if_there_is_one(chains: list[str | None]) -> None:
    named = [attempts.Link(1, len(chains) - place, chain) for place, chain in enumerate(chains)]
    kept = [link for link in named if link not in attempts.surplus(named)]
    assert kept[:2] == named[:2]
    assert len(kept) <= 3
    apart = [link for link in named if link.chain != named[0].chain]
    assert not apart or apart[0] in kept


def test_a_generation_that_is_not_newer_is_bad_input_and_changes_nothing(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1, number=4)
    before = scene.everything()
    with pytest.raises(Invalid, match="generation 1/3 is not newer than the attempt's last, number 4"):
        scene.checkpointed(job, 1, number=3)
    with pytest.raises(Invalid, match="generation 1/3 is not newer"):
        scene.saved(job, 1, number=3)
    other = Generation(attempt=1, number=4, digest=digest(9), size_bytes=1, log_lines=0)
    with pytest.raises(Invalid, match="generation 1/4 is not newer"):
        scene.do(moves.checkpointed, job, 1, Checkpointed(generation=other, slice=Slice(started_s=1)), now_s=1.0)
    assert scene.everything() == before


def test_an_old_report_said_again_does_not_turn_the_job_back(scene: Scene) -> None:
    job = _running(scene)
    assert scene.checkpointed(job, 1, number=1)
    scene.checkpointed(job, 1, number=2)
    before = scene.everything()
    assert not scene.checkpointed(job, 1, number=1)
    assert scene.everything() == before


def test_the_report_said_again_after_the_attempts_end_is_no_error(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1)
    scene.silence()
    scene.claim_one(scene.agent("b"))
    before = scene.everything()
    assert not scene.checkpointed(job, 1)
    assert scene.everything() == before
    with pytest.raises(NotCurrent, match="attempt 2 is the latest"):
        scene.checkpointed(job, 1, number=2)
    assert scene.everything() == before


def test_a_lost_attempts_late_report_counts_until_the_next_claim_and_it_may_come_back(scene: Scene) -> None:
    job = _running(scene)
    scene.silence()
    assert scene.row(job).state is State.NEW
    scene.checkpointed(job, 1)
    assert scene.row(job).state is State.SAVED
    assert scene.beat("a", (job, 1)).orders == ("go-on",)
    assert scene.row(job).state is State.RUNNING
    scene.checkpointed(job, 1, number=2)
    scene.saved(job, 1, number=3)
    assert scene.named(job) == {(1, 3), (1, 2)}


def test_an_attempt_that_cannot_save_at_its_end_falls_back_on_its_periodic_save(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1, number=3)
    scene.given_back(job, 1, Why.SAVE_FAILED, "disk full")
    assert scene.row(job).state is State.SAVED
    assert scene.detail(job).events[-1].detail == "goes on from generation 1/3"


def test_the_last_periodic_save_may_be_the_one_that_the_attempt_ends_with(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1)
    scene.saved(job, 1)
    before = scene.everything()
    scene.saved(job, 1)
    assert scene.everything() == before
    assert (scene.row(job).state, scene.endings(job)) == (State.SAVED, ["saved"])


def test_a_periodic_save_shows_that_the_job_does_not_kill_its_agents(scene: Scene) -> None:
    job = _running(scene)
    for name in ("b", "c", "d"):
        scene.checkpointed(job, scene.row(job).attempt)
        scene.silence()
        scene.claim_one(scene.agent(name))
    scene.silence()
    assert not scene.row(job).held


def test_a_periodic_save_shows_how_the_time_was_spent_so_far(scene: Scene) -> None:
    job = _running(scene)
    scene.checkpointed(job, 1)
    scene.now_s += LEASE_S + 1
    scene.expire()
    (attempt,) = scene.detail(job).attempts
    assert (attempt.ending, attempt.started_s, attempt.compute_s, attempt.save_s) == ("lost", 1.0, 30.0, 3.0)


@pytest.mark.parametrize("end", ["cancel", "complete"])
def test_a_complete_job_takes_no_periodic_save(scene: Scene, end: str) -> None:
    job = _running(scene)
    if end == "cancel":
        scene.cancel(job)
    else:
        scene.completed(job, 1)
    before = scene.everything()
    with pytest.raises(NotCurrent, match="it has ended"):
        scene.checkpointed(job, 1)
    assert scene.everything() == before
