"""Log frames taken apart, without an engine."""

import struct
from collections.abc import Iterable, Iterator

from hypothesis import given
from hypothesis import strategies as st

from gleaner.agent.reporting.output_lines import MOST_BYTES, OutputLines
from gleaner.agent.runtime.log_frames import messages


def frame(stream: int, content: bytes) -> bytes:
    return struct.pack(">B3xL", stream, len(content)) + content


def cut(whole: bytes, sizes: list[int]) -> Iterator[bytes]:
    for size in sizes:
        yield whole[:size]
        whole = whole[size:]
    yield whole


def lines(frames: Iterable[tuple[int, bytes]]) -> list[str]:
    split = OutputLines()
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
