"""Fill pages that are missing in another process's memory (userfaultfd(2), ioctl_userfaultfd(2))."""

from __future__ import annotations  # the node may have Python 3.9

import ctypes
import struct
from collections.abc import Iterator

_COPY, _ZERO, _WAKE = 0xC028AA03, 0xC020AA04, 0x8010AA02
FAULT, FORK, MOVE, REMOVE, UNMAP = 0x12, 0x13, 0x14, 0x15, 0x16
REPORT_BYTES = 32
_ARGUMENTS = struct.Struct("<QQQ")
_libc = ctypes.CDLL(None, use_errno=True)


def reports(content: bytes) -> Iterator[tuple[int, int, int, int]]:
    """Yield each report that was read from a userfaultfd, as its kind and three numbers.

    For a `FAULT`, the second number is the address. For a `FORK`, the first one is the child's descriptor. `MOVE` has
    the old address, the new one and the length, whereas `REMOVE` and `UNMAP` have a start and an end.
    """
    for at in range(0, len(content), REPORT_BYTES):
        yield (content[at], *_ARGUMENTS.unpack_from(content, at + 8))


def copy(descriptor: int, address: int, source: int, length: int) -> tuple[int, int]:
    """Copy our memory at the address `source` to the missing memory, and wake the threads that wait for it.

    Return the number of bytes copied, and the error number, which is 0 if all were copied.
    """
    request = (ctypes.c_int64 * 5)(address, source, length, 0, 0)
    error = _error(descriptor, _COPY, request)
    return max(0, request[4]), error


def fill_with_zeros(descriptor: int, address: int, length: int) -> int:
    """Fill missing memory with zeros, and wake the threads that wait for it. Return the error number."""
    return _error(descriptor, _ZERO, (ctypes.c_int64 * 4)(address, length, 0, 0))


def wake(descriptor: int, address: int, length: int) -> None:
    """Wake the threads that wait for memory here, so that they try again."""
    _error(descriptor, _WAKE, (ctypes.c_int64 * 2)(address, length))


def _error(descriptor: int, request: int, argument: ctypes.Array[ctypes.c_int64]) -> int:
    return 0 if _libc.ioctl(descriptor, ctypes.c_ulong(request), argument) == 0 else ctypes.get_errno()
