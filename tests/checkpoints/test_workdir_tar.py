"""A job's folder packed and unpacked: nothing lost, and no way out."""

import io
import multiprocessing
import os
import socket
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.effort import examples

from gleaner.agent.checkpoints.workdir_tar import WorkdirError, clear, pack, unpack
from gleaner.agent.system.keep_patterns import Keep

Tree = dict[str, "bytes | str | Tree"]
"""Names to content: bytes are a file, a string is a symbolic link, a tree a folder."""

names = st.text(st.characters(exclude_characters="/\0", exclude_categories=()), min_size=1, max_size=60).filter(
    lambda name: name not in (".", "..") and len(os.fsencode(name)) <= 255 if _is_encodable(name) else False
)
contents = st.binary(max_size=3000) | st.builds(lambda a, n: a * n, st.binary(min_size=1, max_size=3), st.just(100_000))
targets = st.text("abc./é", min_size=1, max_size=200)
trees: st.SearchStrategy[Tree] = st.recursive(
    st.dictionaries(names, contents | targets, max_size=4),
    lambda inner: st.dictionaries(names, contents | targets | inner, max_size=4),
    max_leaves=12,
)


def _is_encodable(name: str) -> bool:
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        return False
    return True


def plant(tree: Tree, folder: Path, draw: Callable[[int], int]) -> None:
    for name, content in tree.items():
        path = folder / name
        match content:
            case bytes():
                path.write_bytes(content)
                path.chmod(draw(0o1000))
            case str():
                path.symlink_to(content)
            case _:
                path.mkdir()
                plant(content, path, draw)
                path.chmod(0o700 | draw(0o1000))
        os.utime(path, ns=(0, draw(2**61)), follow_symlinks=False)


def seen(folder: Path) -> dict[str, object]:
    found: dict[str, object] = {}
    first: dict[int, str] = {}
    for path in sorted(folder.rglob("*")):
        facts = path.lstat()
        name = str(path.relative_to(folder))
        content: object = None
        if path.is_symlink():
            content = str(path.readlink())
        elif path.is_file():
            content = (path.read_bytes(), first.setdefault(facts.st_ino, name))
        mode = 0 if path.is_symlink() else facts.st_mode
        found[name] = (stat.S_IFMT(facts.st_mode), mode, facts.st_mtime_ns, content)
    return found


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(tree=trees, data=st.data())
def test_a_folder_comes_back_exactly_and_what_was_there_is_gone(tree: Tree, data: st.DataObject) -> None:
    with TemporaryDirectory() as place:
        before, after = Path(place, "before"), Path(place, "after")
        before.mkdir()
        after.mkdir()
        (after / "old").mkdir()
        (after / "old" / "file").write_text("from another time")
        plant(tree, before, lambda most: data.draw(st.integers(0, most - 1)))
        archive = b"".join(pack(before))
        cut = data.draw(st.integers(1, 5000))
        unpack((archive[i : i + cut] for i in range(0, len(archive), cut)), after)
        assert seen(after) == seen(before)
        assert b"".join(pack(after)) == archive


def test_hard_links_holes_pipes_and_times_before_1970_survive_and_sockets_do_not(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    (before / "inner").mkdir(parents=True)
    after.mkdir()
    (before / "one").write_text("content")
    os.link(before / "one", before / "inner" / "two")
    with (before / "sparse").open("wb") as file:
        file.seek(50_000_000)
        file.write(b"in the middle")
        file.truncate(10**11)
    (before / "hole").touch()
    os.truncate(before / "hole", 10**9)
    os.mkfifo(before / "pipe", 0o640)
    (before / "old").touch()
    os.utime(before / "old", ns=(0, -1_500_000_001))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(before / "socket"))
    archive = b"".join(pack(before))
    unpack(iter([archive]), after)
    assert len(archive) < 200_000
    assert (after / "one").stat().st_ino == (after / "inner" / "two").stat().st_ino
    assert (after / "sparse").stat().st_size == 10**11
    assert (after / "sparse").stat().st_blocks < 1000
    with (after / "sparse").open("rb") as file:
        file.seek(50_000_000 - 1)
        assert file.read(15) == b"\0in the middle\0"
    assert (after / "hole").stat().st_size == 10**9
    assert stat.S_ISFIFO((after / "pipe").lstat().st_mode)
    assert (after / "old").stat().st_mtime_ns == -1_500_000_001
    assert not (after / "socket").exists()
    with tarfile.open(fileobj=io.BytesIO(archive)) as readable:
        assert readable.getmember("sparse").size == 10**11


def test_modes_that_keep_the_owner_out_are_no_obstacle() -> None:
    """In a process of an ordinary user, to whom such modes matter; who must not get at other tests' folders."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as place:
        Path(place).chmod(0o777)
        process = multiprocessing.get_context("fork").Process(target=_pack_what_is_closed, args=(Path(place),))
        process.start()
        process.join()
        assert process.exitcode == 0


def _pack_what_is_closed(place: Path) -> None:
    if os.getuid() == 0:
        os.setgroups([])
        os.setgid(65534)
        os.setuid(65534)
    before, after = place / "before", place / "after"
    (before / "closed" / "inner").mkdir(parents=True)
    after.mkdir()
    (before / "closed" / "inner" / "file").write_text("x")
    (before / "closed" / "inner" / "file").chmod(0)
    (before / "closed" / "inner").chmod(0)
    (before / "closed").chmod(0o200)
    before.chmod(0o500)
    archive = b"".join(pack(before))
    unpack(iter([archive]), after)
    assert stat.S_IMODE((before / "closed").stat().st_mode) == 0o200
    assert b"".join(pack(after)) == archive
    unpack(iter([archive]), after)
    for folder in (before, after):
        clear(folder)
        assert not list(folder.iterdir())


@pytest.mark.slow
def test_a_folder_deeper_than_any_path_is_packed_unpacked_and_removed(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    after.mkdir()
    here = os.open(before, os.O_RDONLY)
    for _ in range(700):
        os.mkdir("depths", dir_fd=here)
        inner = os.open("depths", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(here)
    archive = b"".join(pack(before))
    unpack(iter([archive]), after)
    assert b"".join(pack(after)) == archive
    for folder in (before, after):
        clear(folder)
        assert not list(folder.iterdir())


def member(name: str, kind: bytes, link: str = "", content: bytes = b"") -> tuple[tarfile.TarInfo, bytes]:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, len(content)
    return info, content


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as walk_and_make:
        for info, content in members:
            walk_and_make.addfile(info, io.BytesIO(content))
    return packed.getvalue()


FILE, LINK, HARD, DIR = tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE


@pytest.mark.parametrize(
    "members",
    [
        [member("out", LINK, "../victim"), member("again", HARD, "out")],
        [member("device", tarfile.CHRTYPE)],
        [member("twice", FILE, content=b"x"), member("twice", FILE, content=b"y")],
        [member(".", LINK, "..")],
        [member(".", FILE, content=b"x")],
        [member("self", HARD, ".")],
    ],
)
def test_an_archive_that_reaches_out_of_the_folder_is_refused(
    tmp_path: Path, members: list[tuple[tarfile.TarInfo, bytes]]
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (tmp_path / "victim").write_text("untouched")
    with pytest.raises(WorkdirError):
        unpack(iter([archive(*members)]), folder)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "victim"]
    assert (tmp_path / "victim").stat().st_nlink == 1
    assert (tmp_path / "victim").read_text() == "untouched"


def test_links_that_a_job_left_in_its_folder_are_not_followed_when_it_is_cleared(tmp_path: Path) -> None:
    folder, outside = tmp_path / "folder", tmp_path / "outside"
    folder.mkdir()
    outside.mkdir()
    (outside / "file").write_text("kept")
    (folder / "link").symlink_to(outside)
    (folder / "inner").mkdir()
    (folder / "inner" / "link").symlink_to("../../outside")
    (tmp_path / "empty").mkdir()
    unpack(pack(tmp_path / "empty"), folder)
    assert not list(folder.iterdir())
    assert (outside / "file").read_text() == "kept"


@pytest.mark.parametrize("missing", [1, 511, 512, 1024, 1025, 2048, 3000])
def test_an_archive_that_was_cut_off_is_an_error(tmp_path: Path, missing: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "file").write_bytes(b"x" * 1000)
    whole = b"".join(pack(folder))
    with pytest.raises(WorkdirError):
        unpack(iter([whole[:-missing]]), folder)


def test_a_source_that_fails_at_its_end_is_heard(tmp_path: Path) -> None:
    """An archive finds out at the last chunk that it is broken."""

    class Broken(Exception):
        pass

    def chunks() -> Iterator[bytes]:
        yield b"".join(pack(tmp_path))
        raise Broken

    (tmp_path / "folder").mkdir()
    with pytest.raises(Broken):
        unpack(chunks(), tmp_path / "folder")


def test_a_folder_that_is_gone_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WorkdirError, match="No such file"):
        list(pack(tmp_path / "gone"))
    with pytest.raises(WorkdirError, match="No such file"):
        unpack(iter([b""]), tmp_path / "gone")


def test_only_what_is_kept_is_packed_with_the_folders_on_the_way_to_it(tmp_path: Path) -> None:
    folder, again = tmp_path / "job", tmp_path / "again"
    for path in (
        "a.root",
        "a.tmp",
        "hist/one",
        "hist/deep/two",
        "logs/x/y/z.txt",
        "logs/x/y/z.root",
        "empty/of/it.tmp",
    ):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)
    (folder / "hist").chmod(0o750)
    os.link(folder / "a.tmp", folder / "hist" / "linked")
    os.link(folder / "a.tmp", folder / "hist" / "linked-too")
    again.mkdir()
    unpack(pack(folder, Keep(["*.root", "hist/**", "**/y/*.root"])), again)
    found = {str(path.relative_to(again)): path for path in again.rglob("*")}
    assert {name for name, path in found.items() if path.is_file()} == {
        "a.root", "hist/one", "hist/deep/two", "hist/linked", "hist/linked-too", "logs/x/y/z.root",
    }  # fmt: skip
    assert found["hist/linked"].read_text() == "a.tmp"  # the first name of the file is not kept
    assert found["hist/linked"].samefile(found["hist/linked-too"])
    assert stat.S_IMODE(found["hist"].stat().st_mode) == 0o750
    assert "empty" not in found


def test_what_cannot_be_packed_does_no_harm_where_it_is_not_kept(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "a.root").write_text("a")
    (tmp_path / "link").symlink_to("/etc/passwd")
    with tarfile.open(fileobj=io.BytesIO(b"".join(pack(tmp_path, Keep(["*.root"]))))) as archive:
        assert archive.getnames() == [".", "a.root"]
