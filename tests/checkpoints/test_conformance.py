"""The rules that every storage keeps; there is one so far, in a folder."""

import hashlib
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.effort import examples

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, StorageError, checkpoint_key, output_key

KEY = checkpoint_key(7, 3, 1)
NOBODYS = f"sha256:{'0' * 64}"


def publish(storage: FolderStorage, key: str = KEY, content: bytes = b"memory") -> str:
    with storage.draft(key) as draft:
        draft.add("memory.tar", [content])
        return draft.publish({"criu": "4.1.1"}).digest


def content(storage: FolderStorage, key: str, digest: str) -> bytes:
    return b"".join(storage.open(key, digest).read("memory.tar"))


def test_a_draft_is_invisible_until_it_is_published_and_gone_if_it_never_is(storage: FolderStorage, root: Path) -> None:
    with pytest.raises(ZeroDivisionError), storage.draft(KEY) as draft:
        draft.add("memory.tar", [b"memory"])
        assert storage.keys("") == []
        with pytest.raises(ArchiveBroken):
            storage.open(KEY, NOBODYS)
        raise ZeroDivisionError
    assert storage.keys("") == []
    assert list((root / ".drafts").iterdir()) == []


def test_of_two_drafts_of_one_key_the_first_to_be_published_wins(storage: FolderStorage) -> None:
    with storage.draft(KEY) as one, storage.draft(KEY) as other:
        for draft, memory in ((one, b"one"), (other, b"other")):
            draft.add("memory.tar", [memory])
        digest = other.publish({}).digest
        with pytest.raises(StorageError, match="already published"):
            one.publish({})
    assert content(storage, KEY, digest) == b"other"
    assert storage.keys("") == [KEY]


def test_publishing_the_very_same_once_more_is_no_error(storage: FolderStorage, root: Path) -> None:
    digest = publish(storage)
    assert publish(storage) == digest
    assert content(storage, KEY, digest) == b"memory"
    assert list((root / ".drafts").iterdir()) == []


def test_no_archive_lies_in_another(storage: FolderStorage, root: Path) -> None:
    publish(storage)
    for inner in (f"{KEY}/inner", f"{KEY}/inner/deep"):
        with pytest.raises(StorageError, match="already published"):
            publish(storage, inner)
    assert not (root / KEY / "inner").exists()
    with pytest.raises(StorageError):
        publish(storage, "jobs/7")
    with pytest.raises(StorageError, match="a folder of them"):
        storage.delete("jobs/7")
    assert storage.keys("") == [KEY]


def test_only_the_expected_digest_opens_a_archive(storage: FolderStorage) -> None:
    digest = publish(storage)
    other_key = output_key(8, 1)
    other = publish(storage, other_key)
    assert digest != other, "the key is part of what the digest stands for"
    for key, wrong in ((KEY, other), (KEY, NOBODYS), (other_key, digest), ("jobs/9/none", digest)):
        with pytest.raises(ArchiveBroken):
            storage.open(key, wrong)


def test_archives_are_listed_by_their_beginning(storage: FolderStorage) -> None:
    keys = [checkpoint_key(7, 1, 1), checkpoint_key(7, 1, 2), checkpoint_key(70, 1, 1), output_key(7, 2)]
    for key in keys:
        publish(storage, key)
    assert storage.keys("") == sorted(keys)
    assert storage.keys("jobs/7") == sorted([keys[0], keys[1], keys[3]])
    assert storage.keys(keys[0]) == [keys[0]]
    assert storage.keys("jobs/8") == []


def test_a_deleted_archive_is_gone_and_its_key_is_free(storage: FolderStorage, root: Path) -> None:
    publish(storage)
    storage.delete(KEY)
    storage.delete(KEY)
    assert storage.keys("") == []
    assert not (root / "jobs").exists()
    digest = publish(storage, content=b"again")
    assert content(storage, KEY, digest) == b"again"


def test_a_archive_set_aside_is_out_of_the_way_and_can_be_looked_at(storage: FolderStorage, root: Path) -> None:
    for _ in range(2):
        publish(storage)
        storage.set_aside(KEY)
    storage.set_aside(KEY)
    assert storage.keys("") == []
    kept = list((root / ".broken").iterdir())
    assert len(kept) == 2
    assert all(b"memory" in (folder / "blocks.pack").read_bytes() for folder in kept)


@pytest.mark.parametrize(
    "key",
    ["", "/", "..", "../x", "jobs/../../x", "/etc/passwd", "jobs//7", "jobs/7/", ".drafts/x", "jobs/.hidden", "a\0b",
     "a b", "jobs/manifest.json", "jobs/é", "x" * 300],
)  # fmt: skip
def test_a_key_that_is_no_row_of_plain_names_is_refused(storage: FolderStorage, key: str) -> None:
    for attempt in (
        lambda: storage.draft(key).__enter__(),
        lambda: storage.open(key, NOBODYS),
        lambda: storage.delete(key),
        lambda: storage.set_aside(key),
    ):
        with pytest.raises(StorageError, match="is no key"):
            attempt()


@pytest.mark.parametrize("name", ["", "..", "a/b", "manifest.json", ".hidden", "é"])
def test_a_part_has_a_plain_name(storage: FolderStorage, name: str) -> None:
    with storage.draft(KEY) as draft, pytest.raises(StorageError, match="name of a part"):
        draft.add(name, [b""])


def test_a_part_is_added_once_and_before_publication(storage: FolderStorage) -> None:
    with storage.draft(KEY) as draft:
        draft.add("memory.tar", [b"one"])
        with pytest.raises(StorageError, match="cannot be added"):
            draft.add("memory.tar", [b"two"])
        digest = draft.publish({}).digest
        with pytest.raises(StorageError):
            draft.add("late", [b""])
        with pytest.raises(StorageError, match="has been published"):
            draft.publish({})
    assert content(storage, KEY, digest) == b"one"


@settings(max_examples=examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_one_flipped_bit_anywhere_is_found(storage: FolderStorage, root: Path, data: st.DataObject) -> None:
    digest = publish(storage, content=os.urandom(3000))
    file = data.draw(st.sampled_from(sorted((root / KEY).iterdir())))
    whole = bytearray(file.read_bytes())
    bit = data.draw(st.integers(0, 2**32)) % (len(whole) * 8)
    whole[bit // 8] ^= 1 << bit % 8
    file.write_bytes(whole)
    with pytest.raises(ArchiveBroken):
        content(storage, KEY, digest)
    storage.delete(KEY)


@pytest.mark.parametrize("number", [1, 3])
def test_a_manifest_of_another_format_is_refused_in_one_line(storage: FolderStorage, root: Path, number: int) -> None:
    publish(storage)
    manifest = root / KEY / "manifest.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "format": number}))
    with pytest.raises(ArchiveBroken, match=f"format {number}; this version reads 2 alone"):
        storage.open(KEY, f"sha256:{hashlib.sha256(manifest.read_bytes()).hexdigest()}")
