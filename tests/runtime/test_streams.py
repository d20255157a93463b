"""Docker's streams taken apart, without an engine: log frames, and the written layer."""

import io
import struct
import tarfile
from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.runtime.docker_layer import layer
from gleaner.agent.runtime.log_frames import MOST_BYTES, Lines, messages


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">B3xL", stream, len(content)) + content


def cut(whole: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield whole[:size]
        whole = whole[size:]
    yield whole


def lines(frames: Iterable[tuple[int, bytes]]) -> list[str]:
    split = Lines()
    return [*split.of(frames), *split.rest()]


frames = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50)), max_size=20)
sizes = st.lists(st.integers(0, 30), max_size=60)


@given(frames=frames, sizes=sizes)
def test_frames_are_found_wherever_the_stream_is_cut(frames: list[tuple[int, bytes]], sizes: list[int]) -> None:
    whole = b"".join(frame(*one) for one in frames)
    assert list(messages(cut(whole, sizes))) == frames


@given(text=st.lists(st.text(st.characters(exclude_characters="\n\r\0", exclude_categories=["Cs"]))), sizes=sizes)
def test_lines_are_whole_wherever_the_frames_end(text: list[str], sizes: list[int]) -> None:
    written = "".join(f"{line}\n" for line in text).encode()
    assert lines((1, chunk) for chunk in cut(written, sizes)) == text


def test_lines_of_stdout_and_stderr_do_not_run_into_each_other() -> None:
    assert lines([(1, b"on"), (2, b"err"), (1, b"e\ntwo"), (2, b"or\n")]) == ["one", "error", "two"]


@given(length=st.integers(0, 4 * MOST_BYTES), ended=st.booleans())
def test_a_long_line_comes_in_pieces_and_nothing_of_it_is_lost(length: int, ended: bool) -> None:
    found = lines([(1, b"x" * length + (b"\n" if ended else b""))])
    assert "".join(found) == "x" * length
    assert all(len(line) <= MOST_BYTES for line in found)
    assert len(found) == (max(1, -(-length // MOST_BYTES)) if ended or length else 0)


written = st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=50) | st.sampled_from([b"\n", b"\r\n"])))


@given(before=written, after=written)
def test_lines_are_the_same_whether_or_not_the_process_was_saved_in_between(
    before: list[tuple[int, bytes]], after: list[tuple[int, bytes]]
) -> None:
    first = Lines()
    found = list(first.of(before))
    second = Lines(dict(first.begun))
    assert [*found, *second.of(after), *second.rest()] == lines([*before, *after])


FOLDER, FILE, DEVICE, LINK = tarfile.DIRTYPE, tarfile.REGTYPE, tarfile.CHRTYPE, tarfile.SYMTYPE


def packed(**members: bytes | None) -> Iterable[bytes]:
    """Files by their content, folders by None; `__` stands for a slash."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as archive:
        archive.addfile(member(".", FOLDER))
        for name, content in members.items():
            one = member(f"./{name.replace('__', '/')}", FOLDER if content is None else FILE)
            one.size = len(content or b"")
            archive.addfile(one, io.BytesIO(content or b""))
    return [made.getvalue()]


def member(name: str, kind: bytes) -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type = kind
    return made


def unpacked(chunks: Iterable[bytes]) -> dict[str, tuple[bytes, bytes]]:
    with tarfile.open(fileobj=io.BytesIO(b"".join(chunks))) as archive:
        return {
            one.name.removeprefix("./"): (one.type, archive.extractfile(one).read() if one.isreg() else b"")  # type: ignore[union-attr]
            for one in archive
        }


def nothing_below(_: str) -> Iterable[str]:
    raise AssertionError("was asked for the image's files")


def test_a_layer_keeps_all_but_the_mounts() -> None:
    whole = packed(job=None, job__inner=b"x", jobs=b"other", var=None, var__file=b"y" * 3000)
    found = unpacked(layer(whole, without={"job"}, deleted=(), below=nothing_below))
    assert found == {
        "jobs": (FILE, b"other"),
        "var": (FOLDER, b""),
        "var__file".replace("__", "/"): (FILE, b"y" * 3000),
    }


def test_files_gone_from_a_folder_that_was_made_anew_are_marked_as_deleted() -> None:
    """An engine that compares folders names each file that is gone."""
    whole = packed(open=None, open__inner=None, open__inner__new=b"x")
    gone = {"open/inner/old", "open/inner/sub", "elsewhere/file"}
    found = unpacked(layer(whole, without=(), deleted=gone, below=nothing_below))
    assert found["open/inner/old"] == found["open/inner/sub"] == (DEVICE, b"")
    assert "elsewhere/file" not in found


def test_files_below_a_folder_that_the_engine_calls_deleted_are_marked_one_by_one() -> None:
    """An engine that reads overlay's marks names the folder, although the folder is there again."""
    whole = packed(open=None, open__inner=None, open__inner__kept=b"new", open__inner__sub=None)
    image = ["open/inner", "open/inner/kept", "open/inner/old", "open/inner/sub", "open/inner/sub/three",
             "open/inner/gone", "open/inner/gone/deep"]  # fmt: skip
    found = unpacked(layer(whole, without=(), deleted={"open/inner"}, below=lambda _: image))
    marked = {name for name, (kind, _) in found.items() if kind == DEVICE}
    assert marked == {"open/inner/old", "open/inner/sub/three", "open/inner/gone"}
    assert found["open/inner/kept"] == (FILE, b"new")


def test_a_file_deleted_from_the_images_top_is_marked() -> None:
    assert unpacked(layer(packed(), without=(), deleted={"file"}, below=nothing_below)) == {"file": (DEVICE, b"")}


def test_a_cut_off_layer_is_an_error() -> None:
    (whole,) = packed(file=b"x" * 3000)
    with pytest.raises(tarfile.TarError):
        unpacked(layer([whole[:2000]], without=(), deleted=(), below=nothing_below))
