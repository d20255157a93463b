"""A queue with a clock, for tests: each call is one transaction, as in the real services."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, select

from gleaner.agent.protocol import (
    Ask,
    Assignment,
    AttemptRef,
    Beat,
    Checkpointed,
    Completed,
    Farewell,
    Generation,
    GivenBack,
    LogLines,
    NodeFacts,
    Orders,
    Output,
    Registration,
    Saved,
    Slice,
    Why,
)
from gleaner.control.api.shapes import JobDetail, JobRow, JobSpec, Submission, Submitted
from gleaner.control.policy.judging import LONGEST_ELSEWHERE_S
from gleaner.control.queue import agents, logs, moves, reads, tokens
from gleaner.control.queue.engine import snapshot, transaction
from gleaner.control.queue.reports import TRIES_UNTIL_BROKEN
from gleaner.control.queue.tables import METADATA

P = ParamSpec("P")
R = TypeVar("R")
LEASE_S = 60.0
SPENT = Slice(started_s=1.0, restore_s=2.0, compute_s=30.0, save_s=3.0)


FACTS: dict[str, Any] = {
    "cpus": 64,
    "memory_mib": 65536,
    "runtime": "docker 26",
    "criu": "4.1",
    "kernel": "6.1",
    "architecture": "x86_64",
    "cpu_features": ("avx", "sse"),
}


def digest(number: int) -> str:
    return f"sha256:{number:064x}"


@dataclass
class Scene:
    engine: Engine
    now_s: float = 1000.0
    losses_until_held: int = 3
    log_bytes: int = 64 * 2**20

    def do(self, act: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with transaction(self.engine) as db:
            return act(db, *args, **kwargs)

    def look(self, act: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with snapshot(self.engine) as db:
            return act(db, *args, **kwargs)

    def everything(self) -> dict[str, list[Any]]:
        """All rows of all tables: to show that a refusal changes nothing."""
        with self.engine.connect() as connection:
            return {
                table.name: sorted(map(repr, connection.execute(select(table)))) for table in METADATA.sorted_tables
            }

    def submit(
        self, *, indices: tuple[int, ...] | None = None, hold: bool = False, group: str = "physics", **spec: Any
    ) -> Submitted:
        job = JobSpec(**({"name": "run", "image": "pythia", "retries": 1} | spec))
        submission = Submission(job=job, indices=indices, hold=hold)
        return self.do(moves.submit, submission, group=group, default_retries=2, now_s=self.now_s)

    def job(self, **spec: Any) -> int:
        return self.submit(**spec).jobs[0]

    def agent(self, name: str, *, node: str | None = None, end_s: float = 9e9, **facts: Any) -> str:
        """An agent that has registered; one a node, and all nodes alike, unless said otherwise."""
        self.do(agents.expect, name=name, end_s=end_s, token_hash=tokens.digest(name), now_s=self.now_s)
        self.register(name, node=node, **facts)
        return name

    def register(self, name: str, *, node: str | None = None, **more: Any) -> None:
        facts = NodeFacts(**(FACTS | {"node": node or f"node-of-{name}"} | more))
        self.do(agents.register, name, Registration(facts=facts, end_s=9e9), lease_s=LEASE_S, now_s=self.now_s)

    def claim(self, agent: str, *, cpus: int = 64, memory_mib: int = 65536, most: int = 64) -> tuple[Assignment, ...]:
        ask = Ask(cpus=cpus, memory_mib=memory_mib, most=most)
        return self.do(moves.claim, agent, ask, now_s=self.now_s).jobs

    def claim_one(self, agent: str) -> Assignment:
        (assignment,) = self.claim(agent, most=1)
        return assignment

    def saved(
        self,
        job: int,
        attempt: int,
        *,
        number: int = 1,
        log_lines: int = 0,
        has_memory: bool = True,
        chain: str | None = None,
        spent: Slice | None = None,
    ) -> None:
        made = Generation(
            attempt=attempt,
            number=number,
            digest=digest(number),
            size_bytes=1000,
            log_lines=log_lines,
            has_memory=has_memory,
            chain=chain,
        )
        self.do(moves.saved, job, attempt, Saved(generation=made, slice=spent or SPENT), now_s=self.now_s)

    def checkpointed(
        self, job: int, attempt: int, *, number: int = 1, log_lines: int = 0, chain: str | None = None
    ) -> bool:
        made = Generation(
            attempt=attempt,
            number=number,
            digest=digest(number),
            size_bytes=1000,
            log_lines=log_lines,
            chain=chain,
        )
        return self.do(moves.checkpointed, job, attempt, Checkpointed(generation=made, slice=SPENT), now_s=self.now_s)

    def completed(self, job: int, attempt: int, *, exit_code: int = 0, output: bool = False) -> None:
        left = Output(digest=digest(99), size_bytes=5) if output else None
        report = Completed(exit_code=exit_code, output=left, slice=SPENT)
        self.do(moves.completed, job, attempt, report, now_s=self.now_s)

    def given_back(self, job: int, attempt: int, why: Why, detail: str = "") -> None:
        self.do(moves.given_back, job, attempt, GivenBack(why=why, detail=detail), now_s=self.now_s)

    def broken(self, agent: str, detail: str = "") -> None:
        """One agent calls the generation of the job that it gets broken, again and again, until that is believed."""
        for _ in range(TRIES_UNTIL_BROKEN):
            work = self.claim_one(agent)
            self.given_back(work.job, work.attempt, Why.GENERATION_BROKEN, detail)
            self.now_s += LONGEST_ELSEWHERE_S
            self.beat(agent)

    def beat(self, agent: str, *named: tuple[int, int]) -> Orders:
        told = Beat(attempts=tuple(AttemptRef(job=job, attempt=attempt) for job, attempt in named))
        return self.do(agents.beat, agent, told, lease_s=LEASE_S, now_s=self.now_s)

    def farewell(self, agent: str, **more: Any) -> float | None:
        return self.do(agents.farewell, agent, Farewell(ended_s=self.now_s, **more), now_s=self.now_s)

    def expire(self) -> list[str]:
        return self.do(agents.expire, now_s=self.now_s, losses_until_held=self.losses_until_held)

    def silence(self) -> list[str]:
        """All agents fall silent for longer than their lease, and control notices."""
        self.now_s += LEASE_S + 1
        return self.expire()

    def log(self, job: int, attempt: int, first: int, *lines: str) -> None:
        self.do(logs.append, job, attempt, LogLines(first=first, lines=lines), most_bytes=self.log_bytes)

    def cancel(self, job: int) -> None:
        self.do(moves.cancel, job, now_s=self.now_s)

    def hold(self, job: int, reason: str = "by alice") -> None:
        self.do(moves.hold, job, reason=reason, now_s=self.now_s)

    def release(self, job: int) -> None:
        self.do(moves.release, job, now_s=self.now_s)

    def row(self, job: int) -> JobRow:
        return self.look(reads.job_row, job)

    def detail(self, job: int) -> JobDetail:
        return self.look(reads.job_detail, job)

    def named(self, job: int) -> Collection[tuple[int, int]]:
        """The generations that the job still needs, as (attempt, number)."""
        return self.look(reads.kept, [job])[job].generations

    def events(self, job: int) -> list[str]:
        return [event.what for event in self.detail(job).events]

    def endings(self, job: int) -> list[str | None]:
        return [attempt.ending for attempt in self.detail(job).attempts]
