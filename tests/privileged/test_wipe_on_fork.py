"""Memory that a child gets as zeros: CRIU's image of the mappings says so after all."""

import ctypes
import mmap
import os
import struct

from gleaner.agent.privileged.shim.criu_messages import field
from gleaner.agent.privileged.shim.wipe_on_fork import areas_of, marked

MADV_WIPEONFORK, MADV_DONTDUMP = 18, 16
HEAD = b"12345678"


def image(*mappings: bytes) -> bytes:
    message = field(1, 7) + b"".join(field(14, one) for one in mappings) + field(13, b"\x01")
    return HEAD + struct.pack("<I", len(message)) + message


def mapping(start: int, end: int, *advice: int) -> bytes:
    return field(1, start) + field(2, end) + field(8, 2**64 - 1) + b"".join(field(9, one) for one in advice)


def test_the_mark_comes_to_its_mapping_alone_and_all_else_stays() -> None:
    before = image(mapping(4096, 8192), mapping(8192, 12288, 1 << MADV_DONTDUMP), mapping(12288, 16384))
    mark = 1 << MADV_WIPEONFORK
    wanted = image(mapping(4096, 8192), mapping(8192, 12288, 1 << MADV_DONTDUMP | mark), mapping(12288, 16384, mark))
    assert marked(before, {(8192, 12288), (12288, 16384), (0, 4096)}) == wanted
    assert marked(before, set()) == before


def test_the_kernel_tells_where_such_memory_is() -> None:
    memory = mmap.mmap(-1, 3 * mmap.PAGESIZE, flags=mmap.MAP_PRIVATE)
    start = ctypes.addressof(ctypes.c_char.from_buffer(memory)) + mmap.PAGESIZE
    pid = str(os.getpid())
    area = start, start + mmap.PAGESIZE
    assert area not in areas_of(os.getpid(), pid)
    memory.madvise(MADV_WIPEONFORK, mmap.PAGESIZE, mmap.PAGESIZE)
    assert area in areas_of(os.getpid(), pid)
    assert areas_of(os.getpid(), "1") == set()
