"""How fast jobs are claimed and completed, on real databases that wait for the disk. `make bench-queue`.

Each worker is a process that plays one agent after the other: it claims one job and reports it complete, one
transaction each, as fast as the answers come. The time of the claim and of the report are measured apart. One job a
claim is the worst case: an agent with several free cores takes as many jobs as fit in the same transaction.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.synchronize import Barrier
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Engine, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from gleaner.agent.protocol import Ask, Completed, NodeFacts, Registration, Slice
from gleaner.control.api.shapes import JobSpec, Submission
from gleaner.control.queue import agents, moves, tokens
from gleaner.control.queue.engine import connect, migrate, transaction
from tests.postgres import running

OUTPUT = Path("bench-output/queue.json")
LENGTHS = (1_000, 100_000, 1_000_000)
CPUS, MEMORY_MIB = 1, 512
FACTS = NodeFacts(
    node="bench", cpus=64, memory_mib=262_144, runtime="none", criu="", kernel="6.1", architecture="x86_64"
)


@dataclass(frozen=True, slots=True)
class Timing:
    """One kind of call. `rate` counts all workers together."""

    calls: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `rate`: claimed and completed jobs a second, all workers together."""

    database: str
    waiting: int
    workers: int
    jobs_a_claim: int
    rate: float
    claim: Timing
    complete: Timing


def main() -> None:
    options = _options()
    console = Console()
    rows: list[Row] = []
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir=options.place) as place:
        sync_ms = _sync_ms(Path(place))
        for kind in options.databases.split(","):
            for waiting in track(lengths, description=f"{kind}", console=console, transient=True):
                with _database(kind, Path(place)) as url:
                    rows += _measure(kind, url, waiting, options)
    console.print(_table(rows))
    console.print(f"One write and sync of 4 KiB here: {sync_ms:.2f} ms (median). {os.cpu_count()} cores.")
    OUTPUT.parent.mkdir(exist_ok=True)
    facts = {"cores": os.cpu_count(), "sync_ms": sync_ms, "seconds": options.seconds, "rows": [asdict(r) for r in rows]}
    OUTPUT.write_text(json.dumps(facts, indent=2) + "\n")
    console.print(f"The same figures: {OUTPUT}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="short runs, and not the longest queue")
    parser.add_argument("--seconds", type=float, default=None, help="for each figure")
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--databases", default="postgresql,sqlite")
    parser.add_argument("--place", type=Path, default=None, help="a folder on the disk to measure")
    options = parser.parse_args()
    options.seconds = options.seconds or (2.0 if options.quick else 8.0)
    return options


@contextmanager
def _database(kind: str, place: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{place / f'queue-{time.monotonic_ns()}.db'}"
        return
    place.chmod(0o711)
    with running(durable=True, place=place, settings=("shared_buffers=256MB", "max_wal_size=4GB")) as server:
        yield server.create("queue")


def _measure(kind: str, url: str, waiting: int, options: argparse.Namespace) -> list[Row]:
    engine = connect(url)
    migrate(engine)
    with transaction(engine) as db:
        for number in range(options.workers):
            name = f"agent-{number}"
            agents.expect(db, name=name, end_s=1e10, token_hash=tokens.digest(name), now_s=0)
            agents.register(db, name, Registration(facts=FACTS, end_s=1e10), lease_s=1e9, now_s=0)
    rows = []
    for jobs_a_claim in (1, 8):
        fill(engine, waiting)
        rows.append(_run(kind, url, waiting, jobs_a_claim, options))
    engine.dispose()
    return rows


def fill(engine: Engine, waiting: int) -> None:
    """Let so many jobs wait, and none else: one is submitted as any is, and copied by the database."""
    with transaction(engine) as db:
        spec = JobSpec(name="bench", image="bench", command=("run", "--seed", "{index}"), cpus=CPUS, memory_mib=MEMORY_MIB)
        first = moves.submit(db, Submission(job=spec), group="bench", default_retries=0, now_s=0).jobs[0]
        there = db.connection().execute(text("SELECT count(*) FROM job WHERE state = 'New'")).scalar_one()
        columns = '"group", spec, lane, state, held, priority, retries, failures, attempt, lost, sound_attempt, submitted_s'
        db.connection().execute(
            text(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :more)"
                f" INSERT INTO job ({columns}) SELECT {columns} FROM n, job WHERE id = :first"
            ),
            {"more": max(1, waiting - there), "first": first},
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.execute(text("VACUUM ANALYZE" if engine.dialect.name == "postgresql" else "ANALYZE"))


def _run(kind: str, url: str, waiting: int, jobs_a_claim: int, options: argparse.Namespace) -> Row:
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(options.workers), context.SimpleQueue()
    # A short queue must not run empty, so it is stopped by its length as well.
    most = waiting // (2 * options.workers)
    workers = [
        context.Process(target=_work, args=(url, f"agent-{n}", jobs_a_claim, options.seconds, most, barrier, answers))
        for n in range(options.workers)
    ]
    for worker in workers:
        worker.start()
    results = [answers.get() for _ in workers]
    for worker in workers:
        worker.join()
    elapsed_s = max(end for _, _, _, end in results) - min(start for _, _, start, _ in results)
    claims = [each for result in results for each in result[0]]
    completes = [each for result in results for each in result[1]]
    return Row(
        kind, waiting, options.workers, jobs_a_claim, len(completes) / elapsed_s, _timing(claims), _timing(completes)
    )


def _work(
    url: str, agent: str, jobs_a_claim: int, seconds: float, most: int, barrier: Barrier, answers: "object"
) -> None:
    engine = connect(url)
    ask = Ask(cpus=CPUS * jobs_a_claim, memory_mib=MEMORY_MIB * jobs_a_claim)
    done = Completed(exit_code=0, slice=Slice(started_s=0.0, compute_s=1.0))
    claims: list[float] = []
    completes: list[float] = []
    _cycle(engine, agent, ask, done, claims, completes)  # statements compiled, connection made
    claims.clear()
    completes.clear()
    barrier.wait()
    start = time.time()
    until = time.monotonic() + seconds
    while time.monotonic() < until and len(completes) < most:
        _cycle(engine, agent, ask, done, claims, completes)
    answers.put((claims, completes, start, time.time()))  # type: ignore[attr-defined]


def _cycle(
    engine: Engine, agent: str, ask: Ask, done: Completed, claims: list[float], completes: list[float]
) -> None:
    begun = time.perf_counter()
    with transaction(engine) as db:
        assignments = moves.claim(db, agent, ask, now_s=time.time())
    claims.append(time.perf_counter() - begun)
    for job in assignments.jobs:
        begun = time.perf_counter()
        with transaction(engine) as db:
            moves.completed(db, job.job, job.attempt, done, now_s=time.time())
        completes.append(time.perf_counter() - begun)


def _timing(seconds: Sequence[float]) -> Timing:
    if len(seconds) < 2:
        return Timing(len(seconds), 0.0, 0.0)
    cuts = statistics.quantiles(seconds, n=100)
    return Timing(len(seconds), cuts[49] * 1000, cuts[98] * 1000)


def _sync_ms(place: Path) -> float:
    """The median time to write 4 KiB at the end of a file and sync it: the floor of every durable commit."""
    times: list[float] = []
    with (place / "sync").open("wb", buffering=0) as file:
        for _ in range(200):
            begun = time.perf_counter()
            file.write(b"x" * 4096)
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return statistics.median(times) * 1000


def _table(rows: Sequence[Row]) -> Table:
    table = Table(title="Claim and complete through the queue layer")
    for heading in ("database", "waiting", "jobs/claim", "jobs/s", "claim p50", "claim p99", "complete p50", "complete p99"):
        table.add_column(heading, justify="left" if heading == "database" else "right")
    for row in rows:
        table.add_row(
            row.database,
            f"{row.waiting:,}",
            str(row.jobs_a_claim),
            f"{row.rate:,.0f}",
            *(f"{ms:.2f} ms" for each in (row.claim, row.complete) for ms in (each.p50_ms, each.p99_ms)),
        )
    return table


if __name__ == "__main__":
    main()
