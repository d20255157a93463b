"""The choice of the leader, and lease time that stands still while control is away."""

from collections.abc import Iterator

import pytest
from sqlalchemy import Engine, literal, text
from tests.daemon.daemon_harness import LEASE_S, Program

from gleaner.agent.messages import Heartbeat, NodeFacts, Registration
from gleaner.control.daemon.leader import is_dead, this_program
from gleaner.control.queue import agents, leader, queries
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.queue.errors import NotLeading

ELSEWHERE = "other:7:1:elsewhere"
FACTS = NodeFacts(node="n1", cpus=6, memory_mib=4000, runtime="docker", criu="4.1", kernel="6", architecture="x")


@pytest.fixture
def with_agent(queue_engine: Engine) -> Iterator[Engine]:
    """A queue with one live agent, last heard of at 1000."""
    with transaction(queue_engine) as db:
        agents.expect(db, name="a", end_s=9e9, token_hash="h", now_s=1000)
        agents.register(db, "a", Registration(facts=FACTS, end_s=9e9), lease_s=LEASE_S, now_s=1000)
    yield queue_engine


def phase(engine: Engine, now_s: float) -> str:
    with snapshot(engine) as db:
        return queries.agent_rows(db, now_s=now_s)[0].phase


def test_a_database_whose_clock_was_set_back_is_led_again_although_its_leader_has_died(queue_engine: Engine) -> None:
    first, second = Program(queue_engine, this_program()), Program(queue_engine, ELSEWHERE)
    first.tick(1e6)
    second.tick(1e6)
    assert not second.state.is_leader
    second.tick(1e6 - 3600)
    assert second.state.is_leader


def test_one_leads_and_the_other_only_reads_until_the_term_ends(queue_engine: Engine) -> None:
    first, second = Program(queue_engine, this_program()), Program(queue_engine, ELSEWHERE)
    for now_s in (1000.0, 1005.0, 1010.0):
        first.tick(now_s)
        second.tick(now_s)
    assert (first.state.is_leader, second.state.is_leader) == (True, False)
    second.tick(1010 + 31)
    first.tick(1010 + 32)
    assert (first.state.is_leader, second.state.is_leader) == (False, True)


@pytest.mark.parametrize("answers_after_s", [0, 20, 31, 100])
def test_a_term_counts_from_before_it_was_asked_for(queue_engine: Engine, answers_after_s: int) -> None:
    first = Program(queue_engine, this_program())
    times_s = iter([1000.0])  # when it asks; after that, the answer is there
    first.state.steady_clock = lambda: next(times_s, 1000.0 + answers_after_s)
    first.tick(1000)
    assert first.state.is_leader == (answers_after_s < 25)


def test_a_leader_stops_to_believe_so_before_others_may_lead(queue_engine: Engine) -> None:
    steady_s = 0.0
    first = Program(queue_engine, this_program())
    first.state.steady_clock = lambda: steady_s
    second = Program(queue_engine, ELSEWHERE)
    first.tick(1000)
    for passed_s in range(40):
        steady_s = float(passed_s)
        second.tick(1000.0 + passed_s)
        assert not (first.state.is_leader and second.state.is_leader)
    assert second.state.is_leader


def test_a_leader_that_ends_properly_is_succeeded_at_once(queue_engine: Engine) -> None:
    first, second = Program(queue_engine, this_program()), Program(queue_engine, ELSEWHERE)
    first.tick(1000)
    first.leadership.resign()
    second.tick(1001)
    assert (first.state.is_leader, second.state.is_leader) == (False, True)


def test_a_holder_elsewhere_is_never_taken_for_dead() -> None:
    host, pid, start, place = this_program().split(":")
    assert not is_dead(this_program())
    assert not is_dead(f"{host}:{pid}:{start}:another-place")
    assert is_dead(f"{host}:{pid}:{int(start) - 1}:{place}")


def test_a_silent_agent_is_given_up_when_its_lease_ends(with_agent: Engine) -> None:
    mine = Program(with_agent, this_program())
    ticks = [1000 + 5 * number for number in range(int(LEASE_S / 5) + 2)]
    for now_s in ticks[:-1]:
        mine.tick(now_s)
    assert phase(with_agent, 1000) == "live"
    mine.tick(ticks[-1])
    assert phase(with_agent, 1000) == "silent"


@pytest.mark.parametrize("restarted", [True, False])
def test_no_lease_time_runs_while_control_is_away(with_agent: Engine, restarted: bool) -> None:
    mine = Program(with_agent, this_program())
    mine.tick(1000)
    if restarted:
        mine = Program(with_agent, this_program())
    back_s = 1000 + 10 * LEASE_S
    mine.tick(back_s)
    assert phase(with_agent, back_s) == "live"
    with transaction(with_agent) as db:
        agents.record_heartbeat(db, "a", Heartbeat(), lease_s=LEASE_S, now_s=back_s + LEASE_S - 1)


def test_a_program_of_an_older_version_does_not_begin_to_lead_newer_tables(
    queue_engine: Engine, capfd: pytest.CaptureFixture[str]
) -> None:
    mine = Program(queue_engine, this_program())
    with queue_engine.begin() as db:
        db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    mine.tick(1000)
    assert not mine.state.is_leader
    with snapshot(queue_engine) as db:
        assert leader.leader(db, now=literal(1000.0)) is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "does not lead" in line
    assert "of a newer Gleaner (tables 9999): install that one again" in line


def test_a_leader_whose_tables_are_migrated_by_a_newer_version_stops_to_lead(queue_engine: Engine) -> None:
    mine = Program(queue_engine, this_program())
    mine.tick(1000)
    assert mine.state.is_leader
    with queue_engine.begin() as db:
        db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    mine.tick(1005)
    assert not mine.state.is_leader
    with pytest.raises(NotLeading), mine.state.writing():
        pytest.fail("it writes")
