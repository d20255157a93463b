"""Random interleavings of agents that work, fall silent, come back, repeat themselves and report late.

The agents here know only what control has told them; what they believe may be long out of date. After every step the
whole queue is checked.
"""

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
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
from sqlalchemy import Engine, select, text
from tests.effort import examples
from tests.queue.queue_harness import LEASE_S, QueueHarness

from gleaner.agent.messages import Assignment, Order, ReturnReason
from gleaner.control.models.jobs import Ending
from gleaner.control.policy import returns
from gleaner.control.policy.returns import Blame
from gleaner.control.queue import agents, jobs, lanes
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import Conflict
from gleaner.control.queue.lanes import barred_nodes
from gleaner.control.queue.tables import ATTEMPT, CHECKPOINT, JOB, LANE, METADATA, NODE, PAUSE, Standing
from gleaner.control.states import WAITING, Outcome, State

pytestmark = pytest.mark.slow
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


class Agents(RuleBasedStateMachine):
    """Agents that work for the queue, repeat themselves, leave and die, and persons who interfere; control restarts."""

    engine: Engine

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
        agent = self.pick(data)
        named = sorted(agent.believes)
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
                row = {row.id: row for row in self.jobs()}[key[0]]
                assert (row.state, row.attempt, row.agent) == (State.RUNNING, key[1], agent.name)

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
            assert numbers == list(range(1, row.attempt + 1))
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

    @precondition(has_agents)
    @rule(data=st.data(), fault=st.booleans())
    def farewell(self, data: st.DataObject, fault: bool) -> None:
        agent = self.pick(data)
        self.harness.record_deregistration(agent.name, fault=fault)
        agent.dead = True

    @precondition(has_agents)
    @rule(data=st.data())
    def crash(self, data: st.DataObject) -> None:
        self.pick(data).dead = True

    @rule()
    def control_restarts(self) -> None:
        self.harness.now_s += 10 * LEASE_S
        self.harness.do(agents.renew_leases, now_s=self.harness.now_s, lease_s=LEASE_S)
        assert self.harness.expire() == []


@pytest.mark.timeout(600)
def test_whatever_the_order_of_events_no_job_is_lost_or_done_twice(queue_engine: Engine) -> None:
    run_state_machine_as_test(
        type("Here", (Agents,), {"engine": queue_engine}),
        settings=settings(
            max_examples=examples(100),
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
            print_blob=True,
        ),
    )
