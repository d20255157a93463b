"""Inputs on the node: whole before a start and before a restore, shared by jobs, and gone with the last of them."""

import shutil
import threading
from pathlib import Path

import pytest
from tests.job.test_launch import Node
from tests.made_inputs import MadeInput, packed

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.job.inputs import input_key
from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import Assignment, ReturnReason, StoredInput
from gleaner.agent.reporting.job_log import Mark

FOLDER = MadeInput(packed({"a.dat": b"1", "b.dat": b"2"}))


@pytest.fixture
def node(tmp_path: Path, storage: FolderStorage) -> Node:
    place = tmp_path / "node"
    place.mkdir()
    return Node(place, storage)


def assigned(*inputs: StoredInput, job: int = 7) -> Assignment:
    return Assignment(job=job, attempt=1, group="g", spec=JobSpec(name="j", image="i"), memory_mib=64, inputs=inputs)


def staged(node: Node) -> list[str]:
    return sorted(str(path.relative_to(node.folder.parent)) for path in node.folder.parent.glob("inputs-*"))


def test_inputs_are_there_before_the_start_and_before_the_restore_and_in_no_checkpoint(
    node: Node, storage: FolderStorage, tmp_path: Path
) -> None:
    inputs = (MadeInput().stored(storage), FOLDER.stored(storage, "calib"))
    container, stored = node.started(inputs=inputs)
    folder = node.runtime.spec_of(container).inputs
    assert folder is not None
    assert (folder / "a.cmnd").read_bytes() == b"Beams:eCM = 8000."
    assert {path.name: path.read_bytes() for path in (folder / "calib").iterdir()} == {"a.dat": b"1", "b.dat": b"2"}
    node.runtime.pause(container)
    assert not [name for name in node.folder.rglob("*") if "cmnd" in name.name]

    place = tmp_path / "other"
    place.mkdir()
    other = Node(place, storage)
    saved = node.saved()
    container, _ = other.started(attempt=2, checkpoint=saved, inputs=inputs)
    assert other.runtime.restores == 1
    folder = other.runtime.spec_of(container).inputs
    assert folder is not None
    assert (folder / "a.cmnd").read_bytes() == b"Beams:eCM = 8000."
    assert stored.assignment.inputs == inputs


def test_a_copy_is_put_into_the_new_folder_and_not_back_after_a_restore(node: Node, storage: FolderStorage) -> None:
    inputs = (MadeInput().stored(storage, into_job=True),)
    container, stored = node.started(inputs=inputs)
    assert node.runtime.spec_of(container).inputs is None
    assert (node.folder / "a.cmnd").read_bytes() == b"Beams:eCM = 8000."
    (node.folder / "a.cmnd").write_bytes(b"its own now")
    node.runtime.pause(container)
    checkpoint = stored.save_memory(node.runtime, container, lambda: Mark(0, {})).checkpoint
    container, _ = node.started(attempt=2, checkpoint=checkpoint, inputs=inputs)
    assert (node.folder / "a.cmnd").read_bytes() == b"its own now"


def test_jobs_with_the_same_inputs_share_a_folder_that_goes_with_the_last_of_them(
    node: Node, storage: FolderStorage
) -> None:
    inputs, one = node.context.inputs, MadeInput().stored(storage)
    jobs = [assigned(one, job=job) for job in (1, 2)]
    other = assigned(FOLDER.stored(storage), job=3)
    for assignment in jobs:
        inputs.stage(assignment, threading.Event())
        storage.delete(input_key("g", one.content))  # the second finds it on the node
    inputs.stage(other, threading.Event())
    assert len(staged(node)) == 2
    for assignment in (jobs[0], jobs[0], other):
        inputs.release(assignment)
    assert len(staged(node)) == 1
    inputs.release(jobs[1])
    assert staged(node) == []


def test_what_is_not_whole_in_the_storage_is_one_line_and_no_fault_of_the_node(
    node: Node, storage: FolderStorage
) -> None:
    cut = MadeInput(packed(b"x" * 3000)[:1536])
    two = MadeInput(packed(b"x", "another") + packed(b"y"))
    wide = MadeInput(packed(b"", "../content"))
    for made in (cut, two, wide, MadeInput(b"no archive"), MadeInput(packed(b"x", "other"))):
        found = node.refused(inputs=(made.stored(storage),))
        assert found.why is ReturnReason.INPUT_MISSING
        assert "a.cmnd" in found.detail
    one = MadeInput().stored(storage)
    swapped = FOLDER.stored(storage)
    found = node.refused(inputs=(one.model_copy(update={"digest": swapped.digest}),))
    assert found.why is ReturnReason.INPUT_MISSING
    assert not node.folder.exists()


def test_a_missing_input_is_a_matter_of_time_where_there_is_none_to_look_again(
    node: Node, storage: FolderStorage
) -> None:
    one = MadeInput().stored(storage)
    storage.delete(input_key("g", one.content))
    assert node.refused(inputs=(one,), hurried=True).why is ReturnReason.UNSTARTED


def test_a_full_disk_is_known_before_anything_is_brought(
    node: Node, storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = MadeInput().stored(storage).model_copy(update={"size_bytes": 5 * 2**30})
    whole = shutil.disk_usage(node.folder.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: whole._replace(free=3 * 2**30))
    found = node.refused(inputs=(one,))
    assert found.why is ReturnReason.NODE_LACKS
    assert found.detail == "the inputs take 5120 MiB, and this node has 3072 free"
