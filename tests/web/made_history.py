"""A queue with a past: nodes that regular jobs and agents used in turn, and the slices of jobs on them.

The rows are written as the loops would have written them, without the loops: a day of a thousand nodes takes seconds.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from sqlalchemy import Engine, insert

from gleaner.agent.job_spec import JobSpec
from gleaner.control.models.jobs import Ending
from gleaner.control.policy.node_time import FIELDS, RESOLUTIONS, AttemptTime, NodeTime, Use, of_attempts, of_look
from gleaner.control.queue import node_history
from gleaner.control.queue.database import transaction
from gleaner.control.queue.node_history import NodeUses
from gleaner.control.queue.tables import AGENT, ATTEMPT, JOB, LANE, SPEC, Phase
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode
from gleaner.control.states import Outcome, State

ROUND_S = 3600
CORES, SLICE_CORES = 64, 16
ENDINGS = (Ending.SAVED,) * 18 + (Ending.SUCCEEDED, Ending.LOST)


@dataclass
class MadeHistory:
    """So many nodes over so many hours until now, and so many jobs."""

    nodes: int
    hours: int
    jobs: int
    now_s: float
    seed: int = 7
    groups: tuple[str, ...] = ("atlas", "cms", "theory")
    rows: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: {"agent": [], "job": [], "attempt": []})
    spans: list[tuple[str, float, float, Use]] = field(default_factory=list[tuple[str, float, float, Use]])

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)
        self._attempts: dict[int, int] = {}
        self._turn = count()
        self.begin_s = self.now_s // ROUND_S * ROUND_S - (self.hours - 1) * ROUND_S

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(f"node{number}" for number in range(1, self.nodes + 1))

    def write(self, engine: Engine) -> None:
        """Write all rows."""
        for name in self.names:
            for at_s in range(int(self.begin_s), int(self.now_s), ROUND_S):
                self._round(name, float(at_s), min(float(at_s + ROUND_S), self.now_s))
        with transaction(engine) as db:
            spec = JobSpec(name="zmumu", image="pythia", command=("--seed", "{index}"))
            db.execute(insert(SPEC), {"id": 1, "name": spec.name, "saves_itself": False, "document": spec})
            lanes = [
                {"id": number, "cpus": SLICE_CORES, "memory_mib": 4096, "group": group}
                for number, group in enumerate(self.groups, start=1)
            ]
            db.execute(insert(LANE), lanes)
            for table, rows in ((AGENT, self.rows["agent"]), (JOB, self._job_rows()), (ATTEMPT, self.rows["attempt"])):
                for at in range(0, len(rows), 5000):
                    db.execute(insert(table), rows[at : at + 5000])
            for each in RESOLUTIONS:
                self._write_times(db, each.step_s)
            node_history.set_mark(db, self.now_s)

    def slurm(self) -> tuple[tuple[SlurmNode, ...], tuple[SlurmJob, ...]]:
        """Slurm's nodes and our agents as the last look sees them."""
        uses = {name: use for name, begin_s, end_s, use in self.spans if end_s >= self.now_s}
        states = {Use.IDLE: "IDLE", Use.UNUSABLE: "DOWN"}
        nodes = tuple(
            SlurmNode(
                name=name, partitions=frozenset({"gleaner"}), states=frozenset({states.get(uses[name], "ALLOCATED")}),
                state=states.get(uses[name], "ALLOCATED").lower(), cpus=CORES, memory_mib=256_000,
            )
            for name in self.names
        )  # fmt: skip
        ours = tuple(
            SlurmJob(
                id=str(4000 + number), partitions=("gleaner",), states=frozenset({"RUNNING"}), name=row["name"],
                is_own=True, nodes=(row["node"],), cpus=CORES,
            )
            for number, row in enumerate(self.rows["agent"]) if row["phase"] is Phase.LIVE
        )  # fmt: skip
        return nodes, ours

    def _round(self, node: str, begin_s: float, end_s: float) -> None:
        """Fill one round of one node: regular jobs first, then perhaps an agent."""
        chance = self._random.random()
        if chance < 0.03:
            self.spans.append((node, begin_s, end_s, Use.UNUSABLE))
            return
        free_s = min(end_s, begin_s + max(0.0, self._random.gauss(0.45, 0.45)) * ROUND_S)
        if free_s > begin_s:
            self.spans.append((node, begin_s, free_s, Use.REGULAR))
        if end_s - free_s < 300:
            if end_s > free_s:
                self.spans.append((node, free_s, end_s, Use.IDLE))
            return
        claim_s = free_s + self._random.uniform(15, 90)
        self.spans += [(node, free_s, claim_s, Use.IDLE), (node, claim_s, end_s, Use.HARVESTED)]
        self._agent(node, claim_s, end_s, is_live=end_s >= self.now_s)

    def _agent(self, node: str, begin_s: float, end_s: float, *, is_live: bool) -> None:
        name = f"glean-{int(end_s)}-{node}"
        whole_s = begin_s // ROUND_S * ROUND_S + ROUND_S
        self.rows["agent"].append(
            {
                "name": name, "phase": Phase.LIVE if is_live else Phase.ENDED, "scheduler_id": "7", "end_s": whole_s,
                "submitted_s": begin_s - 20, "registered_s": begin_s, "lease_until_s": whole_s, "node": node,
                "ended_s": None if is_live else end_s, "vacate": False, "reason": "" if is_live else "its time is over",
            }
        )  # fmt: skip
        for _ in range(CORES // SLICE_CORES - 1):
            self._slice(name, node, begin_s + self._random.uniform(1, 20), end_s, is_live=is_live)

    def _slice(self, agent: str, node: str, claimed_s: float, end_s: float, *, is_live: bool) -> None:
        job = next(self._turn) % max(1, self.jobs // 2) + 1
        number = self._attempts.get(job, 0) + 1
        if self._attempts.get(-job):  # it runs already
            return
        self._attempts[job] = number
        ending = None if is_live else self._random.choice(ENDINGS)
        restore_s, save_s = self._random.uniform(4, 25) if number > 1 else 0.0, self._random.uniform(10, 40)
        ended_s = end_s - self._random.uniform(5, 15)
        computed_s = 0.0 if ending in {None, Ending.LOST} else max(0.0, ended_s - claimed_s - restore_s - save_s - 3)
        if is_live:
            self._attempts[-job] = 1
        self.rows["attempt"].append(
            {
                "job": job, "attempt": number, "agent": agent, "node": node, "claimed_s": claimed_s,
                "ended_s": None if is_live else ended_s, "ending": ending, "detail": "", "log_from": 0,
                "exit_code": 0 if ending is Ending.SUCCEEDED else None, "started_s": claimed_s, "restore_s": restore_s,
                "compute_s": computed_s, "save_s": save_s if ending is Ending.SAVED else 0.0, "counted_s": computed_s,
                "from_attempt": number - 1 or None, "from_number": 1 if number > 1 else None,
            }
        )  # fmt: skip

    def _job_rows(self) -> list[dict[str, Any]]:
        on = {row["job"]: row["agent"] for row in self.rows["attempt"] if row["ending"] is None}
        made: list[dict[str, Any]] = []
        for job in range(1, self.jobs + 1):
            attempt, place = self._attempts.get(job, 0), job % len(self.groups)
            row: dict[str, Any] = {
                "id": job, "group": self.groups[place], "spec": 1, "lane": place + 1, "held": False, "priority": 0,
                "retries": 2, "failures": 0, "attempt": attempt, "lost": False, "sound_attempt": attempt,
                "submitted_s": self.begin_s, "submitter": ("alice", "bob", "carol")[place], "campaign": None,
                "index": None, "from_attempt": None, "from_number": None, "agent": None, "outcome": None,
                "exit_code": None, "ended_s": None,
            }  # fmt: skip
            if job in on:
                row |= {"state": State.RUNNING, "agent": on[job]}
            elif attempt and job % 3 == 0:
                done = {"outcome": Outcome.SUCCEEDED, "exit_code": 0, "ended_s": self.now_s - job % ROUND_S}
                row |= {"state": State.COMPLETE} | done
            elif attempt:
                row |= {"state": State.SAVED, "from_attempt": attempt, "from_number": 1}
            else:
                row |= {"state": State.NEW}
            made.append(row)
        return made

    def _write_times(self, db: Any, step_s: int) -> None:
        ended = [
            AttemptTime(
                row["claimed_s"], row["ended_s"], SLICE_CORES, 0.0, row["restore_s"], row["counted_s"],
                row["ended_s"] - row["claimed_s"] - row["restore_s"] if row["ending"] is Ending.LOST else 0.0,
                row["save_s"],
            )
            for row in self.rows["attempt"] if row["ended_s"] is not None
        ]  # fmt: skip
        node_history.add(db, step_s, of_attempts(ended, step_s=step_s))
        counted: dict[tuple[int, Use], float] = {}
        for _node, begin_s, end_s, use in self.spans:
            for begin in range(int(begin_s // step_s) * step_s, int(end_s) + 1, step_s):
                part_s = max(0.0, min(end_s, begin + step_s) - max(begin_s, begin))
                counted[begin, use] = counted.get((begin, use), 0.0) + part_s
        sums: dict[int, NodeTime] = {}
        for (begin, use), seconds in counted.items():
            of_one = of_look([(use, CORES)], begin_s=0, end_s=1, step_s=1)[0]
            amounts = {name: getattr(of_one, name) * seconds for name in FIELDS}
            part = NodeTime(**amounts | {"seen_s": seconds / self.nodes})  # each node is a part of one look
            sums[begin] = sums[begin] + part if begin in sums else part
        node_history.add(db, step_s, sums)
        for uses in self._uses(step_s):
            node_history.record_uses(db, step_s, uses)

    def _uses(self, step_s: int) -> Iterator[NodeUses]:
        by_step: dict[int, dict[str, str]] = {}
        for node, begin_s, end_s, use in self.spans:
            for begin in range(int(begin_s // step_s) * step_s, int(end_s), step_s):
                by_step.setdefault(begin, {})[node] = use.value
        for begin, letters in sorted(by_step.items()):
            text = "".join(letters.get(name, Use.UNKNOWN.value) for name in self.names)
            yield NodeUses(begin, self.names, text)
