"""Mark memory that a child inherits as zeros (madvise(2), MADV_WIPEONFORK), which CRIU 4 restores as ordinary memory.

In such memory, glibc 2.41 and newer, and cryptographic libraries, keep the state of their random number generators. If
the mark were lost in a restore, all children of a process would draw the same random numbers as their parent. So the
mark is added to CRIU's image of the mappings while CRIU saves, because CRIU restores all advice in this image.

The formats are those of CRIU's images/mm.proto and images/vma.proto.
"""

from __future__ import annotations  # the node may have Python 3.9

import re

from ..common.processes import family, status
from .criu_messages import Value, field, fields, number_in
from .vdso import messages, with_messages

IMAGE = re.compile(r"mm-([0-9]{1,10})\.img\Z")
_ADVICE = 1 << 18
_MAPPINGS, _START, _END, _ADVICES = 14, 1, 2, 9
_AREA = re.compile(r"(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) ")


def pids_by_inner_pid(init_pid: int) -> dict[str, int]:
    """Return the pids of a container's processes by their pids inside the container. Raises `OSError`."""
    return {status(f"/proc/{pid}/status")["NSpid"][-1]: pid for pid in family(init_pid)}


def areas_of(pid: int) -> set[tuple[int, int]]:
    """Return the start and end of each marked mapping of a process. Raises `OSError`."""
    with open(f"/proc/{pid}/smaps", encoding="utf-8", errors="replace") as file:
        return areas(file.read())


def areas(smaps: str) -> set[tuple[int, int]]:
    r"""Return the start and end of each marked mapping from the text of `/proc/PID/smaps` (proc(5)).

    >>> areas("1000-2000 rw-p 0 00:00 0\nSize: 4 kB\nVmFlags: rd wf dd \n2000-3000 rw-p 0 00:00 0\nVmFlags: rd \n")
    {(4096, 8192)}
    """
    found: set[tuple[int, int]] = set()
    area = 0, 0
    for line in smaps.splitlines():
        if matched := _AREA.match(line):
            area = int(matched["start"], 16), int(matched["end"], 16)
        elif line.startswith("VmFlags:") and "wf" in line.split():
            found.add(area)
    return found


def marked(image: bytes, areas: set[tuple[int, int]]) -> bytes:
    """Return an image of mappings with the mark set on these areas.

    Raises `NotUnderstood`, `ValueError` or `struct.error`.
    """
    if not areas:
        return image
    changed = (
        [field(number, _marked(number, value, areas)) for number, value in fields(one)] for one in messages(image)
    )
    return with_messages(image, map(b"".join, changed))


def _marked(number: int, value: Value, areas: set[tuple[int, int]]) -> Value:
    if number != _MAPPINGS or isinstance(value, int):
        return value
    mapping = dict(fields(value))
    if (number_in(mapping.get(_START, 0)), number_in(mapping.get(_END, 0))) not in areas:
        return value
    mapping[_ADVICES] = number_in(mapping.get(_ADVICES, 0)) | _ADVICE
    return b"".join(field(*one) for one in mapping.items())
