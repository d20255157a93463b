"""The files that a container has written, out and back in."""

import io
import os
import stat
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from gleaner.agent.privileged.shim import written_layer
from gleaner.agent.privileged.shim.written_layer import Layers
from gleaner.agent.system import tar_pack
from gleaner.agent.system.tar_policy import END, MOST_STEPS, Hostile, SizeLimit


def packed(upper: Path, *images: Path) -> dict[str, tarfile.TarInfo]:
    content = b"".join(written_layer.pack(Layers(str(upper), [*map(str, images)]), SizeLimit(2**22)))
    assert len(content) % 512 == 0
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        return {member.name.removeprefix("./"): member for member in archive}


def put_back(content: bytes, target: Path, most_bytes: int = 2**20) -> None:
    target.mkdir(exist_ok=True)
    written_layer.put_back([content], str(target), SizeLimit(most_bytes))


@pytest.fixture
def upper(tmp_path: Path) -> Path:
    (tmp_path / "image" / "old" / "sub").mkdir(parents=True)
    for name in ("old/one", "old/two", "old/sub/three"):
        (tmp_path / "image" / name).touch()
    walk_and_make = tmp_path / "upper"
    walk_and_make.mkdir()
    return walk_and_make


def test_files_links_and_modes_come_back(upper: Path, tmp_path: Path) -> None:
    (upper / "d").mkdir(mode=0o750)
    (upper / "d" / "file").write_bytes(b"x" * 3_000_000)
    (upper / "d" / "file").chmod(0o4711)
    os.link(upper / "d" / "file", upper / "other")
    (upper / "link").symlink_to("/gleaner-no-such")
    os.mkfifo(upper / "fifo", 0o600)
    content = b"".join(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22)))
    put_back(content, tmp_path / "back", 2**22)
    back = tmp_path / "back"
    assert sorted(path.name for path in back.rglob("*")) == ["d", "fifo", "file", "link", "other"]
    assert (back / "d" / "file").read_bytes() == b"x" * 3_000_000
    assert (back / "d" / "file").stat().st_mode & 0o7777 == 0o4711
    assert (back / "d").stat().st_mode & 0o777 == 0o750
    assert (back / "other").samefile(back / "d" / "file")
    assert (back / "link").readlink() == Path("/gleaner-no-such")
    with pytest.raises(Hostile, match="larger"):
        put_back(content, tmp_path / "small", 1000)
    for limit in (SizeLimit(1000), SizeLimit(2**22, 3)):
        with pytest.raises(Hostile, match="than may be kept here"):
            list(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), limit))


def test_a_folder_made_anew_says_which_of_the_images_files_are_gone(
    upper: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (upper / "old" / "sub").mkdir(parents=True)
    (upper / "old" / "one").write_text("new")
    assert sorted(packed(upper, tmp_path / "image")) == ["old", "old/one", "old/sub"]
    new = (upper / "old").stat().st_ino
    monkeypatch.setattr(tar_pack, "_is_opaque", lambda folder: os.fstat(folder).st_ino == new)
    found = packed(upper, tmp_path / "image")
    gone = [name for name, member in found.items() if member.ischr()]
    assert sorted(gone) == ["old/sub/three", "old/two"]


def deleted(path: Path) -> None:
    """Leave overlay's mark for a deleted file; any user may make it (since Linux 5.8)."""
    os.mknod(path, stat.S_IFCHR, 0)


def test_a_mark_deletes_what_the_image_has_there(upper: Path, tmp_path: Path) -> None:
    deleted(upper / "old")
    (upper / "new").touch()
    put_back(
        b"".join(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22))),
        tmp_path / "image",
    )
    assert [path.name for path in (tmp_path / "image").iterdir()] == ["new"]


def test_a_link_to_a_file_of_the_image_is_refused(tmp_path: Path) -> None:
    """Overlay would copy the whole file, which no limit counts."""
    walk_and_make = io.BytesIO()
    with tarfile.open(fileobj=walk_and_make, mode="w") as archive:
        link = tarfile.TarInfo("hard")
        link.type, link.linkname = tarfile.LNKTYPE, "large"
        archive.addfile(link)
    (tmp_path / "target").mkdir()
    (tmp_path / "target" / "large").touch()
    with pytest.raises(Hostile, match="not in it"):
        put_back(walk_and_make.getvalue(), tmp_path / "target")


def test_a_layer_that_is_cut_off_between_two_files_is_an_error(upper: Path, tmp_path: Path) -> None:
    (upper / "a").touch()
    content = b"".join(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22)))
    with pytest.raises(tarfile.TarError):
        put_back(content[: -len(END)], tmp_path / "target")


def test_a_file_that_shrinks_meanwhile_keeps_the_archive_whole(upper: Path, tmp_path: Path) -> None:
    (upper / "a").write_bytes(b"x" * 3_000_000)
    (upper / "b").write_bytes(b"after")
    content = b""
    for number, chunk in enumerate(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22))):
        content += chunk
        if number == 0:
            os.truncate(upper / "a", 1000)
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        after = archive.extractfile("b")
        assert after is not None
        assert after.read() == b"after"


@pytest.mark.slow
@pytest.mark.parametrize("deep", [MOST_STEPS - 1, MOST_STEPS])
def test_what_can_be_saved_can_be_put_back(upper: Path, tmp_path: Path, deep: int) -> None:
    """A layer that is refused only when it is put back would be a save that is lost."""
    folder = upper.joinpath(*"d" * deep)
    folder.mkdir(parents=True)
    (folder / "file").touch()
    chunks = written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22))
    if deep < MOST_STEPS:
        put_back(b"".join(chunks), tmp_path / "target")
        assert tmp_path.joinpath("target", *"d" * deep, "file").exists()
    else:
        with pytest.raises(Hostile, match="folders deep"):
            list(chunks)


def test_a_name_that_is_too_long_to_be_read_again_is_refused_when_it_is_saved(upper: Path, tmp_path: Path) -> None:
    script = "import os, sys\nfor _ in range(80): os.mkdir('d' * 250); os.chdir('d' * 250)\n"
    subprocess.run([sys.executable, "-c", script], cwd=upper, check=True)
    with pytest.raises(Hostile, match="a file's name and its link have"):
        list(written_layer.pack(Layers(str(upper), [str(tmp_path / "image")]), SizeLimit(2**22)))
