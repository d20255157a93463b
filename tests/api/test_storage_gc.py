"""The removal of checkpoints: which are removed and, above all, which are not."""

import math
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, literal, select
from structlog.testing import capture_logs
from tests.api.api_harness import ApiHarness, control_on, detail
from tests.api.test_images import pushed
from tests.api.test_inputs import put
from tests.made_images import MadeImage

from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError, checkpoint_key
from gleaner.agent.checkpoints.storage_root import storage_number
from gleaner.agent.messages import Deregistration, Heartbeat
from gleaner.agent.privileged.common.agent_leftovers import LOG_AGE_S
from gleaner.control.daemon.storage_gc import (
    DRAFT_AGE_S,
    ORPHAN_AGE_S,
    JobArchive,
    is_garbage,
    remove_archives,
    remove_drafts,
    remove_garbage,
    remove_orphans,
)
from gleaner.control.queue import agents, attempt_reports, leader, queries
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import NotLeading
from gleaner.control.queue.queries import Kept
from gleaner.control.queue.tables import AGENT


@pytest.fixture
def harness(queue_engine: Engine, tmp_path: Path) -> Iterator[ApiHarness]:
    """Control on each database."""
    with control_on(queue_engine, tmp_path) as opened:
        yield opened


def _collect(harness: ApiHarness) -> list[str]:
    return remove_archives(harness.state)


def _lose(harness: ApiHarness, agent: str) -> None:
    with transaction(harness.state.engine) as db:
        attempt_reports.lose(db, agent, now_s=harness.now_s, losses_until_held=9, detail="silent")


def test_a_paused_agent_that_wakes_up_late_leaves_only_garbage(harness: ApiHarness) -> None:
    job = harness.user.submit()
    paused, second, third = harness.agent("n1"), harness.agent("n2"), harness.agent("n3")
    assert paused.claim()[0]["attempt"] == 1
    _lose(harness, paused.name)  # silent for its lease, but alive
    assert second.claim()[0]["attempt"] == 2
    assert second.saved(job, 2, harness.publish_checkpoint(job, 2)).status_code == 204
    assert third.claim()[0]["attempt"] == 3
    assert third.saved(job, 3, harness.publish_checkpoint(job, 3)).status_code == 204
    assert _collect(harness) == []

    stale = harness.publish_checkpoint(job, 1)  # it wakes up, and publishes before it hears anything
    assert "attempt 3 is the latest" in detail(paused.saved(job, 1, stale), 409)

    assert _collect(harness) == [checkpoint_key(job, 1, 1)]
    assert harness.storage.keys("jobs") == [checkpoint_key(job, 2, 1), checkpoint_key(job, 3, 1)]
    assert paused.report(job, 1, "return", {"why": "unstarted"}).status_code == 409


def test_what_the_current_attempt_has_published_but_not_reported_is_kept(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent()
    agent.claim()
    published = harness.publish_checkpoint(job, 1)
    assert _collect(harness) == []
    _lose(harness, agent.name)  # lost, but nobody has claimed the job since: its report still counts
    assert _collect(harness) == []
    assert agent.saved(job, 1, published).status_code == 204
    assert _collect(harness) == []


def test_of_periodic_saves_the_last_two_stay_and_what_is_not_reported_yet(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent()
    agent.claim()
    for number in (1, 2, 3):
        published = harness.publish_checkpoint(job, 1, number)
        assert agent.checkpointed(job, 1, published, number).status_code == 204
    last = harness.publish_checkpoint(job, 1, 4)
    assert _collect(harness) == [checkpoint_key(job, 1, 1)]
    assert harness.storage.keys("jobs") == [checkpoint_key(job, 1, number) for number in (2, 3, 4)]
    assert agent.saved(job, 1, last, number=4).status_code == 204
    assert _collect(harness) == [checkpoint_key(job, 1, 2)]


def test_what_the_queue_does_not_know_is_left_alone(harness: ApiHarness) -> None:
    """A queue that was set up anew next to an old storage folder does not empty it."""
    job, agent = harness.user.submit(), harness.agent()
    agent.claim()
    agent.completed(job, 1)
    harness.publish_checkpoint(999, 1)
    harness.publish_output(999, 1)
    harness.publish_checkpoint(job, 5)
    for key in ("jobs/strange", f"jobs/0{job}/attempt-1/checkpoint-1"):
        with harness.storage.draft(key) as draft:
            draft.publish({})
    assert _collect(harness) == []


def test_what_a_killed_save_left_goes_as_soon_as_its_agent_has_ended(harness: ApiHarness) -> None:
    """25 MB a save here, a whole job's memory on a real site: not for a day."""
    harness.user.submit()
    job = harness.user.submit()
    live, killed = harness.agent("n1"), harness.agent("n2")
    assert live.claim()
    assert killed.claim()
    folder = harness.state.settings.storage.folder

    def begin(writer: str) -> AbstractContextManager[FolderDraft]:
        draft = FolderStorage(folder, writer=writer).draft(checkpoint_key(job, 1, 1))
        draft.__enter__().add("memory", [b"x" * 100_000])
        return draft

    def swept(at_s: float) -> int:
        return remove_drafts(harness.state, at_s)

    drafts = [begin(writer) for writer in (live.name, killed.name, "not-known", "")]
    assert swept(harness.now_s) == 0
    # The same loop reads by which number nodes know the folder.
    number = storage_number(folder)
    said = harness.client.get("/health").json()
    assert (said["storage_id"], said["storage_inode"]) == (number.id, number.inode)
    assert said["storage_changed_s"] == number.changed_s
    assert number.id != ""
    _lose(harness, killed.name)  # silent, but it may live
    assert swept(harness.now_s) == 0
    with transaction(harness.state.engine) as db:
        end_s = db.execute(select(AGENT.c.end_s).where(AGENT.c.name == killed.name)).scalar_one()
        agents.expire(db, killed.name, now_s=harness.now_s + 10_000, losses_until_held=9)
        agents.record_heartbeat(db, live.name, Heartbeat(), lease_s=100, now_s=harness.now_s + 10_000)
        assert agents.close_silent(db, killed.name, now_s=harness.now_s + 10_001, losses_until_held=9)
    assert swept(end_s) == 0, "the scheduler has forgotten it; it may live, and save at its own end"
    assert swept(end_s + queries.GONE_S + 1) == 1
    assert sorted(harness.storage.writers()) == sorted([live.name, "not-known"])
    assert len(list((folder / ".drafts").iterdir())) == 3
    with transaction(harness.state.engine) as db:
        last = Deregistration(ended_s=harness.now_s, reason="bye")
        agents.record_deregistration(db, live.name, last, now_s=harness.now_s)
    assert swept(harness.now_s) == 1, "it has said so itself"
    for draft in drafts:
        draft.__exit__(None, None, None)


def test_stored_images_and_inputs_without_a_row_go_after_a_day(harness: ApiHarness) -> None:
    """An upload may break off before its row is written, and a removal after its row has gone."""

    def stored() -> set[str]:
        return {*harness.storage.keys("images"), *harness.storage.keys("inputs")}

    def store(key: str) -> str:
        with harness.storage.draft(key) as draft:
            draft.publish({})
        return key

    def removed(after_s: float) -> int:
        harness.state.steady_clock = lambda: after_s
        return remove_orphans(harness.state)

    pushed(harness.user, MadeImage())
    assert put(harness.user).status_code == 201
    with_rows = stored()
    assert len(with_rows) == 2
    first = {store(f"images/{'1' * 64}"), store(f"inputs/atlas/{'2' * 64}")}
    assert removed(0) == 0, "its row may be written this moment"
    late = store(f"images/{'3' * 64}")
    assert removed(ORPHAN_AGE_S - 1) == 0
    assert stored() == with_rows | first | {late}
    harness.publish_checkpoint(1000, 1)
    assert removed(ORPHAN_AGE_S) == 0, "there are archives of another queue's jobs"
    harness.storage.delete(checkpoint_key(1000, 1, 1))
    assert removed(ORPHAN_AGE_S) == 2
    assert stored() == with_rows | {late}
    assert removed(2 * ORPHAN_AGE_S) == 1
    assert stored() == with_rows
    assert harness.state.orphans_since_s == {}


def test_a_program_that_leads_no_longer_removes_nothing_more(harness: ApiHarness, tmp_path: Path) -> None:
    """It may have stood still: another program leads, and knows by now what this one takes for garbage."""

    class Slow(FolderStorage):
        def delete(self, key: str) -> None:
            super().delete(key)
            harness.state.leads_until_s = 0.0

        def set_aside(self, key: str) -> None:
            super().set_aside(key)
            harness.state.leads_until_s = 0.0

    job, agent = harness.user.submit(), harness.agent()
    agent.claim()
    for number in (1, 2, 3):
        harness.publish_checkpoint(job, 1, number)
    assert agent.completed(job, 1).status_code == 204
    harness.state.storage = Slow(tmp_path / "storage")
    with pytest.raises(NotLeading):
        remove_archives(harness.state)
    assert checkpoint_key(job, 1, 1) not in (left := harness.storage.keys("jobs"))

    for digit in "12":
        with harness.storage.draft(f"images/{digit * 64}") as draft:
            draft.publish({})
    harness.state.leads_until_s, harness.state.steady_clock = math.inf, lambda: 0.0
    assert remove_orphans(harness.state) == 0
    harness.state.steady_clock = lambda: ORPHAN_AGE_S
    with pytest.raises(NotLeading):
        remove_orphans(harness.state)
    assert harness.storage.keys("images") == [f"images/{'2' * 64}"]

    harness.state.leads_until_s = math.inf  # as its own clock has it
    with transaction(harness.state.engine) as db:
        harness.state.term = leader.try_lead(db, "this one", now=literal(1000.0), term_s=1.0)
        assert leader.try_lead(db, "another", now=literal(2000.0), term_s=1.0)
    with pytest.raises(NotLeading):
        remove_archives(harness.state)
    assert harness.storage.keys("jobs") == left


def test_a_pass_removes_each_kind_of_file_by_its_own_age(harness: ApiHarness) -> None:
    now_s, folder = time.time(), harness.state.settings.storage.folder
    live = harness.agent("n1").name
    token, old, young = (folder / "agents" / name for name in ("gone/token", "old.log", "young.log"))
    of_the_living = folder / "agents" / live / "token"
    for file in (token, of_the_living, old, young):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("secret")
    os.utime(old, (now_s, now_s - LOG_AGE_S - 60))
    draft = harness.storage.draft("jobs/1/attempt-1/output")
    draft.__enter__().add("memory", [b"x"])
    with capture_logs() as said:
        remove_garbage(harness.state, now_s, by_age=True)
        remove_garbage(harness.state, now_s + DRAFT_AGE_S / 2, by_age=True)
        assert len(said) == 1
        remove_garbage(harness.state, now_s + DRAFT_AGE_S + 60, by_age=False)
        assert len(said) == 1
        remove_garbage(harness.state, now_s + DRAFT_AGE_S + 60, by_age=True)
    draft.__exit__(None, None, None)
    counts = dict.fromkeys(("archives", "inputs", "orphans", "uploads", "drafts", "hashes", "tokens", "logs"), 0)
    nothing = {"event": "garbage collected", "log_level": "info", **counts}
    assert said == [nothing | {"tokens": 1, "logs": 1}, nothing | {"drafts": 1}]
    assert [file.exists() for file in (token, of_the_living, old, young)] == [False, True, False, True]


def test_a_storage_folder_that_is_gone_deletes_nothing_and_says_so(harness: ApiHarness) -> None:
    folder = harness.state.settings.storage.folder
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(StorageError, match=str(folder)):
        _collect(harness)


@given(
    archive=st.builds(
        JobArchive, key=st.just(""), job=st.just(1), attempt=st.integers(1, 5), number=st.none() | st.integers(1, 2)
    ),
    kept=st.builds(
        Kept,
        is_complete=st.booleans(),
        latest_attempt=st.integers(0, 5),
        checkpoints=st.frozensets(st.tuples(st.integers(1, 5), st.integers(1, 2))),
        output_attempt=st.none() | st.integers(1, 5),
    ),
)
def test_nothing_that_is_named_or_may_still_be_named_is_garbage(archive: JobArchive, kept: Kept) -> None:
    if not is_garbage(archive, kept):
        return
    assert archive.attempt <= kept.latest_attempt
    if archive.number is None:
        assert archive.attempt != kept.output_attempt
        assert kept.is_complete or archive.attempt < kept.latest_attempt
    else:
        assert kept.is_complete or (archive.attempt, archive.number) not in kept.checkpoints
        is_passed = any(
            attempt == archive.attempt and number > (archive.number or 0) for attempt, number in kept.checkpoints
        )
        assert kept.is_complete or archive.attempt < kept.latest_attempt or is_passed
