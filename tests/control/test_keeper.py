"""Who leads, and lease time that stands still while control is away."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine, literal, text
from tests.control.stage import LEASE_S, settings
from tests.queue.scene import Scene

from gleaner.agent.protocol import Beat, NodeFacts, Registration
from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.keeper import Keeper, is_dead, this_program
from gleaner.control.policy.judging import FIRST_PROBE_S
from gleaner.control.queue import agents, leader, reads
from gleaner.control.queue.engine import connect, migrate, snapshot, transaction
from gleaner.control.queue.errors import NotLeading, Refused
from gleaner.control.site import Site

ELSEWHERE = "other:7:1:elsewhere"
FACTS = NodeFacts(node="n1", cpus=6, memory_mib=4000, runtime="docker", criu="4.1", kernel="6", architecture="x")


class Told(Keeper):
    """A keeper whose database has the time that it is told at each tick."""

    def tick(self, now_s: float) -> None:
        self._site.database_clock = lambda: literal(now_s)
        super().tick(now_s)


def keeper(engine: Engine, folder: Path, holder: str) -> tuple[Keeper, Site]:
    site = Site(settings("sqlite:///unused", folder), engine, FolderStorage(folder))
    return Told(site, holder), site


@pytest.fixture
def with_agent(queue_engine: Engine) -> Iterator[Engine]:
    """A queue with one live agent, last heard of at 1000."""
    with transaction(queue_engine) as db:
        agents.expect(db, name="a", end_s=9e9, token_hash="h", now_s=1000)
        agents.register(db, "a", Registration(facts=FACTS, end_s=9e9), lease_s=LEASE_S, now_s=1000)
    yield queue_engine


def phase(engine: Engine, now_s: float) -> str:
    with snapshot(engine) as db:
        return reads.agent_rows(db, now_s=now_s)[0].phase


def test_a_clock_that_was_set_back_makes_no_job_and_no_node_wait_longer_than_they_ever_may(
    queue_engine: Engine, tmp_path: Path
) -> None:
    scene, day_s = Scene(queue_engine, now_s=1e6), 24 * 3600.0
    scene.agent("a", node="n1")
    scene.agent("b", node="n2")
    jobs = scene.submit(indices=tuple(range(6)), retries=5).jobs
    for work in scene.claim("a"):
        scene.completed(work.job, work.attempt, exit_code=1)
    with transaction(queue_engine) as db:
        agents.node_failed(db, "n2", now_s=scene.now_s, failures_until_avoided=1, avoid_s=3600)
    leading, _ = keeper(queue_engine, tmp_path, this_program())
    leading.tick(scene.now_s)
    assert scene.claim("b") == (), "all pause"
    scene.now_s -= day_s
    leading.tick(scene.now_s)
    assert scene.look(agents.avoided, scene.now_s) == ()
    scene.beat("b")
    assert sorted(each.job for each in scene.claim("b")) == list(jobs)
    scene.beat("a")
    scene.now_s += FIRST_PROBE_S + 1
    scene.job()
    assert len(scene.claim("a")) == 1


def test_a_database_whose_clock_was_set_back_is_led_again_although_its_leader_has_died(
    queue_engine: Engine, tmp_path: Path
) -> None:
    first, _ = keeper(queue_engine, tmp_path, this_program())
    second, second_site = keeper(queue_engine, tmp_path, ELSEWHERE)
    first.tick(1e6)
    second.tick(1e6)
    assert not second_site.is_leader
    second.tick(1e6 - 3600)
    assert second_site.is_leader


def test_a_leader_that_lives_goes_on_where_its_databases_clock_was_set_back(
    queue_engine: Engine, tmp_path: Path
) -> None:
    first, first_site = keeper(queue_engine, tmp_path, this_program())
    second, second_site = keeper(queue_engine, tmp_path, ELSEWHERE)
    for now_s in (1e6, 1e6 - 3600, 1e6 - 3595):
        first.tick(now_s)
        second.tick(now_s)
    assert (first_site.is_leader, second_site.is_leader) == (True, False)


def test_one_leads_and_the_other_only_reads_until_the_term_ends(queue_engine: Engine, tmp_path: Path) -> None:
    first, first_site = keeper(queue_engine, tmp_path, this_program())
    second, second_site = keeper(queue_engine, tmp_path, ELSEWHERE)
    for now_s in (1000.0, 1005.0, 1010.0):
        first.tick(now_s)
        second.tick(now_s)
    assert (first_site.is_leader, second_site.is_leader) == (True, False)
    second.tick(1010 + 31)
    first.tick(1010 + 32)
    assert (first_site.is_leader, second_site.is_leader) == (False, True)


@pytest.mark.parametrize("answers_after_s", [0, 20, 31, 100])
def test_a_term_counts_from_before_it_was_asked_for(queue_engine: Engine, tmp_path: Path, answers_after_s: int) -> None:
    first, site = keeper(queue_engine, tmp_path, this_program())
    times_s = iter([1000.0])  # when it asks; after that, the answer is there
    site.steady_clock = lambda: next(times_s, 1000.0 + answers_after_s)
    first.tick(1000)
    assert site.is_leader == (answers_after_s < 25)


def test_a_leader_stops_to_believe_so_before_others_may_lead(queue_engine: Engine, tmp_path: Path) -> None:
    steady_s = 0.0
    first, first_site = keeper(queue_engine, tmp_path, this_program())
    first_site.steady_clock = lambda: steady_s
    second, second_site = keeper(queue_engine, tmp_path, ELSEWHERE)
    first.tick(1000)
    for passed_s in range(40):
        steady_s = float(passed_s)
        second.tick(1000.0 + passed_s)
        assert not (first_site.is_leader and second_site.is_leader)
    assert second_site.is_leader


@pytest.mark.postgres
def test_a_database_that_stops_in_the_middle_of_a_call_leaves_no_leader(postgres_url: str, tmp_path: Path) -> None:
    engine = connect(postgres_url)
    with engine.connect() as connection:  # the pool gives the same connection out again
        (server,) = connection.execute(text("SELECT pg_backend_pid()")).one()
    mine, site = keeper(engine, tmp_path, this_program())
    steady_s = 0.0
    site.steady_clock = lambda: steady_s
    mine.tick(1000)
    assert site.is_leader
    os.kill(server, signal.SIGSTOP)
    try:
        blocked = threading.Thread(target=mine.tick, args=(1005.0,))
        blocked.start()
        blocked.join(0.3)
        assert (blocked.is_alive(), site.is_leader) == (True, True)
        steady_s = 26.0
        assert not site.is_leader
    finally:
        os.kill(server, signal.SIGCONT)
    blocked.join(20)
    assert not blocked.is_alive()
    assert not site.is_leader
    mine.tick(1031)
    assert site.is_leader
    engine.dispose()


def test_a_leader_that_ends_properly_is_succeeded_at_once(queue_engine: Engine, tmp_path: Path) -> None:
    first, first_site = keeper(queue_engine, tmp_path, this_program())
    second, second_site = keeper(queue_engine, tmp_path, ELSEWHERE)
    first.tick(1000)
    first.resign()
    second.tick(1001)
    assert (first_site.is_leader, second_site.is_leader) == (False, True)


@pytest.mark.slow
def test_a_killed_leader_of_this_machine_is_succeeded_at_once(queue_engine: Engine, tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "from gleaner.control.keeper import this_program as t; print(t(), flush=True); input()"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as other:
        assert other.stdout is not None
        holder = other.stdout.readline().strip()
        with transaction(queue_engine) as db:
            leader.try_lead(db, holder, now=literal(1000.0), term_s=100)
        mine, site = keeper(queue_engine, tmp_path, this_program())
        mine.tick(1001)
        assert not site.is_leader
        other.kill()
        other.wait()
        mine.tick(1002)
    assert site.is_leader


def test_a_holder_elsewhere_is_never_taken_for_dead() -> None:
    host, pid, start, place = this_program().split(":")
    assert not is_dead(this_program())
    assert not is_dead(f"{host}:{pid}:{start}:another-place")
    assert is_dead(f"{host}:{pid}:{int(start) - 1}:{place}")


def test_a_silent_agent_is_given_up_when_its_lease_ends(with_agent: Engine, tmp_path: Path) -> None:
    mine, _ = keeper(with_agent, tmp_path, this_program())
    ticks = [1000 + 5 * number for number in range(int(LEASE_S / 5) + 2)]
    for now_s in ticks[:-1]:
        mine.tick(now_s)
    assert phase(with_agent, 1000) == "live"
    mine.tick(ticks[-1])
    assert phase(with_agent, 1000) == "silent"


@pytest.mark.parametrize("restarted", [True, False])
def test_no_lease_time_runs_while_control_is_away(with_agent: Engine, tmp_path: Path, restarted: bool) -> None:
    mine, _ = keeper(with_agent, tmp_path, this_program())
    mine.tick(1000)
    if restarted:
        mine, _ = keeper(with_agent, tmp_path, this_program())
    back_s = 1000 + 10 * LEASE_S
    mine.tick(back_s)
    assert phase(with_agent, back_s) == "live"
    with transaction(with_agent) as db:
        agents.beat(db, "a", Beat(), lease_s=LEASE_S, now_s=back_s + LEASE_S - 1)


@pytest.mark.slow
def test_a_database_that_is_locked_or_old_takes_no_leases(sqlite_url: str, tmp_path: Path) -> None:
    engine = connect(sqlite_url.replace("queue.db", "empty.db"))
    mine, site = keeper(engine, tmp_path, this_program())
    mine.tick(1000)  # no tables: said, not raised
    assert not site.is_leader
    migrate(engine)
    mine.tick(1005)
    assert site.is_leader
    engine.dispose()


def test_a_program_of_an_older_version_does_not_begin_to_lead_newer_tables(
    queue_engine: Engine, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    mine, site = keeper(queue_engine, tmp_path, this_program())
    with queue_engine.begin() as db:
        db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    mine.tick(1000)
    assert not site.is_leader
    with snapshot(queue_engine) as db:
        assert leader.leader(db, now=literal(1000.0)) is None
    (line,) = capfd.readouterr().err.splitlines()
    assert "does not lead" in line
    assert "(9999): install a newer Gleaner" in line


def test_a_leader_whose_tables_are_migrated_by_a_newer_version_stops_to_lead(
    queue_engine: Engine, tmp_path: Path
) -> None:
    mine, site = keeper(queue_engine, tmp_path, this_program())
    mine.tick(1000)
    assert site.is_leader
    with queue_engine.begin() as db:
        db.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    mine.tick(1005)
    assert not site.is_leader
    with pytest.raises(NotLeading), site.writing():
        pytest.fail("it writes")


def test_an_agent_that_was_given_up_may_not_come_back_once_it_is_closed(with_agent: Engine) -> None:
    with transaction(with_agent) as db:
        agents.expire(db, now_s=1000 + LEASE_S + 1, losses_until_held=3)
        agents.close_silent(db, "a", now_s=2000, losses_until_held=3, reason="gone")
    with pytest.raises(Refused), transaction(with_agent) as db:
        agents.beat(db, "a", Beat(), lease_s=LEASE_S, now_s=2001)
