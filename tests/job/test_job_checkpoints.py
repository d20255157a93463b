"""A job's checkpoints on the storage, under their numbers, and the nodes on which they can be restored."""

import json
import random
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.agent.pretended_runtime import PretendedRuntime
from tests.golden import check_golden

from gleaner.agent.checkpoints import dedup, workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError, StorageFull
from gleaner.agent.job.job_checkpoints import JobCheckpoints, NewCheckpoint, why_unfit
from gleaner.agent.job_spec import JobSpec, OutputSpec
from gleaner.agent.messages import Assignment, Checkpoint, NodeFacts, Stream
from gleaner.agent.reporting.job_log import Mark
from gleaner.agent.runtime.interface import CannotCheckpoint, ContainerId, ContainerSpec
from gleaner.agent.system.openat import pread_into

HERE = NodeFacts(
    node="n1",
    cpus=2,
    memory_mib=1000,
    runtime="docker 26.1.5",
    criu="4.1",
    kernel="6.1",
    architecture="x86_64",
    cpu_features=("avx", "sse"),
)


def saved_on(**other: object) -> dict[str, object]:
    return {"node": {**HERE.model_dump(mode="json"), "node": "n9", **other}}


def test_a_checkpoint_fits_its_own_node_and_better_ones() -> None:
    assert why_unfit(saved_on(), HERE) == ""
    assert why_unfit(saved_on(cpu_features=["sse"], criu="3.19", runtime="docker 20.10"), HERE) == ""


def test_what_the_node_lacks_is_named_with_the_node_that_has_it() -> None:
    assert why_unfit(saved_on(cpu_features=["avx", "avx512f"]), HERE) == (
        "this node lacks CPU feature avx512f; it was saved on n9"
    )
    assert "CRIU >= 4.10" in why_unfit(saved_on(criu="4.10"), HERE)
    assert "runtime criu" in why_unfit(saved_on(runtime="criu 4.1"), HERE)
    assert "architecture aarch64" in why_unfit(saved_on(architecture="aarch64"), HERE)


@given(st.sets(st.sampled_from(["avx", "sse", "avx2", "amx"])), st.sets(st.sampled_from(["avx", "sse", "avx2", "amx"])))
def test_every_feature_of_the_saving_node_must_be_here(there: set[str], here: set[str]) -> None:
    node = HERE.model_copy(update={"cpu_features": tuple(sorted(here))})
    assert (why_unfit(saved_on(cpu_features=sorted(there)), node) == "") == (there <= here)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """The job's folder, with a large file."""
    made = tmp_path / "job"
    made.mkdir()
    (made / "large").write_bytes(random.Random(1).randbytes(2**20))
    return made


class Attempt:
    """One attempt of job 7, with a process to save."""

    def __init__(self, storage: FolderStorage, place: Path, *, number: int = 1, checkpoint: Checkpoint | None = None):
        self.runtime = PretendedRuntime()
        spec = ContainerSpec("c", "image", ("count", "100000"), {}, 1, 64, place, {})
        self.container: ContainerId = self.runtime.start(spec)
        given = Assignment(
            job=7, attempt=number, group="g", spec=JobSpec(name="j", image="i"), memory_mib=64, checkpoint=checkpoint
        )
        self.stored = JobCheckpoints(storage, given, HERE, place)

    def save(self, *, at_the_end: bool = False) -> Checkpoint:
        return self.keep(at_the_end=at_the_end).checkpoint

    def keep(self, *, at_the_end: bool = False, error: Exception | None = None) -> NewCheckpoint:
        """Save it, or fail in the middle."""

        def mark() -> Mark:
            if error is not None:
                raise error
            return Mark(12, {Stream.STDOUT: "YWI="})

        self.runtime.pause(self.container)
        try:
            return self.stored.save_memory(self.runtime, self.container, mark, at_the_end=at_the_end)
        finally:
            self.runtime.unpause(self.container)


def test_the_checkpoints_of_an_attempt_count_up_and_know_how_far_the_output_had_come(
    storage: FolderStorage, place: Path
) -> None:
    attempt = Attempt(storage, place)
    made = [attempt.save() for _ in range(3)]
    assert [checkpoint.number for checkpoint in made] == [1, 2, 3]
    assert (made[2].log_lines, made[2].open_lines) == (12, {Stream.STDOUT: "YWI="})
    assert storage.keys("jobs/7") == [f"jobs/7/attempt-1/checkpoint-{number}" for number in (1, 2, 3)]


def test_the_manifest_of_a_checkpoint_is_written_as_before(storage: FolderStorage, place: Path, tmp_path: Path) -> None:
    """A node of another version restores it, so no key gets another name. What differs each time is left out."""
    attempt = Attempt(storage, place)
    attempt.save()
    attempt.save()
    key = "jobs/7/attempt-1/checkpoint-2"
    manifest = json.loads((tmp_path / "storage" / key / "manifest.json").read_text())
    for part in manifest["parts"]:
        part.update({name: type(part[name]).__name__ for name in ("size_bytes", "digest", "blocks")})
    manifest["facts"]["paused_s"] = type(manifest["facts"]["paused_s"]).__name__
    check_golden(Path(__file__).parent / "golden" / "manifest.json", manifest)


def test_what_the_checkpoint_before_holds_is_not_stored_again_also_over_attempts(
    storage: FolderStorage, place: Path
) -> None:
    first = Attempt(storage, place)
    kept, again = first.keep(), first.keep()
    assert again.stored_bytes < kept.stored_bytes / 2
    second = Attempt(storage, place, number=2, checkpoint=again.checkpoint)
    assert second.keep().stored_bytes < kept.stored_bytes / 2


def shared_files(storage_folder: Path, made: Checkpoint) -> set[int]:
    """The inodes of a checkpoint's packs."""
    folder = storage_folder / f"jobs/7/attempt-{made.attempt}/checkpoint-{made.number}"
    return {file.stat().st_ino for file in folder.iterdir() if file.name != "manifest.json"}


def test_every_eighth_checkpoint_of_a_job_shares_no_file_with_earlier_ones_over_attempts_too(
    storage: FolderStorage, place: Path, tmp_path: Path
) -> None:
    made: list[Checkpoint] = []
    for number in range(1, 8):
        attempt = Attempt(storage, place, number=number, checkpoint=made[-1] if made else None)
        made += [attempt.save() for _ in range(3)]
    chains = [one.chain for one in made]
    assert chains == ["1/1"] * 8 + ["3/3"] * 8 + ["6/2"] * 5
    files = [shared_files(tmp_path / "storage", one) for one in made]
    assert any(files[number] & files[number - 1] for number in range(1, 8)), "else this shows nothing"
    for number, mine in enumerate(files):
        for earlier in range(number):
            assert chains[earlier] == chains[number] or not mine & files[earlier]


def test_at_an_agents_end_a_chain_may_be_twice_as_long_since_writing_everything_may_come_too_late(
    storage: FolderStorage, place: Path
) -> None:
    attempt = Attempt(storage, place)
    made = [attempt.keep(at_the_end=True) for _ in range(17)]
    assert [one.checkpoint.chain for one in made] == ["1/1"] * 16 + ["1/17"]
    assert [one.is_full for one in made] == [True] + [False] * 15 + [True]


def test_before_the_end_it_is_known_that_the_next_checkpoint_writes_everything_also_over_attempts(
    storage: FolderStorage, place: Path
) -> None:
    first = Attempt(storage, place)
    known: list[tuple[bool, bool]] = []
    for _ in range(8):
        known.append((first.stored.is_first, first.stored.needs_full_checkpoint))
        last = first.save(at_the_end=True)
    assert known == [(True, False)] + [(False, False)] * 7
    assert first.stored.needs_full_checkpoint
    second = Attempt(storage, place, number=2, checkpoint=last)
    assert not second.stored.needs_full_checkpoint, "nothing has been looked at yet"
    second.stored.open()
    assert second.stored.needs_full_checkpoint
    assert second.keep().is_full
    assert not second.stored.needs_full_checkpoint


def test_where_the_storage_is_full_a_longer_chain_is_better_than_no_checkpoint(
    storage: FolderStorage, place: Path
) -> None:
    attempt = Attempt(storage, place)
    made = [attempt.save() for _ in range(8)]
    with pytest.raises(StorageFull):
        attempt.keep(error=StorageFull("no room"))
    assert attempt.save().chain == made[-1].chain == "1/1"
    assert attempt.save().chain == "1/11", "and when there is room again, the next one stands alone"


@pytest.mark.parametrize(("ago_s", "reads"), [(0, False), (4000, True)])
def test_a_save_at_an_agents_end_reads_what_it_shares_unless_the_job_was_saved_within_the_last_hour(
    storage: FolderStorage, place: Path, monkeypatch: pytest.MonkeyPatch, ago_s: float, reads: bool
) -> None:
    attempt = Attempt(storage, place)
    attempt.save()
    sizes: list[int] = []

    def counted(file: int, room: memoryview, offset: int) -> bool:
        sizes.append(len(room))
        return pread_into(file, room, offset)

    monkeypatch.setattr(dedup, "pread_into", counted)
    monkeypatch.setattr(attempt.stored.clock, "monotonic_s", lambda: time.monotonic() + ago_s)
    attempt.save(at_the_end=True)
    assert (sum(sizes) > 2**19) is reads


def test_it_is_known_for_how_long_the_storage_has_been_busy(storage: FolderStorage, place: Path) -> None:
    attempt = Attempt(storage, place)
    assert attempt.stored.storage_s == 0
    seen: list[float] = []

    def mark() -> Mark:
        seen.append(attempt.stored.storage_s)
        raise StorageError("no")

    attempt.runtime.pause(attempt.container)
    with pytest.raises(StorageError):
        attempt.stored.save_memory(attempt.runtime, attempt.container, mark)
    assert seen[0] > 0
    assert attempt.stored.storage_s == 0


@pytest.mark.parametrize(
    ("error", "is_full"),
    [
        (StorageFull("no room"), False),
        (CannotCheckpoint("it holds a device"), False),
        (StorageError("the archive before is damaged"), True),
    ],
)
def test_only_after_a_fault_of_the_storage_is_the_next_checkpoint_a_full_one(
    storage: FolderStorage, place: Path, error: Exception, is_full: bool
) -> None:
    attempt = Attempt(storage, place)
    attempt.save()
    with pytest.raises(type(error)):
        attempt.keep(error=error)
    again = attempt.keep()
    assert again.checkpoint.number == 3
    assert (again.stored_bytes > 2**20 / 2) == is_full


def test_a_result_has_what_is_to_be_kept_and_says_which_patterns_fitted_nothing(
    storage: FolderStorage, tmp_path: Path
) -> None:
    place = tmp_path / "job"
    place.mkdir()
    for name in ("a.root", "core.1"):
        (place / name).write_text(name)
    spec = JobSpec(name="n", image="i", outputs=OutputSpec(keep=("*.root", "*.log")))
    assignment = Assignment(job=7, attempt=1, group="g", spec=spec, memory_mib=64)
    made = JobCheckpoints(storage, assignment, HERE, place).publish_output(0)
    assert made.unmatched == ("*.log",)
    again = tmp_path / "again"
    again.mkdir()
    workdir_tar.unpack(storage.open("jobs/7/attempt-1/output", made.digest).read("folder.tar"), again)
    assert [path.name for path in again.iterdir()] == ["a.root"]
