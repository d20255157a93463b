"""Output archives are taken apart without trust: nothing leaves the folder, no link is followed or made."""

import io
import os
import tarfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import pytest

from gleaner.client import ClientError, unpack
from gleaner.client.steps import Steps, SyncDriver
from gleaner.client.unpack import Fetched


def archive(*members: tarfile.TarInfo | tuple[str, bytes]) -> list[bytes]:
    """A tar archive of these members, in chunks."""
    whole = io.BytesIO()
    with tarfile.open(fileobj=whole, mode="w") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member, io.BytesIO(b"x" * member.size))
            else:
                info = tarfile.TarInfo(member[0])
                info.size, info.mtime, info.mode = len(member[1]), 1_000_000_000, 0o644
                tar.addfile(info, io.BytesIO(member[1]))
    data = whole.getvalue()
    return [data[i : i + 700] for i in range(0, len(data), 700)]


def special(name: str, kind: bytes, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.mode = kind, target, mode
    return info


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


def tree(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def test_files_and_folders_arrive_with_their_content_and_time(tmp_path: Path) -> None:
    out = tmp_path / "new" / "job-7"
    fetched = fetch(archive(special("./", tarfile.DIRTYPE), ("a.txt", b"A" * 3000), ("sub/deep/b", b"B")), out)
    assert tree(out) == {"a.txt": b"A" * 3000, "sub/deep/b": b"B"}
    assert (fetched.files, fetched.size_bytes, fetched.skipped) == (2, 3001, ())
    assert (out / "a.txt").stat().st_mtime == 1_000_000_000


def test_a_hole_in_a_file_stays_one(tmp_path: Path) -> None:
    content = b"x" * 4096 + bytes(8 * 1024 * 1024) + b"y" + bytes(2 * 1024 * 1024)
    fetch(archive(("holes", content)), tmp_path)
    assert (tmp_path / "holes").read_bytes() == content
    assert (tmp_path / "holes").stat().st_blocks * 512 < 5 * 1024 * 1024


def test_only_the_execute_bit_is_taken_from_the_archive(tmp_path: Path) -> None:
    os.umask(0o022)
    info = special("tool", tarfile.REGTYPE, mode=0o6777)
    fetch(archive(info, ("plain", b"")), tmp_path)
    assert oct((tmp_path / "tool").stat().st_mode & 0o7777) == "0o755"
    assert oct((tmp_path / "plain").stat().st_mode & 0o7777) == "0o644"


@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("/etc/evil", b"x"), "an absolute path"),
        (("../evil", b"x"), "its path leaves the folder"),
        (("a/../../evil", b"x"), "its path leaves the folder"),
        (special("evil", tarfile.SYMTYPE, "/etc/passwd"), "a link"),
        (special("evil", tarfile.LNKTYPE, "../secret"), "a link"),
        (special("evil", tarfile.FIFOTYPE), "neither a file nor a folder"),
        (special("evil", tarfile.CHRTYPE), "neither a file nor a folder"),
        (special("../evil", tarfile.DIRTYPE), "its path leaves the folder"),
        ((".", b"x"), "no name"),
        (("n" * 300, b"x"), "not a file name"),
    ],
)
def test_what_may_not_be_made_is_left_out_and_named(
    member: tarfile.TarInfo | tuple[str, bytes], why: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    fetched = fetch(archive(member, ("good", b"yes")), out)
    assert len(fetched.skipped) == 1
    assert fetched.skipped[0].endswith(why)
    assert tree(out) == {"good": b"yes"}
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_a_link_in_the_archive_cannot_carry_a_later_member_out(tmp_path: Path) -> None:
    out = tmp_path / "out"
    fetched = fetch(archive(special("door", tarfile.SYMTYPE, str(tmp_path)), ("door/evil", b"x")), out)
    assert fetched.skipped == ("door: a link",)
    assert tree(out) == {"door/evil": b"x"}  # a real folder of that name
    assert not (tmp_path / "evil").exists()


def test_a_link_that_was_there_before_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    out.mkdir()
    (out / "door").symlink_to(elsewhere)
    (out / "file").symlink_to(elsewhere / "victim")
    fetched = fetch(archive(("door/evil", b"x"), ("file", b"mine")), out, overwrite=True)
    assert len(fetched.skipped) == 1
    assert fetched.skipped[0].startswith("door/evil: door is there and is not a folder")
    assert list(elsewhere.iterdir()) == []
    assert (out / "file").read_bytes() == b"mine"
    assert not (out / "file").is_symlink()


def test_a_file_that_is_there_is_kept_unless_forced(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"old")
    assert fetch(archive(("a", b"new")), tmp_path).skipped == ("a: already there; --force overwrites",)
    assert (tmp_path / "a").read_bytes() == b"old"
    assert fetch(archive(("a", b"new")), tmp_path, overwrite=True).skipped == ()
    assert (tmp_path / "a").read_bytes() == b"new"


def test_a_folder_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    assert fetch(archive(("a", b"x")), tmp_path, overwrite=True).skipped == ("a: a folder of that name is there",)


def broken_off(chunks: list[bytes]) -> list[bytes]:
    return chunks[:3]


def garbled(chunks: list[bytes]) -> list[bytes]:
    return [b"this is no archive" * 100]


def empty(chunks: list[bytes]) -> list[bytes]:
    return []


@pytest.mark.parametrize("damage", [broken_off, garbled, empty])
def test_a_damaged_archive_is_an_error_of_one_line(
    damage: Callable[[list[bytes]], list[bytes]], tmp_path: Path
) -> None:
    with pytest.raises(ClientError, match="job 7: the output is not a whole archive"):
        fetch(damage(archive(("first", b"whole"), ("a", b"A" * 5000))), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_stream_that_breaks_off_leaves_nothing_behind(tmp_path: Path) -> None:
    def stream() -> Iterator[bytes]:
        yield from archive(("a", b"A"), ("b", b"B" * 3000))[:3]
        raise ClientError("the connection is gone")

    with pytest.raises(ClientError, match="gone"):
        fetch(stream(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ClientError, match=r"cannot write to .*file"):
        fetch(archive(("a", b"A")), tmp_path / "file" / "sub")


def test_control_characters_of_a_name_do_not_reach_the_terminal(tmp_path: Path) -> None:
    fetched = fetch(archive(special("a\x1b[2Jb", tarfile.SYMTYPE, "x")), tmp_path)
    assert fetched.skipped == ("a [2Jb: a link",)
