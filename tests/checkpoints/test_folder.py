"""The storage in a folder: who may look, what a crash leaves, a full disk, and a folder that is gone."""

import errno
import hashlib
import os
import random
import signal
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from tests.recorded import recording

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError, StorageFull

KEY = "jobs/7/attempt-3/checkpoint-1"


def publish(storage: FolderStorage, key: str = KEY, content: bytes = b"memory") -> str:
    with storage.draft(key) as draft:
        draft.add("memory.tar", [content])
        return draft.publish({}).digest


def test_nobody_but_the_owner_can_look_inside(storage: FolderStorage, root: Path) -> None:
    before = os.umask(0)
    try:
        publish(storage)
    finally:
        os.umask(before)
    for path in (root, *root.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


WRITER = """
import sys, itertools
from pathlib import Path
from gleaner.agent.checkpoints.folder_storage import FolderStorage
storage = FolderStorage(Path(sys.argv[1]))
for number in itertools.count():
    with storage.draft(f"jobs/1/checkpoint-{number}") as draft:
        draft.add("memory.tar", [bytes([number % 256]) * 70_000] * 20)
        draft.add("folder.tar", [b"folder"] * 1000)
        published = draft.publish({"number": number})
    print(published.key, published.digest, flush=True)
"""


@pytest.mark.slow
def test_a_writer_killed_at_any_moment_leaves_whole_archives_or_nothing_visible(
    storage: FolderStorage, root: Path
) -> None:
    chance = random.Random(1)
    for _ in range(12):
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, str(root)],
            stdout=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": ":".join(sys.path)},
        ) as writer:
            assert writer.stdout is not None
            told = [writer.stdout.readline()]
            time.sleep(chance.uniform(0, 0.05))
            writer.send_signal(signal.SIGKILL)
            told += writer.stdout.readlines()
        digests = dict(line.split() for line in told if line.endswith("\n"))
        visible = storage.keys("")
        assert set(digests) <= set(visible)
        for key in visible:  # also one that was published and not told of
            manifest = (root / key / "manifest.json").read_bytes()
            archive = storage.open(key, f"sha256:{hashlib.sha256(manifest).hexdigest()}")
            assert archive.facts["number"] == int(key.rpartition("-")[2])
            for name in ("memory.tar", "folder.tar"):
                for _ in archive.read(name):
                    pass
            storage.delete(key)
    storage.sweep(before_s=time.time() + 10)
    assert list((root / ".drafts").iterdir()) == []


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with room for 4 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m,mode=700", "small", str(place)], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.fail(f"this test mounts a small file system, so it must run as root ({error})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_full_disk_is_told_in_one_clear_line_and_publishes_nothing(small: Path) -> None:
    storage = FolderStorage(small)
    storage.prepare()
    kept = publish(storage, "jobs/1/first")
    with pytest.raises(StorageFull, match="free some space") as full, storage.draft(KEY) as draft:
        draft.add("memory.tar", (os.urandom(2**20) for _ in range(10)))
    assert "\n" not in str(full.value)
    assert storage.keys("") == ["jobs/1/first"]
    assert b"".join(storage.open("jobs/1/first", kept).read("memory.tar")) == b"memory"
    publish(storage)  # the draft's room is free again


@pytest.mark.parametrize("is_empty", [False, True], ids=["gone", "an empty mount point"])
def test_a_folder_that_is_gone_is_not_taken_for_an_empty_storage(
    storage: FolderStorage, root: Path, *, is_empty: bool
) -> None:
    digest = publish(storage)
    root.rename(root.with_name("unmounted"))
    if is_empty:
        root.mkdir(mode=0o700)
    for attempt in (lambda: storage.draft(KEY).__enter__(), lambda: storage.open(KEY, digest)):
        with pytest.raises(StorageError, match="mounted") as error:
            attempt()
        assert not isinstance(error.value, ArchiveBroken)
    assert not is_empty or list(root.iterdir()) == []


def test_a_storage_that_others_may_write_to_is_refused(storage: FolderStorage, root: Path) -> None:
    root.chmod(0o770)
    with pytest.raises(StorageError, match="chmod 700"):
        storage.keys("")


def test_no_symbolic_link_leads_out_of_the_storage(storage: FolderStorage, root: Path, tmp_path: Path) -> None:
    digest = publish(storage)
    outside = tmp_path / "outside"
    (root / "jobs" / "7").rename(outside)
    (root / "jobs" / "7").symlink_to(outside)
    with pytest.raises(ArchiveBroken):
        storage.open(KEY, digest)
    with pytest.raises(StorageError):
        publish(storage, "jobs/7/attempt-4/checkpoint-1")
    assert storage.keys("") == []
    storage.delete(KEY)
    storage.set_aside(KEY)
    assert (outside / "attempt-3" / "checkpoint-1" / "blocks.pack").exists()
    assert not (outside / "attempt-4").exists()


def test_drafts_of_writers_that_have_ended_go_at_once_and_no_others(root: Path, storage: FolderStorage) -> None:
    drafts = [FolderStorage(root, writer=name).draft(f"jobs/{name}") for name in ("a-1", "a-2")]
    drafts.append(storage.draft("jobs/nobody"))
    opened = [draft.__enter__() for draft in drafts]
    for each in opened:
        each.add("memory.tar", [b"memory" * 100_000])
    assert sorted(storage.writers()) == ["a-1", "a-2"]
    assert storage.sweep(before_s=0, ended_writers={"a-1", "a-3"}) == 1
    with pytest.raises(StorageError, match="the draft was removed"):
        opened[0].publish({})
    for each in opened[1:]:
        each.publish({})
    for draft in drafts:
        draft.__exit__(None, None, None)
    assert storage.keys("") == ["jobs/a-2", "jobs/nobody"]
    assert list((root / ".drafts").iterdir()) == []


def test_what_is_published_while_its_writer_is_swept_away_stays_whole(root: Path, storage: FolderStorage) -> None:
    """Whichever comes first, it is whole or not there."""
    own = FolderStorage(root, writer="a-1")
    ended = threading.Event()

    def sweep() -> None:
        while not ended.is_set():
            storage.sweep(before_s=0, ended_writers={"a-1"})

    published: dict[str, str] = {}
    with ThreadPoolExecutor(1) as beside:
        sweeping = beside.submit(sweep)
        for number in range(40):
            with suppress(StorageError):
                published[f"jobs/{number}"] = publish(own, f"jobs/{number}")
        ended.set()
    sweeping.result()
    for key in storage.keys(""):
        manifest = (root / key / "manifest.json").read_bytes()
        archive = storage.open(key, f"sha256:{hashlib.sha256(manifest).hexdigest()}")
        assert b"".join(archive.read("memory.tar")) == b"memory"
    assert set(published) <= set(storage.keys(""))


def test_a_publication_is_synced_from_the_inside_out(root: Path, storage: FolderStorage) -> None:
    """After a power cut an archive is whole or not visible, and whatever publish() has returned is there."""
    with recording() as calls:
        publish(storage)
    visible = calls.index(("rename", root / KEY))
    (draft,) = {path.parent for what, path in calls.all if path.name == "manifest.json"}
    pack, manifest = calls.index(("fsync", draft / "blocks.pack")), calls.index(("fsync", draft / "manifest.json"))
    assert pack < manifest < calls.index(("fsync", draft)) < visible < calls.last(("fsync", (root / KEY).parent))
    for above in (root / KEY).parents[1:4]:
        assert calls.index(("fsync", above)) < visible


def test_a_writer_whose_draft_was_swept_away_publishes_nothing(storage: FolderStorage) -> None:
    """An agent that was stopped for a day and goes on."""
    with pytest.raises(StorageError, match="the draft was removed"), storage.draft(KEY) as draft:
        draft.add("memory.tar", [b"memory"])
        assert storage.sweep(before_s=time.time() - 3600) == 0
        assert storage.sweep(before_s=time.time() + 10) == 1
        draft.publish({})
    assert storage.keys("") == []


def test_a_reader_of_a_archive_that_is_deleted_meanwhile_finds_out(storage: FolderStorage) -> None:
    with storage.draft(KEY) as draft:
        draft.add("memory.tar", [b"memory"])
        draft.add("folder.tar", [b"folder"])
        digest = draft.publish({}).digest
    archive = storage.open(KEY, digest)
    assert b"".join(archive.read("memory.tar")) == b"memory"
    storage.delete(KEY)
    with pytest.raises(ArchiveBroken, match="gone"):
        list(archive.read("folder.tar"))


TIMES = 100
"""So often a neighbour comes and goes."""


@pytest.mark.slow
def test_publishing_goes_on_while_a_neighbour_is_deleted(storage: FolderStorage) -> None:
    """Deleting removes empty folders, perhaps the very one that a new archive is about to be put into."""
    failed: list[BaseException] = []

    def come_and_go(name: str) -> None:
        try:
            for _ in range(TIMES):
                publish(storage, f"jobs/7/attempt-3/{name}")
                storage.delete(f"jobs/7/attempt-3/{name}")
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=come_and_go, args=(f"checkpoint-{number}",)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert storage.keys("") == []


def test_a_pack_of_another_size_than_was_written_is_found_before_publishing(storage: FolderStorage, root: Path) -> None:
    with storage.draft(KEY) as draft:
        draft.add("memory", [b"as it was written"])
        (pack,) = root.glob(".drafts/*/blocks.pack")
        with pack.open("ab") as file:
            file.truncate(1000)
        with pytest.raises(StorageError, match="has 1000 bytes on the storage"):
            draft.publish({})
    assert not storage.keys("")


def test_a_publication_that_failed_after_it_became_visible_can_be_tried_again(
    storage: FolderStorage, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync = os.fsync
    fails = True

    def failing(file: int) -> None:
        if fails and (root / KEY).exists() and os.path.samestat(os.fstat(file), (root / KEY).parent.stat()):
            raise OSError(errno.EIO, "Input/output error")
        fsync(file)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(StorageError, match="Input/output error"):
        publish(storage)
    with pytest.raises(StorageError, match="Input/output error"):  # still not on disk for certain
        publish(storage)
    fails = False
    with pytest.raises(StorageError, match="already published"):
        publish(storage, content=b"other")
    digest = publish(storage)
    assert b"".join(storage.open(KEY, digest).read("memory.tar")) == b"memory"
    assert list((root / ".drafts").iterdir()) == []
