"""The rates at which archives become durable and are read, beside those of `dd` and of a plain copy.

    python tests/benchmarks/bench_storage.py [--mib 1024] [--rounds 3] [--folder DIR]

Each content is in memory before the clock starts. `save` goes from the first byte to the published archive, all of it
synced; `dd` is `dd conv=fsync` from /dev/shm; `copy` is Python's write and fsync. They take turns in every round, since
a disk's own rate changes; shown is the median. `read` is with the archive in the page cache. Only numbers of one run
can be compared. MB are 10^6 bytes.
"""

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.folder_storage import FolderStorage

OUTPUT = Path("bench-output/storage.json")
CHUNK_BYTES = 2**20
PAGE_BYTES = 4096
T = TypeVar("T")
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True, slots=True)
class Row:
    """Rates are in MB/s of plain content; `stored` is the share that was written."""

    content: str
    save: float
    read: float
    dd: float
    copy: float
    stored: float
    cpu_s: float
    """Processor time of one save."""


def contents(size_bytes: int) -> dict[str, bytes]:
    """The kinds of memory: random; every other MiB zero; like a log; the first with one page in 1000 changed."""
    noise = os.urandom(size_bytes)
    half = b"".join(
        bytes(CHUNK_BYTES) if at // CHUNK_BYTES % 2 else noise[at : at + CHUNK_BYTES]
        for at in range(0, size_bytes, CHUNK_BYTES)
    )
    words = os.urandom(2**16).hex()
    lines = "".join(f"{number} {words[number * 7 % 60_000 :][:40]} event\n" for number in range(2**16)).encode()
    text = (lines * (size_bytes // len(lines) + 1))[:size_bytes]
    changed = bytearray(noise)
    for at in range(0, size_bytes - PAGE_BYTES, 1000 * PAGE_BYTES):
        changed[at : at + PAGE_BYTES] = os.urandom(PAGE_BYTES)
    return {"random": noise, "half zero": half, "text": text, "as before": bytes(changed)}


def timed(act: Callable[[], T]) -> tuple[float, T]:
    """Return the seconds that `act` took, and its result. First put on the disk what was written before."""
    os.sync()
    began_s = time.perf_counter()
    result = act()
    return time.perf_counter() - began_s, result


def save(storage: FolderStorage, content: bytes, before: FolderArchive | None) -> tuple[str, int]:
    """Publish at `new`, as a pipe's reader does it; the digest, and what was stored."""
    buffer = memoryview(bytearray(CHUNK_BYTES))
    source = memoryview(content)
    with storage.draft("new", before) as draft:
        with draft.part("pages-1.img") as part:
            for start in range(0, len(content), CHUNK_BYTES):
                count = min(CHUNK_BYTES, len(content) - start)
                buffer[:count] = source[start : start + count]
                part.write(buffer[:count])
        made = draft.publish({})
    return made.digest, made.stored_bytes


def copy(content: bytes, target: Path) -> None:
    with target.open("wb", buffering=0) as file:
        source = memoryview(content)
        for start in range(0, len(content), CHUNK_BYTES):
            file.write(source[start : start + CHUNK_BYTES])
        os.fsync(file.fileno())


def dd(source: Path, target: Path) -> None:
    subprocess.run(["dd", f"if={source}", f"of={target}", "bs=1M", "conv=fsync", "status=none"], check=True)


def measured(folder: Path, name: str, content: bytes, older: bytes, rounds: int) -> Row:
    storage = FolderStorage(folder / "storage")
    storage.prepare()
    before: FolderArchive | None = None
    if name == "as before":
        with storage.draft("before") as draft:
            draft.add("pages-1.img", [older])
            digest = draft.publish({}).digest
        before = storage.open("before", digest)
    times: dict[str, list[float]] = {"save": [], "read": [], "dd": [], "copy": [], "cpu": []}
    stored_bytes = 0
    with tempfile.NamedTemporaryFile(dir=SHARED_MEMORY) as source:
        source.write(content)
        source.flush()
        target = folder / "copy"
        for _ in range(rounds):
            times["dd"].append(timed(partial(dd, Path(source.name), target))[0])
            target.unlink()
            cpu_s = time.process_time()
            took_s, (digest, stored_bytes) = timed(partial(save, storage, content, before))
            times["cpu"].append(time.process_time() - cpu_s)
            times["save"].append(took_s)
            times["read"].append(timed(partial(read, storage.open("new", digest)))[0])
            storage.delete("new")
            times["copy"].append(timed(partial(copy, content, target))[0])
            target.unlink()
    storage.delete("before")
    rates = {kind: len(content) / 1e6 / statistics.median(taken) for kind, taken in times.items() if kind != "cpu"}
    return Row(name, stored=stored_bytes / len(content), cpu_s=statistics.median(times["cpu"]), **rates)


def read(archive: FolderArchive) -> None:
    for _ in archive.read("pages-1.img"):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path("/var/tmp"), help="on the disk to measure")
    given = parser.parse_args()
    made = contents(given.mib * 2**20)
    rows: list[Row] = []
    figures = StoredFigures(OUTPUT, mib=given.mib, rows=[])
    with tempfile.TemporaryDirectory(dir=given.folder) as place:
        for name, content in made.items():
            print(f"{name} ...", file=sys.stderr)
            rows.append(measured(Path(place), name, content, made["random"], given.rounds))
            figures.add("rows", rows[-1])
            print(f"{name}: saved at {rows[-1].save:.0f} MB/s, read at {rows[-1].read:.0f} MB/s")
    table = Table("content", "save", "dd", "copy", "read", "stored", "CPU s", title=f"{given.mib} MiB, MB/s")
    for row in rows:
        rates = [f"{rate:.0f}" for rate in (row.save, row.dd, row.copy, row.read)]
        table.add_row(row.content, *rates, f"{row.stored:.0%}", f"{row.cpu_s:.2f}")
    Console().print(table)


if __name__ == "__main__":
    sys.exit(ended(main, "bench_storage", OUTPUT))
