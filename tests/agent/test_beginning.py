"""What is looked at before anything of the node is touched."""

import asyncio
import dataclasses
import threading
import time
from pathlib import Path

import pytest
from tests.agent.pretended import PretendedRuntime

from gleaner.agent import stored, task
from gleaner.agent.beginning import begin
from gleaner.agent.bench import Bench
from gleaner.agent.client import Outbox
from gleaner.agent.estimates import Estimates
from gleaner.agent.joblog import Mark
from gleaner.agent.lanes import Lanes
from gleaner.agent.node import node_facts
from gleaner.agent.protocol import Assignment, Generation, GivenBack, SelfSave, Way, Why
from gleaner.agent.runtime.protocol import ContainerId
from gleaner.agent.shell import TaskShell
from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.protocol import Parcel, ParcelMissing
from gleaner.agent.stored import Stored


class Node:
    """A node with these processor features, on a storage that it shares with others."""

    def __init__(self, place: Path, storage: FolderStorage, *features: str, can_save: bool = True) -> None:
        self.runtime = PretendedRuntime()
        facts = node_facts(self.runtime.facts(), cpus=4, memory_mib=1000)
        self.bench = Bench(
            agent="a1",
            slurm_job=None,
            facts=facts.model_copy(update={"cpu_features": features}),
            runtime=self.runtime,
            storage=storage,
            work=place,
            outbox=Outbox(lambda _path, _body: ""),
            estimates=Estimates(Way.CRIU, at_once=1),
            saves=Lanes(1),
            begins=Lanes(1),
            can_save=can_save,
            end_s=lambda: time.time() + 100,
            now_s=time.time,
            cut_s=lambda: time.time() + 100,
        )
        self.folder = place / "job"

    def begin(self, *, hurried: bool = False, **given: object) -> tuple[task.Started | task.NotStarted, Stored]:
        plain = {"job": 7, "attempt": 1, "group": "g", "name": "j", "image": "i", "cpus": 1, "memory_mib": 64}
        assignment = Assignment.model_validate({**plain, "command": ("count", "100000"), **given})
        stored = Stored(self.bench.storage, assignment, self.bench.facts, self.folder)
        if hurried:
            stored.hurry.set()
        return begin(self.bench, assignment, stored), stored

    def saved(self) -> Generation:
        begun, stored = self.begin()
        assert isinstance(begun, task.Started)
        self.runtime.pause(begun.container)
        return stored.save_memory(self.runtime, begun.container, lambda: Mark(0, {})).generation

    def is_untouched(self) -> bool:
        used = self.runtime.usage([ContainerId("c1")]) if self.runtime._processes else {}
        return not used and not self.folder.exists() and self.runtime.restores == 0


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    made = FolderStorage(tmp_path / "storage")
    made.prepare()
    return made


def test_a_generation_that_demands_what_the_node_lacks_is_refused_and_not_harmed(
    storage: FolderStorage, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    generation = Node(tmp_path / "new", storage, "amx", "sse").saved()
    old = Node(tmp_path / "old", storage, "sse")
    begun, _ = old.begin(attempt=2, generation=generation)
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.INCOMPATIBLE
    assert "CPU feature amx" in begun.detail
    assert old.is_untouched()
    again, _ = Node(tmp_path / "new", storage, "amx", "avx", "sse").begin(attempt=3, generation=generation)
    assert isinstance(again, task.Started)


def test_a_folder_alone_fits_everywhere_and_its_command_is_started_anew(storage: FolderStorage, tmp_path: Path) -> None:
    how = SelfSave()
    first = Node(tmp_path, storage, "amx")
    begun, stored = first.begin(saves_itself=how)
    assert isinstance(begun, task.Started)
    first.runtime.pause(begun.container)
    (first.folder / "state").write_text("17")
    generation = stored.save_folder().generation
    other = Node(tmp_path / "other", storage, "sse", can_save=False)
    begun, _ = other.begin(attempt=2, generation=generation, saves_itself=how)
    assert isinstance(begun, task.Started)
    assert other.runtime.restores == 0
    assert (other.folder / "state").read_text() == "17"


def test_a_node_that_cannot_save_memory_begins_nothing_that_would_need_it(
    storage: FolderStorage, tmp_path: Path
) -> None:
    node = Node(tmp_path, storage, can_save=False)
    begun, _ = node.begin()
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.INCOMPATIBLE
    assert node.is_untouched()
    assert isinstance(node.begin(saves_itself=SelfSave())[0], task.Started)


def test_a_storage_that_fails_is_not_taken_for_a_fault_of_the_node(storage: FolderStorage, tmp_path: Path) -> None:
    generation = Node(tmp_path / "first", storage).saved()
    node = Node(tmp_path / "second", FolderStorage(tmp_path / "not mounted"))
    begun, _ = node.begin(attempt=2, generation=generation)
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.STORAGE_FAULT
    assert node.is_untouched()
    begun, _ = node.begin(image="impossible")
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.NODE_FAULT


def test_an_image_that_the_site_does_not_allow_is_refused_before_anything_is_touched(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    node.bench = dataclasses.replace(node.bench, images_allowed=("registry.site/physics/*",))
    for image in ("registry.site/chemistry/x", "i", "sha256:" + "0" * 64):
        begun, _ = node.begin(image=image)
        assert isinstance(begun, task.NotStarted)
        assert begun.why is Why.IMAGE_REFUSED
        assert image in begun.detail
        assert "images_allowed" in begun.detail
        assert "\n" not in begun.detail
        assert node.is_untouched()
    begun, _ = node.begin(image="registry.site/physics/x")
    assert isinstance(begun, task.Started)


def test_what_was_saved_is_not_restored_with_an_image_that_is_no_longer_allowed(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    generation = node.saved()
    node.bench = dataclasses.replace(node.bench, images_allowed=())
    begun, _ = node.begin(generation=generation)
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.IMAGE_REFUSED
    assert node.runtime.restores == 0


def test_a_generation_that_this_node_does_not_see_yet_is_looked_for_again(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client that asked too early believes for a minute that it is not there; its job must not lose it."""
    monkeypatch.setattr(stored, "MISSING_EVERY_S", 0.05)
    made = Node(tmp_path / "n1", storage, "avx").saved()
    visible, hidden = tmp_path / "storage" / "jobs" / "7", tmp_path / "hidden"
    visible.rename(hidden)
    looked = threading.Event()
    real = storage.open

    def look(key: str, digest: str) -> Parcel:
        try:
            return real(key, digest)
        except ParcelMissing:
            looked.set()
            raise

    monkeypatch.setattr(storage, "open", look)

    def show() -> None:
        looked.wait(60)
        hidden.rename(visible)

    showing = threading.Thread(target=show)
    showing.start()
    begun, _ = Node(tmp_path / "n2", storage, "avx").begin(attempt=2, generation=made)
    showing.join()
    assert isinstance(begun, task.Started)


def test_a_generation_that_stays_missing_is_called_broken_only_after_a_while(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MISSING_EVERY_S", 0.05)
    monkeypatch.setattr(stored, "MISSING_FOR_S", 0.5)
    made = Node(tmp_path / "n1", storage, "avx").saved()
    storage.delete("jobs/7/attempt-1/generation-1")
    node = Node(tmp_path / "n2", storage, "avx")
    began_s = time.monotonic()
    begun, _ = node.begin(attempt=2, generation=made)
    assert time.monotonic() - began_s >= 0.5
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.GENERATION_BROKEN
    assert node.is_untouched()


def test_where_there_is_no_time_to_look_again_it_is_the_storage_that_failed(
    storage: FolderStorage, tmp_path: Path
) -> None:
    made = Node(tmp_path / "n1", storage, "avx").saved()
    storage.delete("jobs/7/attempt-1/generation-1")
    node = Node(tmp_path / "n2", storage, "avx")
    begun, _ = node.begin(attempt=2, generation=made, hurried=True)
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.STORAGE_FAULT
    assert node.is_untouched()


def test_what_is_there_and_damaged_is_broken_at_once(storage: FolderStorage, tmp_path: Path) -> None:
    made = Node(tmp_path / "n1", storage, "avx").saved()
    (tmp_path / "storage/jobs/7/attempt-1/generation-1/manifest.json").write_text("{}")
    begun, _ = Node(tmp_path / "n2", storage, "avx").begin(attempt=2, generation=made)
    assert isinstance(begun, task.NotStarted)
    assert begun.why is Why.GENERATION_BROKEN


def test_a_job_that_was_told_to_leave_while_it_looked_for_its_generation_is_no_fault_of_the_node(
    storage: FolderStorage, tmp_path: Path
) -> None:
    generation = Node(tmp_path / "first", storage).saved()
    node = Node(tmp_path / "second", storage)
    lost = {"job": 8, "attempt": 2, "group": "g", "name": "j", "image": "i", "cpus": 1, "memory_mib": 64}
    shell = TaskShell(
        node.bench, Assignment.model_validate({**lost, "command": ("count", "9"), "generation": generation})
    )

    async def told_to_leave() -> None:
        running = asyncio.create_task(shell.run())
        await asyncio.sleep(0)
        shell.feed(task.AgentEnds())
        await running

    asyncio.run(told_to_leave())
    (report,) = node.bench.outbox._waiting
    assert isinstance(report.message, GivenBack)
    assert report.message.why is Why.STORAGE_FAULT
    assert not shell.node_fault
