"""Nodes that work through a queue, for tests: every few seconds each claims what fits, and reports what has ended."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import Completed, Slice
from gleaner.control.queue import attempt_reports, node_health
from gleaner.control.queue.tables import ATTEMPT, JOB, NODE
from gleaner.control.states import Outcome, State

Fate = tuple[float, int]
"""The time after which a job ends, and its exit code."""
WELL: Fate = (60.0, 0)
AT_ONCE: Fate = (0.0, 1)
CORES = 8


@dataclass
class Floor:
    """Each node has one agent, of its own name, and `CORES` cores; `fate` decides what becomes of a job on a node."""

    harness: QueueHarness
    nodes: tuple[str, ...]
    fate: Callable[[str, int], Fate]
    every_s: float = 5.0
    busy: Mapping[str, float] = field(default_factory=dict)
    """The time, from the beginning, until which each node is full of other work."""
    running: dict[str, list[tuple[float, int, int, int]]] = field(default_factory=dict)
    """For each job its end, its attempt and its exit code."""
    ever_excluded: set[str] = field(default_factory=set)
    failures_until_excluded: dict[str, int] = field(default_factory=dict)
    quick: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.began_s = self.harness.now_s
        for node in self.nodes:
            self.harness.agent(node, node=node, cpus=CORES)

    def step(self) -> None:
        for node in self.nodes:
            here = self.running.setdefault(node, [])
            for run in [each for each in here if each[0] <= self.harness.now_s]:
                here.remove(run)
                self._end(node, *run)
            free = CORES - len(here)
            if not free or self.harness.now_s < self.began_s + self.busy.get(node, 0.0):
                continue
            for work in self.harness.claim(node, cpus=free, most=free):
                takes_s, exit_code = self.fate(node, work.job)
                run = (self.harness.now_s + takes_s, work.job, work.attempt, exit_code)
                if takes_s:
                    here.append(run)
                else:
                    self._end(node, *run)
        self.harness.now_s += self.every_s

    def _end(self, node: str, end_s: float, job: int, attempt: int, exit_code: int) -> None:
        (claimed_s,) = self._select(
            select(ATTEMPT.c.claimed_s).where(ATTEMPT.c.job == job, ATTEMPT.c.attempt == attempt)
        )
        took = Slice(started_s=claimed_s, compute_s=end_s - claimed_s)
        report = Completed(exit_code=exit_code, slice=took)
        self.harness.do(attempt_reports.record_completion, job, attempt, report, now_s=self.harness.now_s)
        if exit_code and took.compute_s < 30:
            self.quick[node] = self.quick.get(node, 0) + 1
        for name in self.avoided():
            self.failures_until_excluded.setdefault(name, self.quick.get(name, 0))
            self.ever_excluded.add(name)

    def avoided(self) -> tuple[str, ...]:
        return self.harness.look(node_health.excluded, self.harness.now_s)

    def work_off(self, jobs: tuple[int, ...], *, within_s: float) -> dict[Outcome, int]:
        """Go on until all jobs are Complete. Return how many have ended in which way."""
        until_s = self.harness.now_s + within_s
        while left := self.left(jobs):
            assert self.harness.now_s < until_s, f"{len(left)} jobs are left: {left[:5]}"
            self.step()
        ends = self._select(select(JOB.c.outcome).where(JOB.c.id.in_(jobs)))
        return {outcome: ends.count(outcome) for outcome in set(ends)}

    def left(self, jobs: tuple[int, ...]) -> list[int]:
        return self._select(select(JOB.c.id).where(JOB.c.id.in_(jobs), JOB.c.state != State.COMPLETE))

    def suspect(self) -> list[str]:
        return self._select(select(NODE.c.name).where(NODE.c.health != "healthy"))

    def _select(self, what: Any) -> list[Any]:
        with self.harness.engine.connect() as connection:
            return list(connection.execute(what).scalars())
