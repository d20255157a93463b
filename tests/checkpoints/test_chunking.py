"""Parts in blocks: many writers at once, zeros, what is known from the archive before, and reading ahead."""

import errno
import os
import random
import threading
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.chunking import LEAST_BYTES, MOST_BYTES, PAGE_BYTES, cuts
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError
from gleaner.agent.checkpoints.pack_writer import is_worth_compressing

KEY = "jobs/7/attempt-3/checkpoint-2"
BEFORE = "jobs/7/attempt-3/checkpoint-1"
MIB = 2**20

slow = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return random.Random(seed).randbytes(size_bytes)


def published(
    storage: FolderStorage, key: str, parts: dict[str, bytes], before: FolderArchive | None = None
) -> tuple[FolderArchive, int]:
    """The archive, and how many bytes were written for it."""
    with storage.draft(key, before) as draft:
        for name, content in parts.items():
            draft.add(name, [content])
        walk_and_make = draft.publish({})
    return storage.open(key, walk_and_make.digest), walk_and_make.stored_bytes


def read(archive: FolderArchive) -> dict[str, bytes]:
    return {name: b"".join(archive.read(name)) for name in archive.parts}


pieces = st.one_of(
    st.builds(noise, st.integers(0, 300_000), st.integers(0, 9)),
    st.builds(bytes, st.integers(0, 1_500_000)),
    st.builds(lambda word, times: word * times, st.binary(min_size=1, max_size=9), st.integers(0, 100_000)),
    st.binary(max_size=100),
)
"""Random, zero, compressible, and small."""


@slow
@given(written=st.dictionaries(st.sampled_from("abc"), st.lists(pieces, max_size=5)), order=st.randoms())
def test_any_writes_to_any_parts_in_any_order_come_back_identical(
    storage: FolderStorage, written: dict[str, list[bytes]], order: random.Random
) -> None:
    with storage.draft(KEY) as draft:
        writers = {name: draft.part(name) for name in written}
        left = {name: list(chunks) for name, chunks in written.items()}
        while left:
            name = order.choice(sorted(left))
            if left[name]:
                chunk = bytearray(left[name].pop(0))
                writers[name].write(order.choice([bytes, bytearray, memoryview])(chunk))
                chunk[:] = b"x" * len(chunk)  # the caller's own again
            else:
                part = writers[name].close()
                assert part.size_bytes == sum(map(len, written[name]))
                del left[name]
        digest = draft.publish({}).digest
    archive = storage.open(KEY, digest)
    assert read(archive) == {name: b"".join(chunks) for name, chunks in written.items()}
    storage.delete(KEY)


regions = st.builds(noise, st.integers(0, 80).map(lambda pages: pages * PAGE_BYTES), st.integers(0, 5)) | pieces


@pytest.mark.slow
@slow
@given(
    old=st.dictionaries(st.sampled_from("abc"), st.lists(regions, max_size=5).map(b"".join), min_size=1),
    new=st.dictionaries(st.sampled_from("abc"), st.lists(regions, max_size=5).map(b"".join), min_size=1),
    kept=st.sets(st.sampled_from("abc")),
    newest=st.lists(regions, max_size=3).map(b"".join),
)
def test_whatever_came_before_the_new_content_comes_back_even_when_the_old_is_deleted(
    storage: FolderStorage, old: dict[str, bytes], new: dict[str, bytes], kept: set[str], newest: bytes
) -> None:
    new |= {name: old[name] for name in kept & set(old)}
    first, _ = published(storage, BEFORE, old)
    second, _ = published(storage, KEY, new, first)
    storage.delete(BEFORE)
    assert read(second) == new
    third, _ = published(storage, BEFORE, {**new, "newest": newest, "old": b"".join(old.values())}, second)
    storage.delete(KEY)
    assert read(third) == {**new, "newest": newest, "old": b"".join(old.values())}
    storage.delete(BEFORE)


def test_many_parts_are_written_at_once_from_different_threads(storage: FolderStorage, root: Path) -> None:
    contents = {f"part-{number}": noise(number**4 * 10, number) for number in range(25)}

    def write(draft: FolderDraft, name: str) -> None:
        with draft.part(name) as part:
            for start in range(0, len(contents[name]), 70_001):
                part.write(contents[name][start : start + 70_001])

    with storage.draft(KEY) as draft:
        threads = [threading.Thread(target=write, args=(draft, name)) for name in contents]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        digest = draft.publish({}).digest
    assert sorted(path.name for path in (root / KEY).iterdir()) == ["blocks.pack", "manifest.json"]
    assert read(storage.open(KEY, digest)) == contents


@pytest.mark.slow
def test_more_open_writers_than_may_be_on_their_way_do_not_wait_for_each_other(storage: FolderStorage) -> None:
    with storage.draft(KEY) as draft, storage.draft(BEFORE) as other:
        writers = [draft.part(f"part-{number}") for number in range(50)] + [other.part("part")]
        for writer in writers:
            writer.write(noise(1000))
        for writer in writers:
            writer.write(noise(3 * MIB))
        for writer in reversed(writers):
            assert writer.close().size_bytes == 3 * MIB + 1000


def test_a_writer_that_is_given_up_leaves_no_part_and_its_name_free(storage: FolderStorage) -> None:
    with storage.draft(KEY) as draft:
        with pytest.raises(ZeroDivisionError), draft.part("memory") as writer:
            writer.write(noise(5 * MIB))
            raise ZeroDivisionError
        writer.abort()
        for refused in (writer.close, lambda: writer.write(b"more")):
            with pytest.raises(StorageError):
                refused()
        with draft.part("memory") as again:
            again.write(b"memory")
            part = again.close()
        assert again.close() == part
        again.abort()
        with pytest.raises(StorageError, match="closed"):
            again.write(b"more")
        digest = draft.publish({}).digest
    assert read(storage.open(KEY, digest)) == {"memory": b"memory"}


def test_what_is_still_being_written_is_not_published(storage: FolderStorage) -> None:
    with storage.draft(KEY) as draft:
        writer = draft.part("memory")
        writer.write(b"memory")
        with pytest.raises(StorageError, match="still being written"):
            draft.publish({})
        writer.close()
        draft.publish({})
    with pytest.raises(StorageError):
        draft.part("late")


def test_a_writer_hears_that_its_draft_has_ended(storage: FolderStorage, root: Path) -> None:
    ended = threading.Event()
    heard: list[StorageError] = []

    def write(draft: FolderDraft) -> None:
        writer = draft.part("memory")
        try:
            while True:
                writer.write(bytes(MIB))
                ended.set()
        except StorageError as error:
            heard.append(error)
        try:
            writer.close()
        except StorageError as error:
            heard.append(error)

    with storage.draft(KEY) as draft:
        thread = threading.Thread(target=write, args=(draft,))
        thread.start()
        ended.wait()
    thread.join(60)
    assert [("has ended" in str(error)) for error in heard] == [True, True]
    assert list((root / ".drafts").iterdir()) == []
    published(storage, KEY, {"memory": noise(40 * MIB)})  # nothing that the other had on its way is missing


def test_zeros_take_no_room(storage: FolderStorage) -> None:
    memory = noise(96) + bytes(20 * MIB) + noise(MIB) + bytes(20 * MIB + 5)  # in the midst of a page
    archive, stored_bytes = published(storage, KEY, {"memory": memory})
    assert read(archive)["memory"] == memory
    assert stored_bytes < 2.1 * MIB


def test_text_is_compressed_and_noise_is_not_made_longer(storage: FolderStorage) -> None:
    text = b"".join(b"%d bottles of beer\n" % number for number in range(20_000))
    assert published(storage, KEY, {"text": text})[1] < len(text) / 2
    assert published(storage, BEFORE, {"noise": noise(MIB)})[1] < MIB + 1500


@pytest.mark.parametrize(
    ("so_far_mib", "waiting_mib", "expected"), [(1, 0, True), (20, 0, False), (40, 40, True), (400, 20, False)]
)
def test_a_disk_that_keeps_up_is_not_slowed_by_compressing(so_far_mib: int, waiting_mib: int, expected: bool) -> None:
    assert is_worth_compressing(so_far_bytes=so_far_mib * MIB, waiting_bytes=waiting_mib * MIB) is expected


def test_a_lost_write_that_shows_in_an_early_sync_fails_the_draft(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Linux tells of it once; the sync at the end would say that all is well."""

    def failing(_file: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        published(storage, KEY, {"memory": noise(20 * MIB)})
    assert storage.keys("") == []


def test_equal_blocks_are_not_stored_again_even_if_the_memory_has_moved(storage: FolderStorage, root: Path) -> None:
    memory = noise(16 * MIB)
    changed = noise(PAGE_BYTES, 1) + memory[: 8 * MIB] + noise(5 * PAGE_BYTES, 2) + memory[8 * MIB + PAGE_BYTES :]
    first, _ = published(storage, BEFORE, {"pages": memory})
    second, stored_bytes = published(storage, KEY, {"other": b"new", "pages": changed}, first)
    assert stored_bytes < 2 * MIB
    assert (root / KEY / "pack-1").samefile(root / BEFORE / "blocks.pack")
    storage.delete(BEFORE)
    assert read(second) == {"other": b"new", "pages": changed}


@pytest.mark.slow
def test_after_many_checkpoints_the_packs_are_few_and_at_most_twice_what_is_used(
    storage: FolderStorage, root: Path
) -> None:
    memory = bytearray(noise(16 * MIB))
    most = 0
    archive, _ = published(storage, "jobs/1/checkpoint-0", {"pages": bytes(memory)})
    for number in range(1, 25):
        start = number * MIB * 5 // 4 % (15 * MIB)
        memory[start : start + MIB // 4] = noise(MIB // 4, number)
        archive, _ = published(storage, f"jobs/1/checkpoint-{number}", {"pages": bytes(memory)}, archive)
        storage.delete(f"jobs/1/checkpoint-{number - 1}")
        assert read(archive)["pages"] == memory
        files = list((root / f"jobs/1/checkpoint-{number}").iterdir())
        most = max(most, len(files))
        assert sum(file.stat().st_size for file in files) < 2.2 * len(memory)
    assert most == 10  # the manifest, the own pack, and as many others as there may be


def test_without_hard_links_all_is_stored(storage: FolderStorage, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refused)
    memory = noise(3 * MIB)
    first, _ = published(storage, BEFORE, {"pages": memory})
    second, stored_bytes = published(storage, KEY, {"pages": memory}, first)
    assert stored_bytes > 3 * MIB
    storage.delete(BEFORE)
    assert read(second)["pages"] == memory


@pytest.mark.parametrize("change", ["deleted", "cut off", "another one"])
def test_a_archive_before_that_is_gone_or_damaged_is_not_built_upon(
    storage: FolderStorage, root: Path, change: str
) -> None:
    memory = noise(3 * MIB)
    first, _ = published(storage, BEFORE, {"pages": memory})
    if change == "cut off":
        os.truncate(root / BEFORE / "blocks.pack", MIB)
    else:
        storage.delete(BEFORE)
    if change == "another one":
        published(storage, BEFORE, {"pages": noise(3 * MIB, 1)})
    second, _ = published(storage, KEY, {"pages": memory}, first)
    assert read(second)["pages"] == memory
    assert not (root / KEY / "pack-1").exists()


def flip_a_bit(pack: Path, at: int) -> None:
    with pack.open("r+b") as file:
        file.seek(at)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("call", ["open", "preadv"])
def test_a_shared_pack_that_cannot_be_opened_or_read_is_stored_anew(
    storage: FolderStorage, root: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    memory = noise(4 * MIB)
    first, _ = published(storage, BEFORE, {"pages": memory})
    real, failed = getattr(os, call), list[str]()

    def failing(file: int | str, *given: Any, **more: Any) -> Any:
        if (file == "blocks.pack" and not given[0] & os.O_CREAT) or (call == "preadv" and MIB < given[1] < 2 * MIB):
            failed.append(call)
            raise OSError(errno.EIO, "Input/output error")
        return real(file, *given, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing)
        with storage.draft(KEY, first) as draft:
            draft.add("pages", [memory])
            digest = draft.publish({}).digest
    assert failed
    assert not (root / KEY / "pack-1").exists()
    storage.delete(BEFORE)
    assert read(storage.open(KEY, digest))["pages"] == memory


def test_what_rots_between_the_look_and_the_copy_fails_the_save_and_nothing_is_published(
    storage: FolderStorage, root: Path
) -> None:
    memory = noise(8 * MIB)
    first, _ = published(storage, BEFORE, {"pages": memory})
    with pytest.raises(StorageError, match="save without it"), storage.draft(KEY, first) as draft:
        draft.add("pages", [memory[:MIB]])  # so little that it is copied
        with (root / BEFORE / "blocks.pack").open("r+b") as pack:
            pack.write(b"?" * MIB)
        draft.publish({})
    assert storage.keys("") == [BEFORE]


@pytest.mark.slow
@slow
@given(
    old=st.lists(regions, min_size=1, max_size=5).map(b"".join),
    newest=st.lists(regions, max_size=3).map(b"".join),
    places=st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=3),
)
def test_wherever_an_older_pack_has_rotted_what_is_saved_on_top_is_whole(
    storage: FolderStorage, root: Path, old: bytes, newest: bytes, places: list[float]
) -> None:
    first, _ = published(storage, BEFORE, {"pages": old})
    size_bytes = (root / BEFORE / "blocks.pack").stat().st_size
    for place in places:
        flip_a_bit(root / BEFORE / "blocks.pack", int(place * size_bytes))
    second, _ = published(storage, KEY, {"pages": old, "newest": newest}, first)
    storage.delete(BEFORE)
    assert read(second) == {"pages": old, "newest": newest}
    storage.delete(KEY)


def open_below(root: Path) -> list[str]:
    """Return the files below `root` that this process has open."""
    found: list[str] = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # of another thread, and closed just now
            found.append(str(file.readlink()))
    return [target for target in found if target.startswith(str(root))]


def test_a_draft_leaves_no_file_open(storage: FolderStorage, root: Path) -> None:
    memory = noise(4 * MIB)
    first, _ = published(storage, BEFORE, {"pages": memory})
    published(storage, KEY, {"pages": memory}, first)
    with pytest.raises(ZeroDivisionError), storage.draft("jobs/other", first) as draft:
        draft.add("pages", [memory])
        raise ZeroDivisionError
    with pytest.raises(StorageError), storage.draft(f"{KEY}/inside", first):
        pass
    assert open_below(root) == []


@pytest.mark.parametrize(
    "frame",
    [
        b"\x28\xb5\x2f\xfd\xe0" + (2**50).to_bytes(8, "little"),
        b"\x28\xb5\x2f\xfd\x00\x58",
        bytes(50),
        b"no frame at all",
    ],
    ids=["of a petabyte", "of unknown size", "zeros", "text"],
)
def test_a_forged_frame_is_broken_and_takes_no_memory(storage: FolderStorage, root: Path, frame: bytes) -> None:
    archive, stored_bytes = published(storage, KEY, {"text": b"bottles of beer" * 10_000})
    assert stored_bytes < 5000
    with (root / KEY / "blocks.pack").open("r+b") as pack:
        pack.write(frame)
    with pytest.raises(ArchiveBroken, match="text"):
        read(archive)


def test_a_whole_pack_of_another_archive_is_found(storage: FolderStorage, root: Path) -> None:
    """Its index and its blocks go together; only the manifest says that they are not this archive's."""
    with storage.draft(KEY) as draft:
        draft.add("pages", [noise(3000, 1)])
        digest = draft.publish({}).digest
    published(storage, BEFORE, {"pages": noise(3000, 2)})
    (root / BEFORE / "blocks.pack").replace(root / KEY / "blocks.pack")
    with pytest.raises(ArchiveBroken, match="manifest"):
        storage.open(KEY, digest)


def test_nothing_is_read_any_more_when_a_reader_has_stopped(
    storage: FolderStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files are closed then, and their numbers may be those of others."""
    archive, _ = published(storage, KEY, {"pages": noise(12 * MIB)})
    pread, reading, late = os.pread, archive.read("pages"), threading.Event()
    stopped = threading.Event()

    def slow(file: int, size_bytes: int, offset: int) -> bytes:
        stopped.wait(0.05)
        if stopped.is_set():
            late.set()
        return pread(file, size_bytes, offset)

    monkeypatch.setattr(os, "pread", slow)
    assert isinstance(reading, Generator)
    next(reading)
    reading.close()
    stopped.set()
    assert not late.wait(0.3)


def test_no_chunk_is_given_out_that_is_not_verified(storage: FolderStorage, root: Path) -> None:
    memory = noise(12 * MIB)
    archive, _ = published(storage, KEY, {"pages": memory})
    with (root / KEY / "blocks.pack").open("r+b") as pack:
        pack.seek(5 * MIB)
        pack.write(bytes(10))
    got = b""
    with pytest.raises(ArchiveBroken, match="pages"):
        for chunk in archive.read("pages"):
            got += chunk
    assert 4 * MIB < len(got) <= 5 * MIB
    assert memory.startswith(got)


def test_parts_are_read_at_once_in_any_order_and_a_reader_may_stop_early(storage: FolderStorage, root: Path) -> None:
    contents = {f"part-{number}": noise(number * 700_000, number) for number in range(8)}
    archive, _ = published(storage, KEY, contents)
    readers: dict[str, Iterator[bytes]] = {name: archive.read(name) for name in reversed(contents)}
    got = dict.fromkeys(contents, b"")
    while readers:
        for name in list(readers):
            chunk = next(readers[name], None)
            if chunk is None or (name == "part-7" and len(got[name]) > MIB):
                del readers[name]
            else:
                got[name] += chunk
    assert open_below(root) == []
    assert MIB < len(got["part-7"]) < len(contents["part-7"])
    contents["part-7"] = contents["part-7"][: len(got["part-7"])]
    assert got == contents


@slow
@given(content=st.lists(regions, max_size=6).map(b"".join), at=st.integers(0, 10**7))
@example(content=noise(PAGE_BYTES) + bytes(40 * PAGE_BYTES) + b"end", at=17 * PAGE_BYTES)
def test_blocks_are_whole_pages_within_their_limits_and_independent_of_what_is_seen_at_once(
    content: bytes, at: int
) -> None:
    ends = cuts(memoryview(content), last=True)
    assert ends == sorted(set(ends))
    assert ([0, *ends])[-1] == len(content)
    sizes = [end - start for start, end in pairwise([0, *ends])]
    assert all(size <= MOST_BYTES for size in sizes)
    assert all(size % PAGE_BYTES == 0 for size in sizes[:-1])
    starts = [0, *ends]
    are_zero = [not any(content[start:end]) for start, end in pairwise(starts)]
    for number, size in enumerate(sizes[:-1]):
        beside_zeros = any(are_zero[max(0, number - 1) : number + 2])
        assert size >= LEAST_BYTES or beside_zeros
    seen = at % (len(content) + 1)
    early = cuts(memoryview(content)[:seen], last=False)
    assert early == ends[: len(early)]
