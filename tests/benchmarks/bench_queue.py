"""How fast jobs are claimed and completed, on real databases that wait for the disk. `make bench-queue`.

Each worker plays one agent: it claims jobs and reports each complete, one transaction a call, as fast as the answers
come. On PostgreSQL the workers are processes; on SQLite, where one program does all the writing, its threads. The
times of the claim and of the report are measured apart. One job a claim is the worst case: an agent with several free
cores takes as many jobs as fit in the same transaction. The HTTP row is the real service with 200 agents at once.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Engine, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.http_load import FACTS, measure
from tests.postgres import running

from gleaner.agent.protocol import Ask, Completed, Registration, Slice
from gleaner.control.api.shapes import JobSpec, Submission
from gleaner.control.queue import agents, moves, tokens
from gleaner.control.queue.engine import connect, migrate, transaction

OUTPUT = Path("bench-output/queue.json")
LENGTHS = (1_000, 100_000, 1_000_000)
CPUS, MEMORY_MIB = 1, 512
AGENTS_AT_ONCE = 200
WARMING_S = 3.0


@dataclass(frozen=True, slots=True)
class Timing:
    """One kind of call."""

    calls: int
    p50_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. `rate`: claimed and completed jobs a second, all workers together."""

    way: str
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
    if kind == "postgresql":
        fill(engine, waiting)
        with tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir=options.place) as place:
            seconds = min(options.seconds, waiting / 1000)  # a short queue must not run empty
            load = measure(engine, url, place=Path(place), agents_at_once=AGENTS_AT_ONCE, seconds=seconds)
        rate = len(load.completes_s) / load.elapsed_s
        timings = _timing(load.claims_s), _timing(load.completes_s)
        rows.append(Row("HTTP", kind, waiting, AGENTS_AT_ONCE, 1, rate, *timings))
    engine.dispose()
    return rows


def fill(engine: Engine, waiting: int) -> None:
    """Let so many jobs wait, and none else: one is submitted as any is, and copied by the database."""
    with transaction(engine) as db:
        if engine.dialect.name == "postgresql":
            db.execute(text("SET LOCAL statement_timeout = 0"))  # a million rows take longer than any call of control
        spec = JobSpec(
            name="bench", image="bench", command=("run", "--seed", "{index}"), cpus=CPUS, memory_mib=MEMORY_MIB
        )
        first = moves.submit(db, Submission(job=spec), group="bench", default_retries=0, now_s=0).jobs[0]
        there = db.execute(text("SELECT count(*) FROM job WHERE state = 'New'")).scalar_one()
        columns = (
            '"group", spec, lane, state, held, priority, retries, failures, attempt, lost, sound_attempt, submitted_s'
        )
        db.execute(
            text(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :more)"
                f" INSERT INTO job ({columns}) SELECT {columns} FROM n, job WHERE id = :first"
            ),
            {"more": max(1, waiting - there), "first": first},
        )
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))
            connection.execute(text("RESET statement_timeout"))
        else:
            connection.execute(text("ANALYZE"))


def _run(kind: str, url: str, waiting: int, jobs_a_claim: int, options: argparse.Namespace) -> Row:
    begin_s = time.time() + WARMING_S
    # A short queue must not run empty, so a run is bounded by its length as well.
    work = partial(
        _work,
        begin_s=begin_s,
        seconds=options.seconds,
        jobs_a_claim=jobs_a_claim,
        most=waiting // (2 * options.workers),
    )
    names = [f"agent-{number}" for number in range(options.workers)]
    if kind == "sqlite":
        engine = connect(url)
        with ThreadPoolExecutor(options.workers) as threads:
            results = list(threads.map(partial(work, engine), names))
        engine.dispose()
    else:
        with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as processes:
            results = list(processes.map(partial(_in_process, work, url), names))
    elapsed_s = max(end for _, _, _, end in results) - min(start for _, _, start, _ in results)
    claims = [each for result in results for each in result[0]]
    completes = [each for result in results for each in result[1]]
    return Row(
        "queue layer",
        kind,
        waiting,
        options.workers,
        jobs_a_claim,
        len(completes) / elapsed_s,
        _timing(claims),
        _timing(completes),
    )


Work = tuple[list[float], list[float], float, float]
"""The times of the claims and of the reports, and when the worker began and ended."""


def _in_process(work: Callable[[Engine, str], Work], url: str, agent: str) -> Work:
    engine = connect(url)
    try:
        return work(engine, agent)
    finally:
        engine.dispose()


def _work(engine: Engine, agent: str, *, begin_s: float, seconds: float, jobs_a_claim: int, most: int) -> Work:
    ask = Ask(cpus=CPUS * jobs_a_claim, memory_mib=MEMORY_MIB * jobs_a_claim)
    done = Completed(exit_code=0, slice=Slice(started_s=0.0, compute_s=1.0))
    claims: list[float] = []
    completes: list[float] = []
    _cycle(engine, agent, ask, done, [], [])  # statements compiled, connection made
    time.sleep(max(0.0, begin_s - time.time()))
    start_s = time.time()
    while time.time() < start_s + seconds and len(completes) < most:
        _cycle(engine, agent, ask, done, claims, completes)
    return claims, completes, start_s, time.time()


def _cycle(engine: Engine, agent: str, ask: Ask, done: Completed, claims: list[float], completes: list[float]) -> None:
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
    table = Table(title="Claim and complete; times in ms")
    for heading in (
        "way",
        "database",
        "waiting",
        "clients",
        "jobs/claim",
        "jobs/s",
        "claim p50",
        "claim p99",
        "complete p50",
        "complete p99",
    ):
        table.add_column(heading, justify="left" if heading in {"way", "database"} else "right")
    for row in rows:
        table.add_row(
            row.way,
            row.database,
            f"{row.waiting:,}",
            str(row.workers),
            str(row.jobs_a_claim),
            f"{row.rate:,.0f}",
            *(f"{ms:.2f}" for each in (row.claim, row.complete) for ms in (each.p50_ms, each.p99_ms)),
        )
    return table


if __name__ == "__main__":
    main()
