"""Archives that nobody vouches for: what an image's layers may do to each other, and that they reach nothing else."""

import contextlib
import io
import os
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gleaner.agent.system.tar_policy import Hostile, Policy, SizeLimit, steps
from gleaner.agent.system.tar_unpack import TarSource, unpack

DIR, FILE, LINK, HARD = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE
FIFO, CHAR, BLOCK = tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE
Member = tuple[str, bytes, str]
"""A name, a kind, and a file's content or a link's target."""


def archive(*members: Member, **more: Any) -> io.BytesIO:
    walk_and_make = io.BytesIO()
    with tarfile.open(fileobj=walk_and_make, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, kind, text in members:
            member = tarfile.TarInfo(name)
            member.type, member.uid, member.gid = kind, os.getuid(), os.getgid()
            member.mode = 0o755 if kind == DIR else 0o644
            content = text.encode() if kind == FILE else b""
            member.size, member.linkname = len(content), "" if kind == FILE else text
            for key, value in more.items():
                setattr(member, key, value)
            tar.addfile(member, io.BytesIO(content))
    walk_and_make.seek(0)
    return walk_and_make


def put(target: Path, *members: Member, is_image: bool = True, limit: SizeLimit | None = None, **more: Any) -> None:
    target.mkdir(exist_ok=True)
    folder = os.open(target, os.O_RDONLY | os.O_DIRECTORY)
    try:
        policy = Policy(
            limit or SizeLimit(2**20),
            has_owners=True,
            is_overlaid=True,
            has_whiteouts=is_image,
            has_own_links=not is_image,
        )
        unpack(TarSource([archive(*members, **more).getvalue()]), folder, policy)
    finally:
        os.close(folder)


def seen(target: Path) -> dict[str, str]:
    """All that is there: a file's content, `->` and a link's target, or `/` for a folder."""
    found: dict[str, str] = {}
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        found[name] = f"->{path.readlink()}" if path.is_symlink() else "/" if path.is_dir() else path.read_text()
    return found


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "target"


def test_layers_lie_one_over_the_other(target: Path) -> None:
    put(target, ("a", DIR, ""), ("a/one", FILE, "1"), ("a/two", FILE, "2"), ("b/c/deep", FILE, "3"), ("l", LINK, "a"))
    put(target, ("a/one", FILE, "new"), ("a/.wh.two", FILE, ""), (".wh.b", FILE, ""), (".wh.nothing", FILE, ""))
    assert seen(target) == {"a": "/", "a/one": "new", "l": "->a"}


def test_an_opaque_folder_hides_what_was_there_and_not_what_comes_with_it(target: Path) -> None:
    put(target, ("a/old", FILE, "1"), ("a/sub/old", FILE, "1"), ("a/kept/old", FILE, "1"))
    put(
        target, ("a/new", FILE, "2"), ("a/kept/new", FILE, "2"), ("a/.wh..wh..opq", FILE, ""), ("a/sub/late", FILE, "2")
    )
    assert seen(target) == {
        "a": "/", "a/new": "2", "a/kept": "/", "a/kept/new": "2", "a/sub": "/", "a/sub/late": "2"
    }  # fmt: skip


def test_a_file_may_take_the_place_of_a_folder_or_a_link_and_the_other_way(target: Path) -> None:
    put(target, ("a/b", FILE, "1"), ("f", FILE, "1"), ("l", LINK, "/gleaner-no-such/file"))
    put(target, ("a", FILE, "2"), ("f", DIR, ""), ("l", FILE, "mine"))
    assert seen(target) == {"a": "2", "f": "/", "l": "mine"}


def test_hard_links_are_one_file(target: Path) -> None:
    put(target, ("a", FILE, "1"), ("d/b", HARD, "a"))
    assert (target / "a").samefile(target / "d/b")


@pytest.mark.parametrize("name", ["../x", "/../x", "a/../../x", "a/..", "..", "a/../b", "a/" * 300 + "x"])
def test_names_that_lead_out_are_refused(target: Path, name: str) -> None:
    with pytest.raises(Hostile):
        put(target, (name, FILE, "x"))
    assert not target.parent.joinpath("x").exists()
    with pytest.raises(Hostile):
        put(target, ("ok", FILE, ""), ("hard", HARD, name))


@pytest.mark.parametrize("to", ["OUTSIDE", "..", "../outside", ".", "a"])
@pytest.mark.parametrize("kind", [FILE, DIR, HARD, LINK])
def test_nothing_is_written_through_a_link(target: Path, tmp_path: Path, to: str, kind: bytes) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    with pytest.raises(Hostile, match="no folder"):
        link = ("link", LINK, to.replace("OUTSIDE", str(outside)))
        put(target, ("a", DIR, ""), ("ok", FILE, ""), link, ("link/new", kind, "ok"))
    assert list(outside.iterdir()) == []
    assert not (target / "new").exists()


def test_marks_of_a_layer_delete_nothing_outside(target: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    for hostile in ("link/.wh.kept", "link/.wh..wh..opq"):
        with pytest.raises(Hostile):
            put(target, ("link", LINK, str(outside)), (hostile, FILE, ""))
    for hostile in (".wh...", ".wh.", ".wh.."):
        try:
            put(target, (hostile, FILE, ""))
        except Hostile:
            continue
    put(target, (".wh.link", FILE, ""))
    assert (outside / "kept").exists()
    assert seen(target) == {}


def test_a_hard_link_is_a_name_for_a_file_or_in_an_image_for_a_link(target: Path) -> None:
    there = (("d", DIR, ""), ("fifo", FIFO, ""), ("link", LINK, "/gleaner-no-such"))
    for other in ("d", "gone", "fifo"):
        with pytest.raises(Hostile, match="link"):
            put(target, *there, ("hard", HARD, other))
    with pytest.raises(Hostile, match="link"):
        put(target, *there, ("hard", HARD, "link"), is_image=False)
    put(target, *there, ("hard", HARD, "link"))
    assert (target / "hard").readlink() == Path("/gleaner-no-such")


@pytest.mark.parametrize("kind", [CHAR, BLOCK])
@pytest.mark.parametrize("is_image", [True, False])
def test_devices_are_never_made(target: Path, kind: bytes, is_image: bool) -> None:
    put(target, ("sda", kind, ""), is_image=is_image, devmajor=8, devminor=0)
    assert seen(target) == {}


def test_what_is_too_much_is_refused_before_it_is_written(target: Path) -> None:
    with pytest.raises(Hostile, match="larger"):
        put(target, ("big", FILE, "x" * 1000), limit=SizeLimit(999))
    with pytest.raises(Hostile, match="more files"):
        put(target, *((f"f{number}", FILE, "") for number in range(11)), limit=SizeLimit(10, most_files=10))
    put(target, ("big", FILE, "x" * 1000), limit=SizeLimit(1000))


def test_folders_have_their_times_and_modes_whatever_is_put_into_them_later(target: Path) -> None:
    put(target, ("a", DIR, ""), ("a/b", FILE, "1"), ("f", FIFO, ""), pax_headers={"mtime": "7.000000001"}, mode=0o751)
    facts = [(target / name).stat() for name in ("a", "a/b", "f")]
    assert {(one.st_mtime_ns, one.st_mode & 0o7777) for one in facts} == {(7_000_000_001, 0o751)}


def test_a_time_of_many_digits_is_refused(target: Path) -> None:
    """Python before 3.11 would work minutes on a million of them."""
    with pytest.raises(ValueError, match="has a time of 1000 characters"):
        put(target, ("a", FILE, ""), pax_headers={"mtime": "1" * 1000})


def test_a_header_on_which_python_would_work_for_minutes_is_refused(target: Path) -> None:
    with pytest.raises(Hostile, match="a header of"):
        put(target, ("a", FILE, ""), pax_headers={"mtime": "1" * 10**6})


def test_a_sparse_file_that_claims_to_be_huge_is_refused(target: Path) -> None:
    with pytest.raises(Hostile):
        put(target, ("huge", tarfile.GNUTYPE_SPARSE, ""), limit=SizeLimit(10))


names = st.lists(st.sampled_from(["a", "b", "c", ".wh.a", ".wh.b", ".wh..wh..opq"]), min_size=1, max_size=4).map(
    "/".join
)
members = st.tuples(
    names | st.sampled_from(["..", "a/../b", "/a", "."]),
    st.sampled_from([DIR, FILE, LINK, HARD, FIFO, CHAR]),
    st.sampled_from(["a", "b", "../outside", "..", "a/b", "OUTSIDE", "OUTSIDE/secret"]),
)


@pytest.mark.slow
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(layers=st.lists(st.lists(members, max_size=8), max_size=3), is_image=st.booleans())
def test_no_archive_reaches_outside(tmp_path: Path, layers: list[list[Member]], is_image: bool) -> None:
    place = Path(tempfile.mkdtemp(dir=tmp_path))
    outside = place / "outside"
    outside.mkdir(parents=True)
    (outside / "secret").write_text("secret")
    inode = (outside / "secret").stat()
    for layer in layers:
        given = [(name, kind, text.replace("OUTSIDE", str(outside))) for name, kind, text in layer]
        with contextlib.suppress(Hostile, OSError):
            put(place / "target", *given, is_image=is_image)
    after = (outside / "secret").stat()
    assert (outside / "secret").read_text() == "secret"
    assert (after.st_nlink, after.st_mode, after.st_uid) == (1, inode.st_mode, inode.st_uid)
    assert sorted(path.name for path in place.iterdir()) in (["outside"], ["outside", "target"])
    assert [path.name for path in outside.iterdir()] == ["secret"]


@given(name=st.text(st.sampled_from("a./\0"), max_size=12))
def test_steps_are_single_and_go_down(name: str) -> None:
    try:
        found = steps(name)
    except Hostile:
        return
    assert all(step not in ("", ".", "..") and "/" not in step for step in found)
