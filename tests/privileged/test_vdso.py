"""Nothing that root's CRIU reads in a job's memory leads it to write elsewhere."""

import ctypes
import os
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gleaner.agent.privileged.shim import seal, vdso
from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.privileged.shim.vdso import Forged, Guard, VdsoPart, flaw

START = 0x7F0000000000
PAGE = 4096


def own() -> bytes:
    """This machine's own."""
    line = next(line for line in Path("/proc/self/maps").read_text().splitlines() if "[vdso]" in line)
    start, end = (int(one, 16) for one in line.split()[0].split("-"))
    return ctypes.string_at(start, end - start)


OWN = own()


def symbols(area: bytes) -> list[int]:
    """Return where the entries of the functions are, for a machine of 64 bits."""
    segments_at, segments = struct.unpack_from("<Q", area, 32)[0], struct.unpack_from("<H", area, 56)[0]
    found = [struct.unpack_from("<IIQQQQ", area, segments_at + 56 * n) for n in range(segments)]
    said = {}
    for kind, _, at, _, _, size in found:
        if kind == 2:
            said = dict(struct.unpack_from("<QQ", area, at + 16 * n) for n in range(size // 16))
    names, at = said[5], said[6]
    return [
        one
        for one in range(at, names - 23, 24)
        if area.startswith(b"__vdso_", names + struct.unpack_from("<I", area, one)[0])
    ]


@pytest.mark.parametrize("where", [len(OWN) - 15, len(OWN), -1 & (1 << 64) - 1, START, 1 << 63])
def test_no_function_lies_outside(where: int) -> None:
    for at in symbols(OWN):
        forged = bytearray(OWN)
        struct.pack_into("<Q", forged, at + 8, where)
        assert "is said to be outside of it" in str(flaw(bytes(forged)))


@given(st.binary(max_size=300), st.integers(0, len(OWN)), st.booleans())
@example(b"", 0, True)
@example(b"\x00\x80", 38, False)  # a table at an offset that no file has
def test_whatever_is_there_is_judged(junk: bytes, at: int, is_cut: bool) -> None:
    flaw(OWN[:at] + junk + (b"" if is_cut else OWN[at + len(junk) :]))


def image(*messages: bytes) -> bytes:
    return bytes(8) + b"".join(struct.pack("<I", len(one)) + one for one in messages)


def mapping(start: int, end: int, status: int) -> bytes:
    return field(14, field(1, start) + field(2, end) + field(5, 5) + field(7, status))


PRIVATE = 1 << 0 | 1 << 9
VDSO = PRIVATE | 1 << 3


def read(guard: Guard, *, mappings: list[bytes], runs: list[tuple[int, int, int]], process: int = 1) -> None:
    for name, content in (
        (f"mm-{process}.img", image(b"".join(mappings))),
        (
            f"pagemap-{process}.img",
            image(field(1, 7), *(field(1, start) + field(4, flags) + field(5, pages) for start, pages, flags in runs)),
        ),
    ):
        assert guard.reads(name)
        guard.note(name, content)


def test_where_it_is_in_the_pages() -> None:
    guard = Guard()
    read(
        guard,
        mappings=[mapping(0x1000, 0x9000, PRIVATE), mapping(START, START + 2 * PAGE, VDSO)],
        runs=[(0x1000, 3, 4), (0x5000, 2, 0), (START - PAGE, 2, 4), (START + PAGE, 1, 4)],
    )
    assert guard.parts("pages-7.img") == [VdsoPart(4 * PAGE, 2 * PAGE, "1")]
    assert guard.parts("pages-8.img") == []
    assert not guard.reads("core-1.img")


@pytest.mark.parametrize(
    ("status", "runs"),
    [
        (VDSO, []),
        (VDSO, [(START, 1, 4)]),
        (VDSO, [(START, 2, 1)]),
        (VDSO, [(START + PAGE, 1, 4), (START, 1, 4)]),
        (VDSO & ~(1 << 9) | 1 << 8, [(START, 2, 4)]),
    ],
    ids=["nowhere", "half", "with an earlier save", "in another order", "shared with others"],
)
def test_one_that_cannot_be_looked_at_is_forged(status: int, runs: list[tuple[int, int, int]]) -> None:
    guard = Guard()
    read(guard, mappings=[mapping(START, START + 2 * PAGE, status)], runs=runs)
    with pytest.raises(Forged, match="process 1 has a vDSO that is no"):
        guard.parts("pages-7.img")


def test_images_that_cannot_be_read_are_forged() -> None:
    guard = Guard()
    guard.note("mm-1.img", image(mapping(START, START + 2 * PAGE, VDSO)))
    guard.note("pagemap-1.img", image(field(1, 7), field(1, START) + field(4, 4) + field(5, 2))[:-3])
    with pytest.raises(Forged, match="what is said of the memory of process 1 cannot be read"):
        guard.parts("pages-7.img")


def test_an_image_that_is_another_one_when_it_is_read_again_is_forged() -> None:
    guard = Guard()
    for _ in range(2):
        guard.note("mm-1.img", image(b"x"))
    with pytest.raises(Forged, match=r"mm-1\.img is not the same"):
        guard.note("mm-1.img", image(b"y"))


def passed(content: bytes, parts: list[VdsoPart]) -> tuple[bytes, str]:
    """Return the bytes of these pages that CRIU gets, and why it gets no more."""
    source, feeding = os.pipe()
    taking, sink = os.pipe()
    os.set_blocking(taking, False)
    got = bytearray()
    feeder = threading.Thread(target=lambda: (os.write(feeding, content), os.close(feeding)), daemon=True)
    feeder.start()
    why = ""
    try:
        seal._pass_pages(source, sink, parts)
    except vdso.Forged as error:
        why = str(error)
        os.close(sink)
    while block := os.read(taking, 2**16):
        got += block
    os.close(taking)
    feeder.join(60)
    return bytes(got), why


def test_criu_gets_all_pages_and_nothing_of_a_forged_one() -> None:
    before, after = os.urandom(PAGE), os.urandom(2 * PAGE)
    part = VdsoPart(PAGE, len(OWN), "1")
    assert passed(before + OWN + after, [part]) == (before + OWN + after, "")
    forged = bytearray(OWN)
    struct.pack_into("<Q", forged, symbols(OWN)[0] + 8, START)
    got, why = passed(before + forged + after, [part])
    assert got == before
    assert why.startswith("the vDSO of process 1 is not a kernel's: '__vdso_")
    assert passed(before + OWN[:PAGE], [part])[0] == before
