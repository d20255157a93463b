"""A process of a given size that counts: `hog.py MIB random|half FOLDER`. Runs on any Python 3, without a library.

Its memory is random, or every second MiB of it is zero; all of it is written, so that all of it is really there.
FOLDER/ready appears when it is filled, FOLDER/tick then holds a number that grows.
"""

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
        ticks += 1
        draft = folder / "tick.new"
        draft.write_text(str(ticks))
        draft.rename(folder / "tick")
        time.sleep(0.05)


if __name__ == "__main__":
    main()
