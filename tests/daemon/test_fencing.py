"""Only the leader of this epoch writes: one that was stopped, or that waited past its term, is refused."""

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine, delete, literal, select, text
from tests.daemon.daemon_harness import DaemonHarness, Program
from tests.slurm.slurm_harness import FakedSlurm

from gleaner.control.daemon.leader import Leadership
from gleaner.control.queue import leader, tokens
from gleaner.control.queue.database import connect, transaction
from gleaner.control.queue.errors import NotLeading, QueueBusy
from gleaner.control.queue.tables import LEADER, TOKEN

TERM_S = 30.0
LATER_S = 4e9
OLD, NEW = "old:1:1:elsewhere", "new:1:1:elsewhere"


def write(program: Program, node: str) -> None:
    with program.state.writing() as db:
        note(db, node)


def note(db: Connection, node: str) -> None:
    """Write something that can be found again."""
    tokens.issue(db, role="metrics", name=node, group=None, now_s=0.0)


def noted(engine: Engine) -> set[str]:
    with engine.connect() as db:
        return set(db.execute(select(TOKEN.c.name)).scalars())


def epoch(engine: Engine) -> int:
    with engine.connect() as db:
        return int(db.execute(select(LEADER.c.epoch)).scalar_one())


@contextmanager
def taken_over(engine: Engine, holder: str) -> Generator[None]:
    """Somebody takes over, much later, and has not committed yet."""
    with transaction(engine) as db:
        assert leader.try_lead(db, holder, now=literal(LATER_S), term_s=TERM_S) is not None
        yield


def test_a_leader_that_was_stopped_is_refused_in_one_line_and_stops_to_lead(queue_engine: Engine) -> None:
    old, new = Program(queue_engine, OLD), Program(queue_engine, NEW)
    assert old.tick()
    write(old, "before")
    new.now_s += 1000
    assert new.tick()
    write(new, "by the new one")
    assert old.state.is_leader, "it was stopped, and knows nothing"
    with pytest.raises(NotLeading, match=r"^only reads are served here: new:1:1:elsewhere leads$"):
        write(old, "too late")
    assert not old.state.is_leader
    assert noted(queue_engine) == {"before", "by the new one"}
    write(new, "later")


def test_a_leader_that_waits_for_its_turn_while_another_takes_over_writes_nothing(queue_engine: Engine) -> None:
    old = Program(queue_engine, OLD)
    assert old.tick()
    other = connect(queue_engine.url.render_as_string(hide_password=False))
    refused: list[str] = []

    def write_late() -> None:
        try:
            write(old, "too late")
        except NotLeading as error:
            refused.append(str(error))

    waits = threading.Thread(target=write_late)
    with taken_over(other, NEW):
        waits.start()
        waits.join(0.3)
        assert waits.is_alive(), "it has looked, and waits"
    waits.join(20)
    other.dispose()
    assert (len(refused), old.state.is_leader, noted(queue_engine)) == (1, False, set())


def test_a_leader_that_waits_for_its_turn_past_its_own_term_writes_nothing(sqlite_url: str) -> None:
    """By the database's own clock."""
    engine = connect(sqlite_url)
    old = Program(engine, OLD)
    old.state.database_clock = lambda: leader.NOW
    assert old.tick()
    with transaction(engine) as db:
        old.state.term = leader.try_lead(db, OLD, now=leader.NOW, term_s=0.2)
    refused = threading.Event()

    def write_late() -> None:
        with pytest.raises(NotLeading, match="no control program leads now"):
            write(old, "too late")
        refused.set()

    waits = threading.Thread(target=write_late)
    with transaction(engine):
        waits.start()
        time.sleep(0.4)  # the term is over then
    waits.join(20)
    assert (refused.is_set(), noted(engine), old.state.is_leader) == (True, set(), False)
    engine.dispose()


def test_nobody_takes_over_before_what_the_leader_writes_is_there(queue_engine: Engine) -> None:
    old = Program(queue_engine, OLD)
    assert old.tick()
    other = connect(queue_engine.url.render_as_string(hide_password=False))
    found: list[set[str]] = []

    def take_over() -> None:
        with taken_over(other, NEW):
            found.append(noted(other) if other.dialect.name == "sqlite" else noted(queue_engine))

    successor = threading.Thread(target=take_over)
    with old.state.writing() as db:
        note(db, "in time")
        successor.start()
        successor.join(0.3)
        assert successor.is_alive(), "it waits for this transaction"
    successor.join(20)
    other.dispose()
    assert found == [{"in time"}]


@pytest.mark.postgres
def test_a_program_that_was_stopped_within_a_transaction_keeps_nobody_from_leading(postgres_url: str) -> None:
    engine, other = connect(postgres_url), connect(postgres_url)
    with engine.connect() as db:
        assert db.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one() == "10s"
    old = Program(engine, OLD)
    assert old.tick()
    with pytest.raises(QueueBusy), old.state.writing() as db:
        db.execute(text("SET LOCAL idle_in_transaction_session_timeout = '200ms'"))
        note(db, "never committed")
        with taken_over(other, NEW):
            pass
        note(db, "nor this")
    assert noted(engine) == set()
    engine.dispose()
    other.dispose()


@pytest.mark.postgres
def test_the_leaders_transactions_and_its_next_term_do_not_wait_for_each_other(postgres_url: str) -> None:
    engine = connect(postgres_url)
    old = Program(engine, OLD)
    assert old.tick()
    with old.state.writing() as one, old.state.writing() as another:
        note(one, "one")
        note(another, "another")
        old.now_s += 5
        assert old.tick()
    assert noted(engine) == {"one", "another"}
    engine.dispose()


def test_an_epoch_is_higher_than_all_before_also_in_a_database_that_was_made_anew(queue_engine: Engine) -> None:
    def next_epoch(holder: str, now_s: float) -> int:
        with transaction(queue_engine) as db:
            term = leader.try_lead(db, holder, now=literal(now_s), term_s=TERM_S)
            assert term is not None
            leader.resign(db, holder)
        assert (term.epoch, term.holder) == (epoch(queue_engine), holder)
        return term.epoch

    first = next_epoch(OLD, 1000.0)
    assert next_epoch(OLD, 1001.0) == first, "nobody led in between"
    second = next_epoch(NEW, 1000.0)
    third = next_epoch(OLD, 500.0)  # the clock was set back
    with transaction(queue_engine) as db:
        db.execute(delete(LEADER))
    assert first < second < third < next_epoch(NEW, 2000.0)


def test_the_databases_own_clock_is_the_time_in_seconds(queue_engine: Engine) -> None:
    before_s = time.time()
    with queue_engine.connect() as db:
        found = db.execute(select(leader.NOW)).scalar_one()
    assert before_s - 0.01 <= found <= time.time() + 0.01


def led_by(harness: DaemonHarness, holder: str) -> Leadership:
    """Let the harness's program lead while its own clock stands still."""
    harness.state.steady_clock = lambda: 0.0
    leadership = Leadership(harness.state, holder)
    leadership.tick(harness.now_s)
    assert harness.state.term is not None
    return leadership


def test_a_leader_that_is_succeeded_while_it_writes_a_token_submits_no_agent(
    harness: DaemonHarness, faked: FakedSlurm
) -> None:
    harness.submit_jobs(1)
    led_by(harness, OLD)
    clock = harness.state.database_clock

    def taken_over_then() -> object:
        term = harness.state.term
        if harness.agents() and term is not None and epoch(harness.state.engine) == term.epoch:
            with taken_over(harness.state.engine, NEW):
                pass
        return clock()

    harness.state.database_clock = taken_over_then  # type: ignore[assignment]
    harness.round()
    assert len(harness.agents()) == 1, "whoever leads now finds it, and closes it"
    assert faked.calls("sbatch") == []
