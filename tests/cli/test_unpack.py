"""Output archives are taken apart without trust: nothing leaves the folder, no link is followed or made."""

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from tests.made_images import tar
from tests.transfer.node import Node

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.interface import output_key
from gleaner.agent.transfer import stage
from gleaner.client import ClientError, unpack
from gleaner.client.steps import Steps, SyncDriver
from gleaner.client.unpack import Fetched
from gleaner.control.models.outputs import ResultRow
from gleaner.control.states import Outcome, State


class Answering:
    """Control, of which only the answer with a job's output is left."""

    def __init__(self, chunks: Iterable[bytes]) -> None:
        self.chunks = chunks

    def download(self, _path: str, *, receive: Callable[[Iterator[bytes]], None]) -> Steps[None]:
        yield from ()
        receive(iter(self.chunks))


RESULT = ResultRow(
    job=7, name="pi", index=None, state=State.COMPLETE, outcome=Outcome.SUCCEEDED, attempt=1, digest="sha256:1",
    storage="/nowhere",
)  # fmt: skip


def fetch(chunks: Iterable[bytes], folder: Path, *only: str, result: ResultRow = RESULT) -> Fetched:
    control: Any = Answering(chunks)
    unpack._remove_dead_stages.cache_clear()
    steps = partial(unpack.fetch, control, result, folder, only=only, on_bytes=lambda _: None)
    return SyncDriver().perform(steps)


def refused(chunks: Iterable[bytes], folder: Path) -> str:
    with pytest.raises(ClientError) as found:
        fetch(chunks, folder)
    assert "\n" not in str(found.value)
    assert list(folder.parent.iterdir()) == []
    return str(found.value)


def tree(folder: Path) -> dict[str, bytes]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != unpack.RECORD)
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


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
    os.mkfifo(job / "sub" / "pipe")
    (job / unpack.RECORD).write_bytes(b"of a result that was an input")
    out = tmp_path / "new" / "job-7"
    fetched = fetch(workdir_tar.pack(job), out)
    assert fetched == Fetched(7, str(out), 4, 6001 + 2**40, ("out [2J: a link",))
    assert (out / "holes").stat().st_blocks == 0
    (out / "holes").unlink()
    assert tree(out) == {"a.txt": b"A" * 3000, "sub/deep/tool": b"B", "sub/twin": b"A" * 3000}
    assert (out / "a.txt").stat().st_mtime == 1e9
    modes = {str(path.relative_to(out)): path.stat().st_mode & 0o7777 for path in (out, *out.rglob("*"))}
    assert (modes.pop("."), modes.pop(unpack.RECORD)) == (0o750, 0o640)
    assert modes == {"a.txt": 0o640, "sub": 0o750, "sub/twin": 0o640, "sub/deep": 0o750, "sub/deep/tool": 0o750}


@pytest.mark.parametrize("kind", ["link", "file", "folder", "other job"])
def test_what_others_have_put_there_stays_as_it_is(kind: str, tmp_path: Path) -> None:
    elsewhere, out = tmp_path / "elsewhere", tmp_path / "out"
    fetch([tar({"a": b"old"})], elsewhere, result=RESULT.model_copy(update={"job": 8}))
    if kind == "folder":
        (elsewhere / unpack.RECORD).unlink()
    if kind == "link":
        out.symlink_to(elsewhere)
    else:
        (elsewhere / "a" if kind == "file" else elsewhere).rename(out)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ClientError, match=r"^job 7: .*/out contains other files: move them away"):
        fetch([tar({"a": b"new"})], out)
    assert sorted(tmp_path.rglob("*")) == before
    assert (out if kind == "file" else out / "a").read_bytes() == b"old"


def test_a_result_is_fetched_once_and_another_attempt_moves_the_older_one_aside(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    first = fetch([tar({"a": b"1"})], out)
    (out / "mine").write_bytes(b"kept")
    assert fetch([], out) == replace(first, is_new=False)
    second = fetch([tar({"a": b"2"})], out, result=RESULT.model_copy(update={"attempt": 2, "digest": "sha256:2"}))
    assert (second.is_new, tree(out)) == (True, {"a": b"2"})
    assert tree(tmp_path / "out.attempt-1") == {"a": b"1", "mine": b"kept"}


def test_a_pattern_takes_its_files_alone_and_more_patterns_add_to_them(job: Path, tmp_path: Path) -> None:
    (job / "sub").mkdir()
    for name in ("a.root", "b.log", "sub/c.log"):
        (job / name).write_bytes(name.encode())
    os.link(job / "b.log", job / "e.root")
    out, archive = tmp_path / "out", list(workdir_tar.pack(job))
    assert fetch(archive, out, "*.root").skipped == ("e.root: a link",)
    assert list(out.glob("[!.]*")) == [out / "a.root"]
    assert not fetch([], out, "*.root").is_new
    (out / "a.root").write_bytes(b"changed by its owner")
    assert fetch(archive, out, "**/*.log").files == 4
    expected = {"a.root": b"changed by its owner", "b.log": b"b.log", "e.root": b"b.log", "sub/c.log": b"sub/c.log"}
    assert tree(out) == expected
    assert not fetch([], out, "**/*.log", "*.root").is_new
    assert [fetch(archive, out).is_new, fetch([], out, "*.txt").is_new] == [True, False]


class Killed(BaseException):
    """The end of the program: nothing that it would have done after this happens."""


def killed_in_time(call: Callable[..., Any], left: Iterator[int], *args: Any, **more: Any) -> Any:
    """Call a function, if there are calls left."""
    if next(left, None) is None:
        raise Killed
    return call(*args, **more)


@pytest.mark.parametrize("adds", [False, True])
def test_a_fetch_that_is_killed_at_any_step_is_taken_up_again_and_nothing_is_fetched_twice(
    adds: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive, whole = [tar({"a": b"A" * 3000, "b": b"B"})], {"a": b"A" * 3000, "b": b"B"}
    only = ("*",) if adds else ()
    for step in count():
        out, left = tmp_path / str(step) / "job-7", iter(range(step))
        if adds:
            fetch(archive, out, "a")
        with monkeypatch.context() as patch, suppress(Killed):
            for name in ("mkdir", "open", "rename", "write", "fchmod", "chmod", "stat"):
                patch.setattr(os, name, partial(killed_in_time, getattr(os, name), left))
            patch.setattr(stage, "remove_stage", lambda *_: None)
            fetch(archive, out, *only)
            break
        is_whole = out.exists() and not adds
        if is_whole:
            assert tree(out) == whole
        fetch([] if is_whole else archive, out, *only)
        assert tree(out) == whole
        assert list(out.parent.iterdir()) == [out]
    assert step > 10


def test_two_fetches_into_one_folder_do_not_disturb_each_other(tmp_path: Path) -> None:
    out, archive, other = tmp_path / "out", tar({"a": b"A"}), list[Fetched]()

    def chunks() -> Iterator[bytes]:
        other.append(fetch([archive], out))
        yield archive

    assert fetch(chunks(), out) == replace(other[0], is_new=False)
    assert (other[0].is_new, tree(out), list(tmp_path.iterdir())) == (True, {"a": b"A"}, [out])


def test_a_result_is_read_in_the_storage_if_it_can_be_and_is_what_control_says(tmp_path: Path) -> None:
    digest, storage, link = Node(tmp_path).store({"a": b"A"}), tmp_path / "storage", tmp_path / "link"
    there = RESULT.model_copy(update={"attempt": 2, "digest": digest, "storage": str(storage)})
    assert fetch([], tmp_path / "read", result=there).files == 1
    link.symlink_to(storage)
    blocks = storage / output_key(7, 2) / "blocks.pack"
    for number, change in enumerate(({"digest": "sha256:0"}, {"storage": str(link)}, {})):
        if not change:
            blocks.write_bytes(bytes([blocks.read_bytes()[0] ^ 1]) + blocks.read_bytes()[1:])
        fetch([tar({"sent": b""})], tmp_path / str(number), result=there.model_copy(update=change))
        assert tree(tmp_path / str(number)) == {"sent": b""}


def test_an_archive_that_is_hostile_or_not_whole_is_one_line_and_changes_nothing(tmp_path: Path) -> None:
    whole, device = tar({"first": b"whole", "a": b"A" * 5000}), tarfile.TarInfo("sda")
    device.type = tarfile.BLKTYPE
    out = tmp_path / "new" / "out"
    for content in (whole[:3000], whole[:1024], b"no archive" * 100, b"", tar({"a": b"", "../evil": b""})):
        assert "job 7: the output is not a complete archive: " in refused([content], out)
    assert "is of a kind that is not unpacked" in refused([tar({"a": b""}, device)], out)

    def breaking_off() -> Iterator[bytes]:
        yield from io.BytesIO(whole)
        raise ClientError("the connection is gone")

    assert refused(breaking_off(), out) == "the connection is gone"


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ClientError, match=r"cannot write to .*file"):
        fetch([tar({"a": b"A"})], tmp_path / "file" / "sub")
