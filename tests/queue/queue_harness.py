"""A queue with a clock, for tests: each call is one transaction, as in the real services."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import Connection, Engine, select

from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import (
    Assignment,
    AttemptRef,
    Checkpoint,
    Checkpointed,
    ClaimRequest,
    Completed,
    Deregistration,
    Heartbeat,
    LogLines,
    NodeFacts,
    NodeImages,
    Orders,
    Output,
    Registration,
    Returned,
    ReturnReason,
    Saved,
    Slice,
)
from gleaner.control.models.jobs import JobDetail, JobRow, Rerun, Submission, Submitted
from gleaner.control.policy.retries import LONGEST_ELSEWHERE_S
from gleaner.control.policy.returns import REACTIONS
from gleaner.control.queue import agents, attempt_reports, claims, jobs, logs, queries, reruns, tokens
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.queue.tables import METADATA

P = ParamSpec("P")
R = TypeVar("R")
LEASE_S = 60.0
SPENT = Slice(started_s=1.0, restore_s=2.0, compute_s=30.0, save_s=3.0)


def computed(seconds: float) -> Slice:
    return Slice(started_s=1.0, compute_s=seconds)


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


def checkpoint(attempt: int, number: int = 1, **more: Any) -> Checkpoint:
    facts: dict[str, Any] = {"digest": digest(number), "size_bytes": 1000, "log_lines": 0}
    return Checkpoint(attempt=attempt, number=number, **(facts | more))


@dataclass
class QueueHarness:
    engine: Engine
    now_s: float = 1000.0
    losses_until_held: int = 3
    log_bytes: int = 64 * 2**20
    urls: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def do(self, act: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with transaction(self.engine) as db:
            return act(db, *args, **kwargs)

    def look(self, act: Callable[Concatenate[Connection, P], R], *args: P.args, **kwargs: P.kwargs) -> R:
        with snapshot(self.engine) as db:
            return act(db, *args, **kwargs)

    def everything(self) -> dict[str, list[Any]]:
        """Return all rows of all tables, to show that a refusal changes nothing."""
        with self.engine.connect() as connection:
            return {
                table.name: sorted(map(repr, connection.execute(select(table)))) for table in METADATA.sorted_tables
            }

    def submit(
        self,
        *,
        indices: tuple[int, ...] | None = None,
        hold: bool = False,
        group: str = "physics",
        submitter: str = "",
        rules: jobs.SubmissionRules | None = None,
        **spec: Any,
    ) -> Submitted:
        job = JobSpec(**({"name": "run", "image": "pythia", "retries": 1} | spec))
        submission = Submission(job=job, indices=indices, hold=hold)
        rules = rules or jobs.SubmissionRules(2, mounts=job.mounts, urls=self.urls, targets=self.targets)
        return self.do(jobs.submit, submission, group=group, submitter=submitter, rules=rules, now_s=self.now_s)

    def job(self, **spec: Any) -> int:
        return self.submit(**spec).jobs[0]

    def agent(self, name: str, *, node: str | None = None, end_s: float = 9e9, **facts: Any) -> str:
        """Register an agent, one on each node and all nodes alike, unless the test says otherwise."""
        self.do(agents.expect, name=name, end_s=end_s, token_hash=tokens.digest(name), now_s=self.now_s)
        self.register(name, node=node, **facts)
        return name

    def register(self, name: str, *, node: str | None = None, images: NodeImages | None = None, **more: Any) -> None:
        known: dict[str, Any] = FACTS | {"node": node or f"node-of-{name}"} | more
        facts = NodeFacts(**known)
        self.do(
            agents.register,
            name,
            Registration(facts=facts, images=images or NodeImages(), end_s=9e9),
            lease_s=LEASE_S,
            now_s=self.now_s,
        )

    def claim(
        self,
        agent: str,
        *,
        cpus: int = 64,
        memory_mib: int = 65536,
        most: int = 64,
        left_s: float | None = None,
        **rules: Any,
    ) -> tuple[Assignment, ...]:
        ask = ClaimRequest(cpus=cpus, memory_mib=memory_mib, most=most, left_s=left_s)
        return self.do(claims.claim, agent, ask, now_s=self.now_s, **rules).jobs

    def claim_one(self, agent: str) -> Assignment:
        (assignment,) = self.claim(agent, most=1)
        return assignment

    def begins_from(self, agent: str) -> tuple[int, int] | None:
        """Let the agent claim one job. Return the attempt and the number of the checkpoint that it gets."""
        made = self.claim_one(agent).checkpoint
        return None if made is None else (made.attempt, made.number)

    def record_save(self, job: int, attempt: int, *, number: int = 1, spent: Slice | None = None, **more: Any) -> None:
        report = Saved(checkpoint=checkpoint(attempt, number, **more), slice=spent or SPENT)
        self.do(attempt_reports.record_save, job, attempt, report, now_s=self.now_s)

    def record_checkpoint(self, job: int, attempt: int, *, number: int = 1, spent: Slice = SPENT, **more: Any) -> bool:
        report = Checkpointed(checkpoint=checkpoint(attempt, number, **more), slice=spent)
        return self.do(attempt_reports.record_checkpoint, job, attempt, report, now_s=self.now_s)

    def record_completion(
        self,
        job: int,
        attempt: int,
        *,
        exit_code: int = 0,
        output: bool = False,
        unmatched: tuple[str, ...] = (),
        spent: Slice = SPENT,
        **more: Any,
    ) -> None:
        left = Output(digest=digest(99), size_bytes=5, unmatched=unmatched) if output else None
        report = Completed(exit_code=exit_code, output=left, slice=spent, **more)
        self.do(attempt_reports.record_completion, job, attempt, report, now_s=self.now_s)

    def record_return(
        self, job: int, attempt: int, why: ReturnReason, detail: str = "", *, spent: Slice | None = None
    ) -> bool:
        report = Returned(why=why, detail=detail, slice=spent)
        return self.do(attempt_reports.record_return, job, attempt, report, now_s=self.now_s)

    def broken(self, agent: str, detail: str = "") -> None:
        """Let one agent call the checkpoint of its job broken, again and again, until the queue believes it."""
        for _ in range(REACTIONS[ReturnReason.CHECKPOINT_BROKEN].alone):
            work = self.claim_one(agent)
            self.record_return(work.job, work.attempt, ReturnReason.CHECKPOINT_BROKEN, detail)
            self.now_s += LONGEST_ELSEWHERE_S
            self.record_heartbeat(agent)

    def record_heartbeat(self, agent: str, *named: tuple[int, int], unsaved: str = "") -> Orders:
        refs = (AttemptRef(job=job, attempt=attempt, unsaved=unsaved) for job, attempt in named)
        told = Heartbeat(attempts=tuple(refs))
        return self.do(agents.record_heartbeat, agent, told, lease_s=LEASE_S, now_s=self.now_s)

    def record_deregistration(self, agent: str, **more: Any) -> float | None:
        last = Deregistration(ended_s=self.now_s, **more)
        return self.do(agents.record_deregistration, agent, last, now_s=self.now_s)

    def expire(self) -> list[str]:
        overdue = self.look(agents.overdue, now_s=self.now_s)
        limit = self.losses_until_held
        return [name for name in overdue if self.do(agents.expire, name, now_s=self.now_s, losses_until_held=limit)]

    def silence(self) -> list[str]:
        """Let all agents be silent for longer than their lease, and let control notice."""
        self.now_s += LEASE_S + 1
        return self.expire()

    def log(self, job: int, attempt: int, first: int, *lines: str) -> None:
        self.do(logs.append, job, attempt, LogLines(first=first, lines=lines), most_bytes=self.log_bytes)

    def cancel(self, job: int) -> None:
        self.do(jobs.cancel, job, now_s=self.now_s)

    def hold(self, job: int, reason: str = "by alice") -> None:
        self.do(jobs.hold, job, reason=reason, now_s=self.now_s)

    def release(self, job: int) -> None:
        self.do(jobs.release, job, now_s=self.now_s)

    def rerun(self, job: int, **change: Any) -> None:
        rules = jobs.SubmissionRules(2, urls=self.urls, targets=self.targets)
        self.do(reruns.rerun, job, Rerun(**change), rules=rules, by="alice", now_s=self.now_s)

    def row(self, job: int) -> JobRow:
        return self.look(queries.job_row, job)

    def detail(self, job: int) -> JobDetail:
        return self.look(queries.job_detail, job)

    def named(self, job: int) -> Collection[tuple[int, int]]:
        """Return the checkpoints that the job still needs, as (attempt, number)."""
        return self.look(queries.archives_to_keep, [job])[job].checkpoints

    def events(self, job: int) -> list[str]:
        return [event.what for event in self.detail(job).events]

    def endings(self, job: int) -> list[str | None]:
        return [attempt.ending for attempt in self.detail(job).attempts]
