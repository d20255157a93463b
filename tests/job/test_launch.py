"""The checks before anything of the node is touched."""

import dataclasses
import hashlib
import threading
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.agent.pretended_runtime import PretendedRuntime

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveMissing, StorageError
from gleaner.agent.common.clock import SystemClock
from gleaner.agent.common.limiter import Limiter
from gleaner.agent.job import job_checkpoints as stored
from gleaner.agent.job import lifecycle
from gleaner.agent.job.context import AgentContext
from gleaner.agent.job.inputs import Inputs
from gleaner.agent.job.job_checkpoints import JobCheckpoints
from gleaner.agent.job.launch import launch_job, spec_of
from gleaner.agent.job.url_inputs import UrlInputs
from gleaner.agent.job_spec import JobSpec, SelfSave
from gleaner.agent.messages import Assignment, Checkpoint, ReturnReason, Way
from gleaner.agent.node.facts import node_facts, node_images
from gleaner.agent.reporting.client import ControlRefused, Outbox
from gleaner.agent.reporting.job_log import Mark
from gleaner.agent.runtime.images import IMAGE_PART, image_key
from gleaner.agent.runtime.interface import ContainerId, RuntimeFault
from gleaner.agent.timing.save_cost import SaveEstimates


def _refuse(*_: object) -> Any:
    raise ControlRefused(422, "submit its file again")


class Node:
    """A node with these processor features, on a storage that it shares with others."""

    def __init__(self, place: Path, storage: FolderStorage, *features: str, can_save: bool = True) -> None:
        self.runtime = PretendedRuntime()
        facts = node_facts(self.runtime.facts(), cpus=4, memory_mib=1000)
        self.context = AgentContext(
            agent="a1",
            slurm_job=None,
            facts=facts.model_copy(update={"cpu_features": features}),
            runtime=self.runtime,
            storage=storage,
            work=place,
            outbox=Outbox(lambda _path, _body: ""),
            reports=place / "reports",
            estimates=SaveEstimates(Way.CRIU, at_once=1),
            saves=Limiter(1),
            begins=Limiter(1),
            can_save=can_save,
            end_s=lambda: time.time() + 100,
            clock=SystemClock(),
            hard_stop_s=lambda: time.time() + 100,
            inputs=Inputs(place, storage, reserve_bytes=0, clock=SystemClock()),
            url_inputs=UrlInputs(place, storage, SystemClock(), _refuse, _refuse),
        )
        self.folder = place / "job"

    def launch_job(
        self, *, hurried: bool = False, **given: object
    ) -> tuple[lifecycle.Started | lifecycle.NotStarted, JobCheckpoints]:
        of_spec = JobSpec.model_fields.keys() - {"inputs", "memory_mib"}
        spec: dict[str, object] = {"name": "j", "image": "i", "command": ("count", "100000")}
        spec |= {name: value for name, value in given.items() if name in of_spec}
        plain = {"job": 7, "attempt": 1, "group": "g", "memory_mib": 64, "spec": JobSpec.model_validate(spec)}
        others = {name: value for name, value in given.items() if name not in of_spec}
        assignment = Assignment.model_validate(plain | others)
        stored = JobCheckpoints(self.context.storage, assignment, self.context.facts, self.folder)
        if hurried:
            stored.stop_waiting.set()
        return launch_job(self.context, assignment, stored), stored

    def started(self, **given: Any) -> tuple[ContainerId, JobCheckpoints]:
        """Launch a job that starts."""
        begun, stored = self.launch_job(**given)
        assert isinstance(begun, lifecycle.Started), begun
        return begun.container, stored

    def refused(self, **given: Any) -> lifecycle.NotStarted:
        """Launch a job that does not start, of which nothing stays; return the reason, which is one line."""
        was_untouched = self.is_untouched()
        begun, _ = self.launch_job(**given)
        assert isinstance(begun, lifecycle.NotStarted)
        assert "\n" not in begun.detail
        assert self.is_untouched() or not was_untouched
        return begun

    def saved(self) -> Checkpoint:
        container, stored = self.started()
        self.runtime.pause(container)
        return stored.save_memory(self.runtime, container, lambda: Mark(0, {})).checkpoint

    def is_untouched(self) -> bool:
        used = self.runtime.memory_bytes(ContainerId("c1")) if self.runtime._processes else None
        return not used and not self.folder.exists() and self.runtime.restores == 0


def test_home_is_the_jobs_folder_unless_the_job_says_otherwise(storage: FolderStorage, tmp_path: Path) -> None:
    node = Node(tmp_path, storage, "sse")
    for given, home in (({}, "/job"), ({"HOME": "/tmp/me", "A": "b"}, "/tmp/me")):
        _, stored = node.launch_job(environment=given)
        made = spec_of(node.context, stored.assignment, stored)
        assert made.environment == {**given, "HOME": home}


def test_a_checkpoint_that_demands_what_the_node_lacks_is_refused_and_not_harmed(
    storage: FolderStorage, tmp_path: Path
) -> None:
    (tmp_path / "new").mkdir()
    (tmp_path / "old").mkdir()
    checkpoint = Node(tmp_path / "new", storage, "amx", "sse").saved()
    old = Node(tmp_path / "old", storage, "sse")
    begun = old.refused(attempt=2, checkpoint=checkpoint)
    assert begun.why is ReturnReason.INCOMPATIBLE
    assert "CPU feature amx" in begun.detail
    Node(tmp_path / "new", storage, "amx", "avx", "sse").started(attempt=3, checkpoint=checkpoint)


def test_a_folder_alone_fits_everywhere_and_its_command_is_started_anew(storage: FolderStorage, tmp_path: Path) -> None:
    how = SelfSave()
    first = Node(tmp_path, storage, "amx")
    container, stored = first.started(saves_itself=how)
    first.runtime.pause(container)
    (first.folder / "state").write_text("17")
    checkpoint = stored.save_folder().checkpoint
    other = Node(tmp_path / "other", storage, "sse", can_save=False)
    other.started(attempt=2, checkpoint=checkpoint, saves_itself=how)
    assert other.runtime.restores == 0
    assert (other.folder / "state").read_text() == "17"


def test_a_node_that_cannot_save_memory_begins_nothing_that_would_need_it(
    storage: FolderStorage, tmp_path: Path
) -> None:
    node = Node(tmp_path, storage, can_save=False)
    assert node.refused().why is ReturnReason.INCOMPATIBLE
    node.started(saves_itself=SelfSave())


def test_a_storage_that_fails_is_not_taken_for_a_fault_of_the_node(storage: FolderStorage, tmp_path: Path) -> None:
    checkpoint = Node(tmp_path / "first", storage).saved()
    node = Node(tmp_path / "second", FolderStorage(tmp_path / "not mounted"))
    assert node.refused(attempt=2, checkpoint=checkpoint).why is ReturnReason.STORAGE_FAULT
    begun, _ = node.launch_job(image="impossible")
    assert isinstance(begun, lifecycle.NotStarted)
    assert begun.why is ReturnReason.NODE_FAULT


def test_an_image_that_the_site_does_not_allow_is_refused_before_anything_is_touched(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    node.context = dataclasses.replace(node.context, images_allowed=("registry.site/physics/*",))
    for image in ("registry.site/chemistry/x", "i", "sha256:" + "0" * 64):
        begun = node.refused(image=image)
        assert begun.why is ReturnReason.IMAGE_REFUSED
        assert image in begun.detail
        assert "images_allowed" in begun.detail
    node.started(image="registry.site/physics/x")


def test_what_was_saved_is_not_restored_with_an_image_that_is_no_longer_allowed(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    checkpoint = node.saved()
    node.context = dataclasses.replace(node.context, images_allowed=())
    assert node.refused(checkpoint=checkpoint).why is ReturnReason.IMAGE_REFUSED
    assert node.runtime.restores == 0


def an_image(storage: FolderStorage, content: bytes = b"layers", part: str = IMAGE_PART) -> dict[str, Any]:
    """A pushed image in the storage, and what an assignment says of it."""
    image_id = f"sha256:{hashlib.sha256(content).hexdigest()}"
    with storage.draft(image_key(image_id)) as draft:
        draft.add(part, [content])
        published = draft.publish({})
    return {"image": "pi:1", "image_id": image_id, "image_digest": published.digest}


def test_a_pushed_image_is_taken_in_from_the_storage_once_though_the_list_does_not_name_it(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    node.context = dataclasses.replace(node.context, images_allowed=())
    given = an_image(storage)
    for _ in range(2):
        node.started(**given)
    assert node.runtime.images == {given["image_id"]: b"layers"}
    assert node.runtime.loads == 1


def test_a_pushed_image_is_refused_where_the_admin_says_so_before_anything_is_touched(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node = Node(tmp_path, storage)
    node.context = dataclasses.replace(node.context, images_allowed=("*",), images_pushed=False)
    begun = node.refused(**an_image(storage))
    assert begun.why is ReturnReason.IMAGE_REFUSED
    assert begun.detail.startswith("the image pi:1 may not run here: images_pushed")
    assert node.runtime.loads == 0


def test_a_job_whose_folder_is_not_on_the_node_is_returned_before_anything_is_touched(
    tmp_path: Path, storage: FolderStorage
) -> None:
    node, gone = Node(tmp_path, storage), "/mnt/not-there"
    assert node.refused(mounts=[gone]) == lifecycle.NotStarted(
        ReturnReason.MOUNT_MISSING, f"{gone}: it is not among the mounts of {node.context.facts.node}"
    )
    facts = node.context.facts.model_copy(update={"mounts": ("/opt", gone)})
    node.context = dataclasses.replace(node.context, facts=facts)
    assert node.refused(mounts=["/opt", gone]) == lifecycle.NotStarted(
        ReturnReason.MOUNT_MISSING, f"{gone}: there is no such folder ({node.context.facts.node})"
    )
    _, stored = node.started(mounts=["/opt"])
    assert spec_of(node.context, stored.assignment, stored).mounts == ("/opt",)


def test_a_node_says_which_of_the_allowed_folders_it_has() -> None:
    facts = node_facts(PretendedRuntime().facts(), cpus=1, memory_mib=1, mounts=("/opt/not-there", "/opt", "/tmp/x"))
    assert facts.mounts == ("/opt",)


@pytest.mark.parametrize("brings", [True, False])
def test_a_node_says_which_images_jobs_may_run_there_and_which_it_brings(brings: bool) -> None:
    here = dataclasses.replace(PretendedRuntime().facts(), images=("gleaner/pi:1", "other/pi:1"), brings_images=brings)
    images = node_images(here, allowed=("gleaner/*",))
    assert (images.names, images.brings) == (("gleaner/pi:1",), ("gleaner/*",) if brings else ())


def test_a_pushed_image_that_cannot_be_taken_in_says_why_and_blames_the_right_one(
    tmp_path: Path, storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = Node(tmp_path, storage)

    def why(**given: Any) -> tuple[ReturnReason | None, str]:
        begun = node.refused(**given)
        return begun.why, begun.detail

    given = an_image(storage)
    assert why(**an_image(storage, b"no image at all"))[0] is ReturnReason.IMAGE_REFUSED
    assert why(**an_image(storage, b"other", part="other"))[0] is ReturnReason.IMAGE_MISSING
    assert why(**given | {"image_digest": f"sha256:{'0' * 64}"}) == (
        ReturnReason.IMAGE_MISSING,
        mock.ANY,
    )
    (pack,) = (tmp_path / "storage" / "images" / given["image_id"][7:]).glob("*.pack")
    with monkeypatch.context() as patch:
        patch.setattr(storage, "open", mock.Mock(side_effect=StorageError("the storage is away")))
        assert why(**given) == (ReturnReason.STORAGE_FAULT, "the storage is away")
        patch.setattr(node.runtime, "has_image", mock.Mock(side_effect=RuntimeFault("the engine is away")))
        assert why(**given) == (ReturnReason.NODE_FAULT, "the engine is away")
    pack.write_bytes(b"x" * pack.stat().st_size)
    said, detail = why(**given)
    assert said is ReturnReason.IMAGE_MISSING
    assert detail.startswith("pi:1: the pushed image sha256:")
    assert not node.runtime.images


def test_a_further_image_takes_the_place_of_the_one_that_was_not_used_for_longest(
    tmp_path: Path, storage: FolderStorage
) -> None:
    """Each image has six bytes, and there is room for eighteen."""
    node = Node(tmp_path, storage)
    node.context = dataclasses.replace(node.context, images_limit_bytes=18)
    given = [an_image(storage, content) for content in (b"first-", b"second", b"third-", b"fourth", b"fifth-")]
    names: list[str] = [one["image_id"] for one in given]
    for one in given[:3]:
        node.started(**one)
    node.runtime.held_images = {names[0]}
    node.runtime.used_s = {names[2]: time.time()}  # both others may go, the first does not
    node.started(**given[3])
    assert list(node.runtime.images) == [names[0], names[2], names[3]]
    node.runtime.held_images = {names[0], names[3]}
    full = node.refused(**given[4])
    assert full.why is ReturnReason.NODE_LACKS
    assert full.detail.startswith("pi:1: there is no room for an image of 5.59e-09 GiB")
    assert "(images_limit_gib) those in use take" in full.detail
    large = node.refused(**an_image(storage, bytes(19)))
    assert large.why is ReturnReason.IMAGE_REFUSED
    assert "all images of a node may take" in large.detail
    assert list(node.runtime.images) == [names[0], names[2], names[3]]


def test_a_checkpoint_that_this_node_does_not_see_yet_is_looked_for_again(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An NFS client that asked too early believes for a minute that it is not there; its job must not lose it."""
    monkeypatch.setattr(stored, "MISSING_EVERY_S", 0.05)
    made = Node(tmp_path / "n1", storage, "avx").saved()
    visible, hidden = tmp_path / "storage" / "jobs" / "7", tmp_path / "hidden"
    visible.rename(hidden)
    looked = threading.Event()
    real = storage.open

    def look(key: str, digest: str) -> FolderArchive:
        try:
            return real(key, digest)
        except ArchiveMissing:
            looked.set()
            raise

    monkeypatch.setattr(storage, "open", look)

    def show() -> None:
        looked.wait(60)
        hidden.rename(visible)

    showing = threading.Thread(target=show)
    showing.start()
    Node(tmp_path / "n2", storage, "avx").started(attempt=2, checkpoint=made)
    showing.join()


def test_a_checkpoint_that_stays_missing_is_called_broken_only_after_a_while(
    storage: FolderStorage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "MISSING_EVERY_S", 0.05)
    monkeypatch.setattr(stored, "MISSING_FOR_S", 0.5)
    made = Node(tmp_path / "n1", storage, "avx").saved()
    storage.delete("jobs/7/attempt-1/checkpoint-1")
    node = Node(tmp_path / "n2", storage, "avx")
    began_s = time.monotonic()
    assert node.refused(attempt=2, checkpoint=made).why is ReturnReason.CHECKPOINT_BROKEN
    assert time.monotonic() - began_s >= 0.5


def test_where_there_is_no_time_to_look_again_it_is_the_storage_that_failed(
    storage: FolderStorage, tmp_path: Path
) -> None:
    made = Node(tmp_path / "n1", storage, "avx").saved()
    storage.delete("jobs/7/attempt-1/checkpoint-1")
    node = Node(tmp_path / "n2", storage, "avx")
    assert node.refused(attempt=2, checkpoint=made, hurried=True).why is ReturnReason.STORAGE_FAULT


def test_what_is_there_and_damaged_is_broken_at_once(storage: FolderStorage, tmp_path: Path) -> None:
    made = Node(tmp_path / "n1", storage, "avx").saved()
    (tmp_path / "storage/jobs/7/attempt-1/checkpoint-1/manifest.json").write_text("{}")
    node = Node(tmp_path / "n2", storage, "avx")
    assert node.refused(attempt=2, checkpoint=made).why is ReturnReason.CHECKPOINT_BROKEN
