"""Random interleavings of agents that work, fall silent, come back, repeat themselves and report late.

The agents here know only what control has told them; what they believe may be long out of date. Now and then an older
copy of the queue is put back. After every step the whole queue is checked.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from math import inf
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import Engine, delete, insert, select, text
from tests.effort import examples
from tests.queue.queue_harness import FACTS, LEASE_S, QueueHarness, digest

from gleaner.agent.messages import Assignment, NodeFacts, Order, ReturnReason
from gleaner.control.models.jobs import Ending
from gleaner.control.policy import returns
from gleaner.control.policy.returns import Blame
from gleaner.control.queue import agents, attempts, jobs, lanes, recovery
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import Conflict, NotFound, NotYours
from gleaner.control.queue.lanes import barred_nodes
from gleaner.control.queue.recovery import Found
from gleaner.control.queue.tables import AGENT, ATTEMPT, CHECKPOINT, JOB, LANE, METADATA, NODE, PAUSE, Standing
from gleaner.control.states import WAITING, Outcome, State

pytestmark = pytest.mark.slow
NODE_FACTS = NodeFacts.model_validate(FACTS | {"node": "node-0"})
LAST = 1000
"""The number of the checkpoint with which an attempt ends."""
ENDS = ["saved", "succeeded", "failed", *ReturnReason]
GIVEN_UP = (Ending.LOST, Ending.FORGOTTEN)
"""Endings that control has only assumed. While the attempt is the job's latest, its own report still counts."""


@dataclass
class Pretended:
    """An agent, with all the work it was ever given, and the reports it has sent."""

    name: str
    node: str
    believes: dict[tuple[int, int], Assignment] = field(default_factory=dict)
    numbers: Counter[tuple[int, int]] = field(default_factory=Counter)
    """The number of each attempt's last checkpoint."""
    sent: list[Callable[[], object]] = field(default_factory=list)
    dead: bool = False


@dataclass(frozen=True, slots=True)
class Copy:
    """A backup of the queue, and what this test had counted by then."""

    rows: dict[str, list[dict[str, Any]]]
    given: Counter[tuple[int, int]]
    accepted: Counter[tuple[int, str]]
    own_failures: Counter[int]


class Agents(RuleBasedStateMachine):
    """Agents that work for the queue, persons who interfere, and what must always hold."""

    engine: Engine
    runs = 100

    @initialize()
    def begin(self) -> None:
        with transaction(self.engine) as db:
            for table in reversed(METADATA.sorted_tables):
                db.execute(text(f"DELETE FROM {table.name}"))
        self.harness = QueueHarness(self.engine)
        self.agents: list[Pretended] = []
        self.given: Counter[tuple[int, int]] = Counter()
        self.accepted: Counter[tuple[int, str]] = Counter()
        self.own_failures: Counter[int] = Counter()
        self.stored: dict[tuple[int, int, int | None], str] = {}
        """The agent that has published each archive, by job, attempt and number; results have no number."""
        self.strays: list[tuple[str, Assignment]] = []
        """Work of agents that the queue no longer knows as theirs, since an older copy was put back."""
        self.was_put_back = False
        self.started = 0
        self.start_agent()
        self.submit(3, 1, 0, 1, "alice")

    def pick(self, data: st.DataObject, *, with_work: bool = False) -> Pretended:
        able = [each for each in self.agents if not each.dead and (each.believes or not with_work)]
        return data.draw(st.sampled_from(able), label="agent")

    def has_agents(self) -> bool:
        return any(not each.dead for each in self.agents)

    def has_work(self) -> bool:
        return any(each.believes for each in self.agents if not each.dead)

    @rule(
        count=st.integers(1, 3),
        cpus=st.integers(1, 3),
        priority=st.integers(0, 2),
        retries=st.integers(0, 2),
        submitter=st.sampled_from(["alice", "bob"]),
    )
    def submit(self, count: int, cpus: int, priority: int, retries: int, submitter: str = "bob") -> None:
        wanted: dict[str, Any] = {"cpus": cpus, "priority": priority, "retries": retries}
        self.harness.submit(indices=tuple(range(count)), submitter=submitter, **wanted)

    @precondition(lambda self: len(self.agents) < 8)
    @rule()
    def start_agent(self) -> None:
        name = f"agent-{self.started}"
        node = f"node-{self.started % 5}"
        self.started += 1
        self.harness.agent(name, node=node)
        self.agents.append(Pretended(name, node))

    @precondition(has_agents)
    @rule(data=st.data(), cpus=st.integers(1, 6))
    def claim(self, data: st.DataObject, cpus: int) -> None:
        agent = self.pick(data)
        expected = self.expected(cpus, agent)
        try:
            made = self.harness.claim(agent.name, cpus=cpus, memory_mib=10**6)
        except Conflict:
            assert self.phase(agent) == "ended"
            return
        assert [each.job for each in made] == (expected if self.phase(agent) == "live" else [])
        for each in made:
            self.given[each.job, each.attempt] += 1
            agent.believes[each.job, each.attempt] = each

    def expected(self, cpus: int, agent: Pretended) -> list[int]:
        """Return what the claim's rule gives, in plain words, over all jobs."""
        self.harness.do(lanes.wake, self.harness.now_s)  # as the claim itself does first
        waiting = [row for row in self.jobs() if row.state in WAITING and not row.held]
        assert all(barred_nodes(row, [agent.node]) for row in waiting if agent.node in self.refusals(row))
        waiting = [row for row in waiting if not barred_nodes(row, [agent.node])]
        taken: list[int] = []
        with self.engine.connect() as connection:
            until_s = connection.execute(select(NODE.c.excluded_until_s).where(NODE.c.name == agent.node)).scalar()
        most = returns.allowance(until_s, self.harness.now_s)
        while most is None or len(taken) < most:
            fitting = [row for row in waiting if row.cpus <= cpus and row.id not in taken]
            fitting.sort(key=lambda row: (-row.priority, row.state is not State.SAVED, row.id))
            firsts = {row.submitter: row for row in reversed(fitting)}.values()
            if not firsts:
                break
            first = min(firsts, key=lambda row: (row.state is not State.SAVED, -row.priority, row.id))
            cpus -= first.cpus
            taken.append(first.id)
        return taken

    @precondition(has_work)
    @rule(data=st.data(), how=st.sampled_from(ENDS))
    def report(self, data: st.DataObject, how: str) -> None:
        agent = self.pick(data, with_work=True)
        job, attempt = data.draw(st.sampled_from(sorted(agent.believes)), label="attempt")
        if not self.publish(agent.name, job, attempt, how):
            how = ReturnReason.STORAGE_FAULT
        send = self.sender(agent.believes[job, attempt], how)
        if data.draw(st.booleans(), label="the agent forgets it"):
            del agent.believes[job, attempt]
        agent.sent.append(send)
        before = {row.id: row for row in self.jobs()}[job]
        ending = self.ending(job, attempt)
        try:
            send()
        except Conflict:
            is_open = before.attempt == attempt and (before.state is State.RUNNING or before.lost)
            assert not is_open or (
                ending is Ending.RETURNED and how in set(ReturnReason)
            )  # for another reason than before
            return
        follows = (
            ending is Ending.RETURNED and before.lost and before.attempt == attempt and how not in set(ReturnReason)
        )
        if ending is None or ending in GIVEN_UP or follows:
            assert before.attempt == attempt
            self.accepted[job, how] += 1
            self.own_failures[job] += how == "failed"
        else:  # the same once more
            assert ending == {"saved": "saved", "succeeded": "succeeded", "failed": "failed"}.get(how, "returned")

    @precondition(has_work)
    @rule(data=st.data())
    def checkpoint(self, data: st.DataObject) -> None:
        agent = self.pick(data, with_work=True)
        job, attempt = data.draw(st.sampled_from(sorted(agent.believes)), label="attempt")
        number = agent.numbers[job, attempt] = agent.numbers[job, attempt] + 1
        if self.stored.setdefault((job, attempt, number), agent.name) != agent.name:
            return
        before = {row.id: row for row in self.jobs()}[job]
        is_open = before.attempt == attempt and (before.state is State.RUNNING or before.lost)
        try:
            self.harness.record_checkpoint(job, attempt, number=number, log_lines=attempt)
        except Conflict:
            assert not is_open
            return
        assert is_open
        after = {row.id: row for row in self.jobs()}[job]
        assert (after.from_attempt, after.from_number) == (attempt, number)
        assert (after.state, after.lost) == (State.SAVED if before.lost else State.RUNNING, before.lost)
        agent.sent.append(lambda: self.repeated(job, attempt, number))

    def repeated(self, job: int, attempt: int, number: int) -> None:
        assert not self.harness.record_checkpoint(job, attempt, number=number, log_lines=attempt)

    def publish(self, agent: str, job: int, attempt: int, how: str) -> bool:
        """Publish what the agent is about to report. Return False if another agent has published under its name."""
        numbers = {"saved": LAST, "succeeded": None}
        return how not in numbers or self.stored.setdefault((job, attempt, numbers[how]), agent) == agent

    def refusals(self, job: Any) -> set[str]:
        """Return the nodes that have called the job's checkpoint incompatible since it was saved."""
        if job.from_attempt is None:
            return set()
        told = select(ATTEMPT.c.node).where(
            ATTEMPT.c.job == job.id,
            ATTEMPT.c.from_attempt == job.from_attempt,
            ATTEMPT.c.from_number == job.from_number,
            ATTEMPT.c.detail.startswith("incompatible"),
        )
        with self.engine.connect() as connection:
            return set(connection.execute(told).scalars())

    def sender(self, work: Assignment, how: str) -> Callable[[], object]:
        job, attempt, harness = work.job, work.attempt, self.harness
        if how == "saved":
            return lambda: harness.record_save(job, attempt, number=LAST, log_lines=attempt)
        if how == "succeeded":
            return lambda: harness.record_completion(job, attempt, output=True)
        if how == "failed":
            return lambda: harness.record_completion(job, attempt, exit_code=1)
        return lambda: harness.record_return(job, attempt, ReturnReason(how))

    @precondition(has_agents)
    @rule(data=st.data())
    def beat(self, data: st.DataObject) -> None:
        self.send_heartbeat(self.pick(data))

    def send_heartbeat(self, agent: Pretended) -> None:
        of_before = {(work.job, work.attempt) for name, work in self.strays if name == agent.name}
        named = sorted(of_before.union(agent.believes))
        try:
            told = self.harness.record_heartbeat(agent.name, *named)
        except Conflict:
            assert self.phase(agent) == "ended"
            agent.dead = True
            return
        for key, order in zip(named, told.orders, strict=True):
            if order is Order.DROP:
                agent.believes.pop(key, None)
            else:
                assert key not in of_before
                row = {row.id: row for row in self.jobs()}[key[0]]
                assert (row.state, row.attempt, row.agent) == (State.RUNNING, key[1], agent.name)

        self.strays = [(name, work) for name, work in self.strays if name != agent.name]

    @rule(seconds=st.sampled_from([1.0, LEASE_S / 2, LEASE_S + 1]))
    def time_passes(self, seconds: float) -> None:
        self.harness.now_s += seconds
        self.harness.expire()

    @rule(data=st.data(), what=st.sampled_from(["hold", "release", "cancel", "rerun", "priority"]))
    def person(self, data: st.DataObject, what: str) -> None:
        job = data.draw(st.sampled_from([row.id for row in self.jobs()]))
        complete = self.harness.row(job).state is State.COMPLETE
        try:
            match what:
                case "hold":
                    self.harness.hold(job)
                case "release":
                    self.harness.release(job)
                case "cancel":
                    self.harness.cancel(job)
                case "rerun":
                    self.rerun(job)
                case _:
                    self.harness.do(jobs.set_priority, job, data.draw(st.integers(-1, 3)), now_s=self.harness.now_s)
        except Conflict:
            assert complete

    def rerun(self, job: int) -> None:
        before = {row.id: row for row in self.jobs()}[job]
        if before.outcome in {Outcome.FAILED, Outcome.CANCELLED}:
            self.harness.rerun(job)
            after = {row.id: row for row in self.jobs()}[job]
            assert (after.state, after.attempt, after.failures, after.lost) == (State.NEW, before.attempt, 0, False)
            assert self.harness.named(job) == frozenset()
        else:
            with pytest.raises(Conflict):
                self.harness.rerun(job)

    def jobs(self) -> list[Any]:
        with self.engine.connect() as connection:
            found = select(JOB, LANE.c.cpus, LANE.c.not_on, LANE.c.only_on, LANE.c.is_closed).join(
                LANE, LANE.c.id == JOB.c.lane
            )
            return list(connection.execute(found.order_by(JOB.c.id)))  # what is drawn must not hang on where rows lie

    def phase(self, agent: Pretended) -> str:
        with self.engine.connect() as connection:
            return str(
                connection.execute(text("SELECT phase FROM agent WHERE name = :name"), {"name": agent.name}).scalar()
            )

    def ending(self, job: int, attempt: int) -> str | None:
        found = select(ATTEMPT.c.ending).where(ATTEMPT.c.job == job, ATTEMPT.c.attempt == attempt)
        with self.engine.connect() as connection:
            return connection.execute(found).scalar()

    @invariant()
    def nothing_completes_twice_and_no_attempt_number_is_given_twice(self) -> None:
        assert all(times == 1 for times in self.given.values())
        assert all(times == 1 for (_, how), times in self.accepted.items() if how == "succeeded")

    @invariant()
    def the_tables_agree_with_each_other(self) -> None:
        with self.engine.connect() as connection:
            attempts = list(connection.execute(select(ATTEMPT)))
            checkpoints = list(connection.execute(select(CHECKPOINT)))
        for row in self.jobs():
            mine = sorted((each for each in attempts if each.job == row.id), key=lambda each: each.attempt)
            numbers = [each.attempt for each in mine]
            assert numbers == list(range(1, row.attempt + 1)) or (self.was_put_back and numbers[-1:] <= [row.attempt])
            live = [each for each in mine if each.ending is None]
            assert [(each.attempt, each.agent) for each in live] == (
                [(row.attempt, row.agent)] if row.state is State.RUNNING else []
            )
            assert row.failures <= self.own_failures[row.id], "retries used are never more than its own failures"
            if row.lost:
                assert mine[-1].ending in (*GIVEN_UP, Ending.RETURNED)
            named = [
                (each.attempt, each.number)
                for each in checkpoints
                if each.job == row.id and each.standing is Standing.NAMED
            ]
            assert len(named) <= 2
            if row.state is State.SAVED:
                assert (row.from_attempt, row.from_number) == max(named)

    @invariant()
    def no_job_is_stuck_and_no_retry_is_paid_twice(self) -> None:
        with self.engine.connect() as connection:
            paused = {row.job: row for row in connection.execute(select(PAUSE))}
            attempts = list(connection.execute(select(ATTEMPT)))
        for row in self.jobs():
            mine = [each for each in attempts if each.job == row.id and each.attempt > row.earlier_attempts]
            counted = sum(each.blame is Blame.JOB for each in mine)
            assert row.failures == min(counted, row.retries + 1)
            if row.state in WAITING and set(row.not_on) - self.refusals(row):
                # Where a later attempt is lost, the pause goes on.
                later = [each for each in attempts if each.job == row.id and each.attempt > paused[row.id].attempt]
                assert all(each.ending in GIVEN_UP for each in later)
                assert paused[row.id].wakes_s <= self.harness.now_s + 900

    @invariant()
    def an_agent_that_has_ended_or_is_silent_has_no_job_after_control_looked(self) -> None:
        self.harness.expire()
        with self.engine.connect() as connection:
            stray = "SELECT count(*) FROM job JOIN agent ON agent.name = job.agent WHERE agent.phase <> 'live'"
            assert connection.execute(text(stray)).scalar() == 0


class Interleavings(Agents):
    """Agents that also repeat themselves, leave and die, and a control program that starts again."""

    @precondition(lambda self: any(each.sent for each in self.agents))
    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        """Send a report again, perhaps much later, as if its answer was lost. Nothing changes."""
        sent = [send for agent in self.agents for send in agent.sent]
        send = data.draw(st.sampled_from(sent))
        before = self.harness.everything()
        with suppress(Conflict):
            send()
        assert self.harness.everything() == before

    @precondition(Agents.has_agents)
    @rule(data=st.data(), fault=st.booleans())
    def farewell(self, data: st.DataObject, fault: bool) -> None:
        agent = self.pick(data)
        self.harness.record_deregistration(agent.name, fault=fault)
        agent.dead = True

    @precondition(Agents.has_agents)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.pick(data).dead = True

    @rule()
    def control_restarts(self) -> None:
        self.harness.now_s += 10 * LEASE_S
        self.harness.do(agents.renew_leases, now_s=self.harness.now_s, lease_s=LEASE_S)
        assert self.harness.expire() == []


class Restores(Agents):
    """Agents whose queue is replaced, again and again, by a copy of a while before."""

    runs = 40

    def back_up(self) -> Copy:
        with self.engine.connect() as db:
            rows = {
                table.name: [dict(row) for row in db.execute(select(table)).mappings()]
                for table in METADATA.sorted_tables
            }
        return Copy(rows, self.given.copy(), self.accepted.copy(), self.own_failures.copy())

    @precondition(Agents.has_agents)
    @rule(data=st.data(), steps=st.lists(st.sampled_from(["claim", "checkpoint", "saved", "succeeded"]), min_size=5))
    def work_and_put_back(self, data: st.DataObject, steps: list[str]) -> None:
        """Take a copy, let agents work, and put the copy back."""
        for agent in self.agents:
            if not agent.dead:
                self.send_heartbeat(agent)
        copy = self.back_up()
        for step in ["claim", *steps]:
            if step == "claim" or not self.has_work():
                self.submit(1, 1, 0, 1)
                self.claim(data, 6)
            elif step == "checkpoint":
                self.checkpoint(data)
            else:
                self.report(data, step)
        self.put_back(copy)

    def put_back(self, copy: Copy) -> None:
        """Put the copy back. What is whole in the storage counts for the jobs that the copy knows."""
        with transaction(self.engine) as db:
            for table in reversed(METADATA.sorted_tables):
                db.execute(delete(table))
            for table in METADATA.sorted_tables:
                if copy.rows[table.name]:
                    db.execute(insert(table), copy.rows[table.name])
            latest = recovery.unfinished_attempts(db)
        before = {row.id: row for row in self.jobs()}
        found = [
            Found(job, attempt, number, digest(number or 99), 1000, exit_code=None if number else 0, node=NODE_FACTS)
            for job, attempt, number in self.stored
            if attempt >= latest.get(job, inf)
        ]
        stored = {job: attempt for job, attempt, _ in sorted(self.stored, key=lambda one: one[1])}
        self.harness.do(recovery.recover, found, stored_jobs=stored, now_s=self.harness.now_s)
        after = {row.id: row for row in self.jobs()}
        for job, row in after.items():
            counts = before[job].state is State.RUNNING or before[job].lost
            new = {one for one in found if one.job == job and one.attempt >= before[job].attempt + (not counts)}
            if any(one.number is None for one in new):
                assert row.state is State.COMPLETE
            elif new:
                newest = max((one.attempt, one.number) for one in new if one.number)
                assert (row.state, row.from_attempt, row.from_number) == (State.SAVED, *newest)
        self.forget_what_the_queue_has_forgotten(copy, after)

    def forget_what_the_queue_has_forgotten(self, copy: Copy, rows: dict[int, Any]) -> None:
        self.was_put_back = True
        done = {key: times for key, times in self.accepted.items() if key[1] == "succeeded" and key[0] in rows}
        assert all(rows[job].state is State.COMPLETE for job, _ in done)
        done = {key: times for key, times in done.items() if rows[key[0]].outcome is Outcome.SUCCEEDED}
        self.accepted = copy.accepted | Counter(done)
        self.given = Counter({key: times for key, times in copy.given.items() if key[1] <= rows[key[0]].attempt})
        self.own_failures = copy.own_failures.copy()
        with self.engine.connect() as db:
            theirs = {(row.job, row.attempt): row.agent for row in db.execute(select(ATTEMPT))}
            known = set(db.execute(select(AGENT.c.name)).scalars())
        for agent in self.agents:
            lost = [key for key in agent.believes if theirs.get(key) != agent.name]
            self.strays += [(agent.name, agent.believes.pop(key)) for key in lost]
            agent.sent.clear()
        self.agents = [agent for agent in self.agents if agent.name in known]

    @precondition(lambda self: bool(self.strays))
    @rule(data=st.data(), how=st.sampled_from(ENDS))
    def stray(self, data: st.DataObject, how: str) -> None:
        """Let an agent report work that the queue has forgotten. Nothing changes, also if it publishes first."""
        name, work = data.draw(st.sampled_from(self.strays))
        before = self.harness.everything()
        if self.publish(name, work.job, work.attempt, how):
            with pytest.raises((NotYours, NotFound)):
                self.harness.do(attempts.check_agent, work.job, work.attempt, name)
        assert self.harness.everything() == before


@pytest.mark.timeout(600)
@pytest.mark.parametrize("machine", [Interleavings, Restores])
def test_whatever_the_order_of_events_no_job_is_lost_or_done_twice(queue_engine: Engine, machine: type[Agents]) -> None:
    run_state_machine_as_test(
        type("Here", (machine,), {"engine": queue_engine}),
        settings=settings(
            max_examples=examples(machine.runs),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
            print_blob=True,
        ),
    )
