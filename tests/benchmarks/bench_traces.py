"""The speed and the memory of reading traces of a million jobs. `python tests/benchmarks/bench_traces.py`.

Each file is read twice, by a fresh process each: the first may compile, so the second counts. The memory is the most
that the process held, the interpreter and the compiler included.
"""

import gzip
import multiprocessing
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.simulation.swf_files import write_swf
from tests.simulation.traces import SACCT_COLUMNS

from gleaner.control.simulation.model import Workload, of_processors
from gleaner.control.simulation.workloads import traces
from gleaner.control.simulation.workloads.synthetic import Source, SyntheticSettings, make

OUTPUT = Path("bench-output/traces.json")
JOBS = 1_000_000
PROCESSORS = 4000


@dataclass(frozen=True, slots=True)
class Reading:
    """One file, read."""

    file: str
    file_mib: float
    seconds: float
    jobs_per_s: float
    memory_mib: float


def main() -> None:
    """Make the files, read them, print the table."""
    settings = SyntheticSettings(source=Source.LUBLIN, jobs=JOBS, load=0.9)
    made = make(settings, of_processors(PROCESSORS))
    writers: dict[str, Callable[[Path, Workload], object]] = {
        "log.swf": lambda path, jobs: write_swf(path, jobs, header={"MaxProcs": PROCESSORS}),
        "log.swf.gz": lambda path, jobs: write_swf(path, jobs, header={"MaxProcs": PROCESSORS}),
        "sacct.txt": lambda path, jobs: path.write_bytes(_accounting(jobs)),
        "sacct.txt.gz": lambda path, jobs: path.write_bytes(gzip.compress(_accounting(jobs), 1)),
    }
    readings: list[Reading] = []
    figures = StoredFigures(OUTPUT, readings=[])
    with tempfile.TemporaryDirectory() as folder:
        for name, write in writers.items():
            write(path := Path(folder) / name, made)
            for _ in range(2):
                with multiprocessing.get_context("spawn").Pool(1) as pool:
                    reading = pool.apply(read, (path,))
            readings.append(reading)
            figures.add("readings", reading)
            Console().print(f"{name}: {reading.jobs_per_s:,.0f} jobs a second")
            path.unlink()
    Console().print(table(readings))


def read(path: Path) -> Reading:
    """In a process of its own."""
    begin_s = time.perf_counter()
    jobs = len(traces.read(path).workload)
    seconds = time.perf_counter() - begin_s
    memory_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Reading(path.name, path.stat().st_size / 2**20, seconds, jobs / seconds, memory_mib)


def _accounting(jobs: Workload) -> bytes:
    submitted = (jobs.submit_s + 1_700_000_000).astype("datetime64[s]").astype(str).tolist()
    rows = zip(
        jobs.job.tolist(),
        submitted,
        jobs.run_s.astype(np.int64).tolist(),
        (jobs.limit_s // 60).astype(np.int64).tolist(),
        jobs.processors.tolist(),
        strict=True,
    )
    lines = [SACCT_COLUMNS.replace(",", "|")]
    lines += [
        f"{job}|{submit}|{submit}|{submit}|{run}|{limit}|{size}|1|{size % 8 + 1}G|u{job % 500}|a{job % 40}|COMPLETED"
        for job, submit, run, limit, size in rows
    ]
    return ("\n".join(lines) + "\n").encode()


def table(readings: list[Reading]) -> Table:
    """One row a file."""
    shown = Table("file", "MiB", "seconds", "jobs a second", "memory, MiB", title=f"traces of {JOBS:,} jobs")
    for one in readings:
        shown.add_row(
            one.file, f"{one.file_mib:.0f}", f"{one.seconds:.2f}", f"{one.jobs_per_s:,.0f}", f"{one.memory_mib:.0f}"
        )
    return shown


if __name__ == "__main__":
    sys.exit(ended(main, "bench_traces", OUTPUT))
