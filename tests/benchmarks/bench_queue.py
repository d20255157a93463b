"""The rate of claims and completions, on real databases that wait for the disk. `make bench-queue`.

Each worker plays one agent: it claims jobs and reports each complete, one transaction a call, as fast as the answers
come. On PostgreSQL the workers are processes; on SQLite, where one program does all the writing, its threads. The
times of the claim and of the report are measured apart. One job a claim is the worst case: an agent with several free
cores takes as many jobs as fit in the same transaction. The HTTP row is the real service with 200 agents at once.

With several groups each place is given by `policy.fair_share`, as the service has it done: half of the groups hold what
they are entitled to, and have the older jobs; the others are below their target. `CPU` is what the workers have used
of the processor for one job; on SQLite that is all there is, on PostgreSQL the server's comes on top.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table
from sqlalchemy import Connection, Engine, text

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.http_load import FACTS, measure
from tests.benchmarks.stored_figures import StoredFigures, ended
from tests.postgres import running

from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import ClaimRequest, Completed, Registration, Slice
from gleaner.control.models.jobs import Submission
from gleaner.control.policy.fair_share import ShareRules
from gleaner.control.queue import agents, attempt_reports, claims, jobs, leader, tokens
from gleaner.control.queue.database import connect, migrate, transaction
from gleaner.control.queue.leader import Term
from gleaner.control.queue.usage_cache import UsageCache

OUTPUT = Path("bench-output/queue.json")
LENGTHS = (1_000, 100_000, 1_000_000)
CPUS, MEMORY_MIB = 1, 512
GROUPS = 8
AGENTS_AT_ONCE = 200
WARMING_S = 3.0
HEADINGS = (
    "way, database, groups, waiting, clients, jobs/claim, jobs/s, CPU, claim p50, claim p99, complete p50, complete p99"
)
DONE = Completed(exit_code=0, slice=Slice(started_s=0.0, compute_s=1.0))


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
    groups: int
    waiting: int
    workers: int
    jobs_a_claim: int
    rate: float
    cpu_ms: float | None
    claim: Timing
    complete: Timing


def main() -> None:
    options = _options()
    console = Console()
    rows: list[Row] = []
    lengths = LENGTHS[:2] if options.quick else LENGTHS
    with tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir=options.place) as place:
        sync_ms = _sync_ms(Path(place))
        figures = StoredFigures(OUTPUT, cores=os.cpu_count(), sync_ms=sync_ms, seconds=options.seconds, rows=[])
        for kind in options.databases.split(","):
            for waiting in track(lengths, description=f"{kind}", console=console, transient=True):
                for groups in (1, GROUPS):
                    with _database(kind, Path(place)) as url:
                        for row in _measure(kind, url, waiting, groups, options):
                            rows.append(row)
                            figures.add("rows", row)
                            console.print(
                                f"{row.way}, {kind}, {waiting:,} waiting, {groups} groups, {row.jobs_a_claim} a claim: "
                                f"{row.rate:,.0f} jobs a second"
                            )
    console.print(_table(rows))
    console.print(f"One write and sync of 4 KiB here: {sync_ms:.2f} ms (median). {os.cpu_count()} cores.")
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


def _measure(kind: str, url: str, waiting: int, groups: int, options: argparse.Namespace) -> Iterator[Row]:
    engine = connect(url)
    migrate(engine)
    names = ["bench"] if groups == 1 else [f"group-{number}" for number in range(groups)]
    for number in range(options.workers):
        _register(engine, f"agent-{number}")
    _lead(engine)  # once: of workers that all begin to lead at once under one name, all but one would be refused
    if groups > 1:
        _let_hold(engine, names[: groups // 2], cpus=FACTS.cpus * (options.workers + 1) // groups)
    for jobs_a_claim in (1, 8):
        fill(engine, waiting, names)
        yield _run(kind, url, waiting, groups, jobs_a_claim, options)
    if kind == "postgresql" and groups == 1:
        fill(engine, waiting, names)
        with tempfile.TemporaryDirectory(prefix="gleaner-bench-", dir=options.place) as place:
            seconds = min(options.seconds, waiting / 1000)  # a short queue must not run empty
            load = measure(engine, url, place=Path(place), agents_at_once=AGENTS_AT_ONCE, seconds=seconds)
        rate = len(load.completes_s) / load.elapsed_s
        timings = _timing(load.claims_s), _timing(load.completes_s)
        yield Row("HTTP", kind, 1, waiting, AGENTS_AT_ONCE, 1, rate, None, *timings)
    engine.dispose()


def _register(engine: Engine, name: str) -> None:
    with transaction(engine) as db:
        agents.expect(db, name=name, end_s=1e10, token_hash=tokens.digest(name), now_s=0)
        agents.register(db, name, Registration(facts=FACTS, end_s=1e10), lease_s=1e9, now_s=0)


def _let_hold(engine: Engine, groups: Sequence[str], *, cpus: int) -> None:
    """Jobs of each of these groups run on so many cores, and go on running: that is what they are entitled to."""
    _register(engine, "holder")
    with transaction(engine) as db:
        for group in groups:
            spec = _spec().model_copy(update={"cpus": cpus})
            jobs.submit(db, Submission(job=spec), group=group, rules=jobs.SubmissionRules(0), now_s=0)
            ask = ClaimRequest(cpus=cpus, memory_mib=MEMORY_MIB)
            assert len(claims.claim(db, "holder", ask, now_s=0).jobs) == 1


def _spec() -> JobSpec:
    return JobSpec(name="bench", image="bench", command=("run", "--seed", "{index}"), cpus=CPUS, memory_mib=MEMORY_MIB)


def fill(engine: Engine, waiting: int, groups: Sequence[str]) -> None:
    """Let so many jobs wait, and none else, in equal parts: one of each group is submitted as any is, and copied."""
    for group in groups:
        _fill(engine, waiting // len(groups), group)
    _tidy(engine)


def _fill(engine: Engine, waiting: int, group: str) -> None:
    with transaction(engine) as db:
        if engine.dialect.name == "postgresql":
            db.execute(text("SET LOCAL statement_timeout = 0"))  # a million rows take longer than any call of control
        first = jobs.submit(db, Submission(job=_spec()), group=group, rules=jobs.SubmissionRules(0), now_s=0).jobs[0]
        counted = text("SELECT count(*) FROM job WHERE state = 'New' AND \"group\" = :group")
        there = db.execute(counted, {"group": group}).scalar_one()
        columns = (
            '"group", submitter, spec, lane, state, held, priority, retries, failures, attempt, lost, sound_attempt,'
            " earlier_attempts, submitted_s"
        )
        db.execute(
            text(
                f"WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :more)"
                f" INSERT INTO job ({columns}) SELECT {columns} FROM n, job WHERE id = :first"
            ),
            {"more": max(1, waiting - there), "first": first},
        )


def _tidy(engine: Engine) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SET statement_timeout = 0"))
            connection.execute(text("VACUUM ANALYZE"))
            connection.execute(text("RESET statement_timeout"))
        else:
            connection.execute(text("ANALYZE"))


def _run(kind: str, url: str, waiting: int, groups: int, jobs_a_claim: int, options: argparse.Namespace) -> Row:
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
            results = list(threads.map(partial(work, engine, UsageCache()), names))
        engine.dispose()
    else:
        with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as processes:
            results = list(processes.map(partial(_in_process, work, url), names))
    elapsed_s = max(each.end_s for each in results) - min(each.begin_s for each in results)
    claims = [each for result in results for each in result.claims_s]
    completes = [each for result in results for each in result.completes_s]
    cpu_ms = 1000 * sum(each.cpu_s for each in results) / max(1, len(completes))
    rate = len(completes) / elapsed_s
    timings = _timing(claims), _timing(completes)
    return Row("queue layer", kind, groups, waiting, options.workers, jobs_a_claim, rate, cpu_ms, *timings)


@dataclass(frozen=True, slots=True)
class Work:
    """One worker's figures: the times of its claims and reports, its begin and end, and its processor time."""

    claims_s: list[float]
    completes_s: list[float]
    begin_s: float
    end_s: float
    cpu_s: float


def _in_process(work: Callable[[Engine, UsageCache, str], Work], url: str, agent: str) -> Work:
    engine = connect(url)
    try:
        return work(engine, UsageCache(), agent)
    finally:
        engine.dispose()


def _work(
    engine: Engine, usage_cache: UsageCache, agent: str, *, begin_s: float, seconds: float, jobs_a_claim: int, most: int
) -> Work:
    ask = ClaimRequest(cpus=CPUS * jobs_a_claim, memory_mib=MEMORY_MIB * jobs_a_claim)
    claims_s: list[float] = []
    completes_s: list[float] = []
    term = _lead(engine)
    _cycle(engine, term, usage_cache, agent, ask, [], [])  # statements compiled, connection made
    time.sleep(max(0.0, begin_s - time.time()))
    start_s, cpu_s = time.time(), time.thread_time()
    while time.time() < start_s + seconds and len(completes_s) < most:
        _cycle(engine, term, usage_cache, agent, ask, claims_s, completes_s)
    return Work(claims_s, completes_s, start_s, time.time(), time.thread_time() - cpu_s)


def _lead(engine: Engine) -> Term:
    with transaction(engine) as db:
        term = leader.try_lead(db, "bench", now=leader.NOW, term_s=1e6)
    assert term is not None
    return term


@contextmanager
def _writing(engine: Engine, term: Term) -> Iterator[Connection]:
    """Yield one transaction of the leader, as `ControlState.writing` does."""
    with transaction(engine) as db:
        assert leader.holds(db, term, now=leader.NOW, locks=True)
        yield db


def _cycle(
    engine: Engine,
    term: Term,
    usage_cache: UsageCache,
    agent: str,
    ask: ClaimRequest,
    claims_s: list[float],
    completes_s: list[float],
) -> None:
    """Claim and complete jobs as the service does for an agent."""
    begun = time.perf_counter()
    with _writing(engine, term) as db:
        assignments = claims.claim(
            db,
            agent,
            ask,
            now_s=time.time(),
            shares=lambda db: usage_cache.shares(db, ShareRules()),
            may_record=usage_cache.may_record,
        )
    usage_cache.record_claims(assignments.jobs)
    claims_s.append(time.perf_counter() - begun)
    for job in assignments.jobs:
        begun = time.perf_counter()
        with _writing(engine, term) as db:
            attempt_reports.record_completion(db, job.job, job.attempt, DONE, now_s=time.time())
        completes_s.append(time.perf_counter() - begun)


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
    for heading in HEADINGS.split(", "):
        table.add_column(heading, justify="left" if heading in {"way", "database"} else "right")
    for row in rows:
        table.add_row(
            row.way,
            row.database,
            str(row.groups),
            f"{row.waiting:,}",
            str(row.workers),
            str(row.jobs_a_claim),
            f"{row.rate:,.0f}",
            "" if row.cpu_ms is None else f"{row.cpu_ms:.2f}",
            *(f"{ms:.2f}" for each in (row.claim, row.complete) for ms in (each.p50_ms, each.p99_ms)),
        )
    return table


if __name__ == "__main__":
    sys.exit(ended(main, "make bench-queue", OUTPUT))
