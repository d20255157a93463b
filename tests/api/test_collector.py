"""What the collector deletes, and above all what it does not."""

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import select
from tests.api.house import House, detail

from gleaner.agent.protocol import Beat, Farewell
from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.protocol import Draft, StorageError, generation_key, output_key
from gleaner.control.collector import Found, collect, is_garbage, sweep_drafts
from gleaner.control.queue import agents, moves, rooms
from gleaner.control.queue.engine import connect, transaction
from gleaner.control.queue.reads import Kept
from gleaner.control.queue.tables import AGENT
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def house(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[House]:
    url = request.getfixturevalue(f"{request.param}_url")
    folder = tmp_path / "storage"
    storage = FolderStorage(folder)
    storage.prepare()
    settings = Settings(queue=QueueSettings(url=url), storage=StorageSettings(folder=folder))
    opened = House(Site(settings, connect(url), storage, leads_until_s=math.inf), storage)
    yield opened
    opened.close()
    opened.site.engine.dispose()


def _collect(house: House) -> list[str]:
    return collect(house.site.engine, house.storage, house.now_s)


def _lose(house: House, agent: str) -> None:
    with transaction(house.site.engine) as db:
        moves.lose(db, agent, now_s=house.now_s, losses_until_held=9, detail="silent")


def test_a_paused_agent_that_wakes_up_late_leaves_only_garbage(house: House) -> None:
    job = house.user.submit()
    paused, second, third = house.agent("n1"), house.agent("n2"), house.agent("n3")
    assert paused.claim()[0]["attempt"] == 1
    _lose(house, paused.name)  # silent for its lease, but alive
    assert second.claim()[0]["attempt"] == 2
    assert second.saved(job, 2, house.publish_generation(job, 2)).status_code == 204
    assert third.claim()[0]["attempt"] == 3
    assert third.saved(job, 3, house.publish_generation(job, 3)).status_code == 204
    assert _collect(house) == []

    stale = house.publish_generation(job, 1)  # it wakes up, and publishes before it hears anything
    assert "attempt 3 is the latest" in detail(paused.saved(job, 1, stale), 409)

    assert _collect(house) == [generation_key(job, 1, 1)]
    assert house.storage.keys("jobs") == [generation_key(job, 2, 1), generation_key(job, 3, 1)]
    assert paused.report(job, 1, "given-back", {"why": "unstarted"}).status_code == 409


def test_what_the_current_attempt_has_published_but_not_reported_is_kept(house: House) -> None:
    job = house.user.submit()
    agent = house.agent()
    agent.claim()
    published = house.publish_generation(job, 1)
    assert _collect(house) == []
    _lose(house, agent.name)  # lost, but nobody has claimed the job since: its report still counts
    assert _collect(house) == []
    assert agent.saved(job, 1, published).status_code == 204
    assert _collect(house) == []


def test_the_last_two_generations_stay(house: House) -> None:
    job = house.user.submit()
    agent = house.agent()
    for attempt in range(1, 5):
        agent.claim()
        assert agent.saved(job, attempt, house.publish_generation(job, attempt)).status_code == 204
    assert _collect(house) == [generation_key(job, 1, 1), generation_key(job, 2, 1)]
    assert house.storage.keys("jobs") == [generation_key(job, 3, 1), generation_key(job, 4, 1)]
    assert _collect(house) == []


def test_of_periodic_saves_the_last_two_stay_and_what_is_not_reported_yet(house: House) -> None:
    job = house.user.submit()
    agent = house.agent()
    agent.claim()
    for number in (1, 2, 3):
        published = house.publish_generation(job, 1, number)
        assert agent.checkpointed(job, 1, published, number).status_code == 204
    last = house.publish_generation(job, 1, 4)
    assert _collect(house) == [generation_key(job, 1, 1)]
    assert house.storage.keys("jobs") == [generation_key(job, 1, number) for number in (2, 3, 4)]
    assert agent.saved(job, 1, last, number=4).status_code == 204
    assert _collect(house) == [generation_key(job, 1, 2)]


def test_a_complete_job_keeps_its_output_and_nothing_else(house: House) -> None:
    job = house.user.submit()
    paused, agent = house.agent("n1"), house.agent("n2")
    paused.claim()
    _lose(house, paused.name)
    agent.claim()
    agent.saved(job, 2, house.publish_generation(job, 2))
    agent.claim()
    agent.completed(job, 3, house.publish_output(job, 3))
    house.publish_output(job, 1)
    assert _collect(house) == [output_key(job, 1), generation_key(job, 2, 1)]
    assert house.user.get(f"/v1/jobs/{job}/output").content == b"tar"


def test_a_broken_generation_does_not_take_the_one_before_with_it(house: House) -> None:
    job = house.user.submit()
    agent = house.agent()
    for attempt in (1, 2):
        agent.claim()
        agent.saved(job, attempt, house.publish_generation(job, attempt))
    for attempt in (3, 4, 5):  # one node's word breaks nothing
        other = house.agent(f"n{attempt}")
        other.claim()
        other.report(job, attempt, "given-back", {"why": "generation broken"})
    assert house.user.get(f"/v1/jobs/{job}").json()["generations"][0]["attempt"] == 1
    assert _collect(house) == []  # what is called broken is set aside until the job has ended
    house.user.post(f"/v1/jobs/{job}/cancel")
    assert sorted(_collect(house)) == [generation_key(job, 1, 1), generation_key(job, 2, 1)]


def test_what_the_queue_does_not_know_is_left_alone(house: House) -> None:
    """A queue that was set up anew next to an old storage folder does not empty it."""
    job = house.user.submit()
    house.user.post(f"/v1/jobs/{job}/cancel")
    house.publish_generation(999, 1)
    house.publish_output(999, 1)
    house.publish_generation(job, 5)
    with house.storage.draft("jobs/strange") as draft:
        draft.publish({})
    assert _collect(house) == []


def test_what_a_killed_save_left_goes_as_soon_as_its_agent_has_ended(house: House) -> None:
    """25 MB a save here, a whole job's memory on a real site: not for a day."""
    house.user.submit()
    job = house.user.submit()
    live, killed = house.agent("n1"), house.agent("n2")
    assert live.claim()
    assert killed.claim()
    folder = house.site.settings.storage.folder

    def begin(writer: str) -> AbstractContextManager[Draft]:
        draft = FolderStorage(folder, writer=writer).draft(generation_key(job, 1, 1))
        draft.__enter__().add("memory", [b"x" * 100_000])
        return draft

    def swept(at_s: float) -> int:
        return sweep_drafts(house.site.engine, house.storage, at_s)

    drafts = [begin(writer) for writer in (live.name, killed.name, "not-known", "")]
    assert swept(house.now_s) == 0
    _lose(house, killed.name)  # silent, but it may live
    assert swept(house.now_s) == 0
    with transaction(house.site.engine) as db:
        end_s = db.execute(select(AGENT.c.end_s).where(AGENT.c.name == killed.name)).scalar_one()
        agents.expire(db, now_s=house.now_s + 10_000, losses_until_held=9)
        agents.beat(db, live.name, Beat(), lease_s=100, now_s=house.now_s + 10_000)
        assert agents.close_silent(db, killed.name, now_s=house.now_s + 10_001, losses_until_held=9, reason="gone")
    assert swept(end_s) == 0, "the scheduler has forgotten it; it may live, and save at its own end"
    assert swept(end_s + rooms.GONE_S + 1) == 1
    assert sorted(house.storage.writers()) == sorted([live.name, "not-known"])
    assert len(list((folder / ".drafts").iterdir())) == 3
    with transaction(house.site.engine) as db:
        agents.farewell(db, live.name, Farewell(ended_s=house.now_s, reason="bye"), now_s=house.now_s)
    assert swept(house.now_s) == 1, "it has said so itself"
    for draft in drafts:
        draft.__exit__(None, None, None)


def test_a_storage_folder_that_is_gone_deletes_nothing_and_says_so(house: House) -> None:
    folder = house.site.settings.storage.folder
    folder.rename(folder.with_name("elsewhere"))
    with pytest.raises(StorageError, match=str(folder)):
        _collect(house)


@given(
    found=st.builds(
        Found, key=st.just(""), job=st.just(1), attempt=st.integers(1, 5), number=st.none() | st.integers(1, 2)
    ),
    kept=st.builds(
        Kept,
        is_complete=st.booleans(),
        latest_attempt=st.integers(0, 5),
        generations=st.frozensets(st.tuples(st.integers(1, 5), st.integers(1, 2))),
        output_attempt=st.none() | st.integers(1, 5),
    ),
)
def test_nothing_that_is_named_or_may_still_be_named_is_garbage(found: Found, kept: Kept) -> None:
    if not is_garbage(found, kept):
        return
    assert found.attempt <= kept.latest_attempt
    if found.number is None:
        assert found.attempt != kept.output_attempt
        assert found.attempt < kept.latest_attempt
    else:
        assert kept.is_complete or (found.attempt, found.number) not in kept.generations
        is_passed = any(
            attempt == found.attempt and number > (found.number or 0) for attempt, number in kept.generations
        )
        assert kept.is_complete or found.attempt < kept.latest_attempt or is_passed
