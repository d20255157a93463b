"""A campaign of 100,000 jobs submitted, and results fetched, by `glean` itself: `make bench-campaign`; five minutes.

Control serves its API in this process, on a PostgreSQL that waits for the disk. `glean` is a program of its own on the
same machine, so it reads results in the storage. The rate of a fetch stands beside that of `cp -r` of the same archives
to the same disk. Both begin with a cold page cache and end with a sync. `cpu_s` is what `glean` (or `cp`) and control
have used of the processor; PostgreSQL's is not in it.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.cli.cli_harness import GLEAN, CliHarness, admins_glean, serving, users_glean
from tests.postgres import running

from gleaner.control.queue.database import connect, migrate

OUTPUT = Path("bench-output/campaign.json")
GRID = "{name: grid, image: pi, command: [pi, '{a}', '{b}'], parameters: {a: 1-1000, b: 1-100}}\n"
figures = StoredFigures(OUTPUT, cores=os.cpu_count(), rows=[])


def main() -> None:
    with TemporaryDirectory(prefix="gleaner-bench-") as folder:
        place = Path(folder)
        place.chmod(0o711)  # for PostgreSQL's account
        with running(durable=True, place=place, settings=("shared_buffers=256MB", "max_wal_size=4GB")) as server:
            url = server.create("queue")
            migrate(connect(url))
            with serving(place, url) as service:
                _run(users_glean(admins_glean(service, place), place))
    print(f"The same figures: {OUTPUT}")


def _run(control: CliHarness) -> None:
    fetch = (GLEAN, "results", "--campaign")
    _complete(control, 5000, lambda: {"result.json": os.urandom(1000)})
    _measure(control, "5,000 small results fetched", 60, *fetch, "1")
    _measure(control, "the same again, with all of them there", 10, *fetch, "1")
    _complete(control, 10, lambda: {f"{number}.root": os.urandom(10**7) for number in range(10)})
    packs = control.state.settings.storage.folder.rglob("blocks.pack")
    archives = [str(path.parents[1]) for path in packs if path.stat().st_size > 10**7]
    copy_s = _measure(control, "1 GB copied by cp", 60, "cp", "-r", *archives, ".")
    _measure(control, "1 GB in 100 files fetched, at 0.8 of the rate of cp", copy_s / 0.8, *fetch, "2")
    (control.folder / "grid.yaml").write_text(GRID)
    _measure(control, "100,000 jobs submitted", 5, GLEAN, "submit", "grid.yaml")


def _complete(control: CliHarness, jobs: int, files: Callable[[], Mapping[str, bytes]]) -> None:
    """Submit a campaign whose jobs end at once, and leave these files."""
    control.good("submit", "--image", "pi", "--array", f"1-{jobs}")
    while claimed := control.node.claim():
        for job in claimed:
            control.node.complete(job, files=files())


def _measure(control: CliHarness, what: str, at_most_s: float, *words: str) -> float:
    """Return how long a program and a sync of the disk take. No file of the storage is in the page cache before."""
    for path in control.state.settings.storage.folder.rglob("blocks.pack"):
        with path.open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    os.sync()
    wall_s, before = time.perf_counter(), os.times()
    subprocess.run(
        words, cwd=control.folder, env=os.environ | control.environment, stdout=subprocess.DEVNULL, check=True
    )
    os.sync()
    wall_s, cpu_s = time.perf_counter() - wall_s, sum(os.times()[:4]) - sum(before[:4])
    figures.add("rows", {"what": what, "wall_s": wall_s, "cpu_s": cpu_s, "at_most_s": at_most_s})
    print(
        f"{what}: {wall_s:.2f} s ({cpu_s:.2f} s of CPU time), {wall_s / at_most_s:.2f} of the aim of {at_most_s:.2f} s"
    )
    return wall_s


if __name__ == "__main__":
    sys.exit(ended(main, "make bench-campaign", OUTPUT))
