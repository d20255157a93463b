"""A process of a given size that counts: `hog.py MIB random|half FOLDER`. Runs on any Python 3, without a library.

Its memory is random, or every second MiB of it is zero; all of it is written, so that all of it is really there.
FOLDER/tick then holds a number that grows. When FOLDER/go appears, it computes for about a second with at most 128 MiB
of its memory, and writes to FOLDER/took how long that took, in seconds.
"""

import hashlib
import os
import sys
import time
from pathlib import Path

MIB = 2**20


def main() -> None:
    size_mib, kind, folder = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    memory = bytearray()
    for number in range(size_mib):
        memory += bytes(MIB) if kind == "half" and number % 2 else os.urandom(MIB)
    ticks = 0
    while True:
        if (folder / "go").exists():
            (folder / "go").unlink()
            _replace(folder / "took", _seconds_of_work(memory))
        ticks += 1
        _replace(folder / "tick", ticks)
        time.sleep(0.05)


def _seconds_of_work(memory: bytearray) -> float:
    began, start = time.monotonic(), len(memory) // 3
    for _ in range(12):
        hashlib.sha256(memoryview(memory)[start : start + 128 * MIB]).digest()
    return time.monotonic() - began


def _replace(path: Path, content: float) -> None:
    draft = path.with_suffix(".new")
    draft.write_text(str(content))
    draft.rename(path)


if __name__ == "__main__":
    main()
