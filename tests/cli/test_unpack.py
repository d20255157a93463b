"""Output archives are taken apart without trust: nothing leaves the folder, no link is followed or made."""

import io
import os
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest
from tests.made_images import tar

from gleaner.agent.checkpoints import workdir_tar
from gleaner.client import ClientError, unpack
from gleaner.client.steps import Steps, SyncDriver
from gleaner.client.unpack import Fetched


class Answering:
    """Control, of which only the answer with a job's output is left."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = chunks

    def download(self, _path: str, *, into: IO[bytes]) -> Steps[None]:
        into.writelines(self.chunks)
        yield from ()


def fetch(chunks: Iterable[bytes], folder: Path, *, overwrite: bool = False) -> Fetched:
    control: Any = Answering(chunks)
    return SyncDriver().perform(lambda: unpack.fetch(control, 7, folder, overwrite=overwrite))


def refused(chunks: Iterable[bytes], folder: Path) -> str:
    with pytest.raises(ClientError) as found:
        fetch(chunks, folder)
    assert "\n" not in str(found.value)
    assert list(folder.iterdir()) == []
    return str(found.value)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def careful_umask() -> Iterator[None]:
    before = os.umask(0o027)
    yield
    os.umask(before)


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A job's folder, which its agent packs."""
    made = tmp_path / "job"
    made.mkdir()
    return made


@pytest.mark.usefixtures("careful_umask")
def test_what_the_job_has_left_arrives_and_what_is_no_file_is_named(job: Path, tmp_path: Path) -> None:
    (job / "sub" / "deep").mkdir(parents=True)
    (job / "a.txt").write_bytes(b"A" * 3000)
    (job / "sub/deep/tool").write_bytes(b"B")
    with (job / "holes").open("wb") as file:
        file.truncate(2**40)
    os.link(job / "a.txt", job / "sub" / "twin")
    (job / "out\x1b[2J").symlink_to("/etc/passwd")
    os.utime(job / "a.txt", (1e9, 1e9))
    for name, mode in (("a.txt", 0), ("sub/deep/tool", 0o6700), ("sub/deep", 0o500), ("sub", 0)):
        (job / name).chmod(mode)
    out = tmp_path / "new" / "job-7"
    fetched = fetch(workdir_tar.pack(job), out)
    assert fetched == Fetched(7, str(out), 4, 6001 + 2**40, ("out [2J: a link",))
    assert (out / "holes").stat().st_blocks == 0
    (out / "holes").unlink()
    assert tree(out) == {"a.txt": b"A" * 3000, "sub/deep/tool": b"B", "sub/twin": b"A" * 3000}
    assert (out / "a.txt").stat().st_mtime == 1e9
    modes = {str(path.relative_to(out)): path.stat().st_mode & 0o7777 for path in out.rglob("*")}
    assert modes == {"a.txt": 0o640, "sub": 0o750, "sub/twin": 0o640, "sub/deep": 0o750, "sub/deep/tool": 0o750}


def test_a_link_that_was_there_before_is_not_followed(job: Path, tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    for folder in (elsewhere, out, job / "door"):
        folder.mkdir()
    (out / "door").symlink_to(elsewhere)
    (out / "file").symlink_to(elsewhere / "victim")
    for name in ("door/evil", "file"):
        (job / name).write_bytes(b"mine")
    (skipped,) = fetch(workdir_tar.pack(job), out, overwrite=True).skipped
    assert skipped.startswith("door/evil: door is there and is not a folder")
    assert list(elsewhere.iterdir()) == []
    assert (out / "file").read_bytes() == b"mine"
    assert not (out / "file").is_symlink()


def test_a_file_that_is_there_is_kept_unless_forced_and_a_folder_always(job: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "folder").mkdir(parents=True)
    (out / "a").write_bytes(b"old")
    for name in ("a", "folder"):
        (job / name).write_bytes(b"new")
    kept = [f"{name}: already there; --force overwrites" for name in ("a", "folder")]
    assert list(fetch(workdir_tar.pack(job), out).skipped) == kept
    assert tree(out) == {"a": b"old"}
    forced = fetch(workdir_tar.pack(job), out, overwrite=True)
    assert forced.skipped == ("folder: a folder of that name is there",)
    assert tree(out) == {"a": b"new"}


def test_an_archive_that_is_hostile_or_not_whole_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    whole, device = tar({"first": b"whole", "a": b"A" * 5000}), tarfile.TarInfo("sda")
    device.type = tarfile.BLKTYPE
    out = tmp_path / "out"
    for content in (whole[:3000], whole[:1024], b"no archive" * 100, b"", tar({"a": b"", "../evil": b""})):
        assert "job 7: the output is not a whole archive: " in refused([content], out)
    assert "is of a kind that is not unpacked" in refused([tar({"a": b""}, device)], out)

    def breaking_off() -> Iterator[bytes]:
        yield from io.BytesIO(whole)
        raise ClientError("the connection is gone")

    assert refused(breaking_off(), out) == "the connection is gone"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ClientError, match=r"cannot write to .*file"):
        fetch([tar({"a": b"A"})], tmp_path / "file" / "sub")
