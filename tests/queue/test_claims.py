"""Claims: an agent gets what fits, saved before new, the highest priority first, then the oldest."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, event, text
from tests.queue.queue_harness import QueueHarness, checkpoint

from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import ClaimRequest, ReturnReason, Stream
from gleaner.control.models.jobs import Submission
from gleaner.control.policy.provisioning import WaitingJobs
from gleaner.control.queue import claims, jobs, queries
from gleaner.control.queue.database import connect, transaction
from gleaner.control.queue.errors import Conflict


def test_of_one_submitter_the_highest_priority_comes_first_then_saved_before_new_then_the_oldest(
    harness: QueueHarness,
) -> None:
    plain, saved, high, higher, saved_high = harness.submit(indices=(0, 1, 2, 3, 4)).jobs
    for job, priority in ((high, 5), (higher, 6), (saved_high, 3)):
        harness.do(jobs.set_priority, job, priority, now_s=1.0)
    harness.claim(harness.agent("a"))
    for job in (plain, saved, high, higher, saved_high):
        if job in {saved, saved_high}:
            harness.record_save(job, 1)
        else:
            harness.record_return(job, 1, ReturnReason.UNSTARTED)
    assert [each.job for each in harness.claim("a")] == [higher, high, saved_high, saved, plain]


def test_of_several_submitters_saved_comes_before_new_and_a_high_priority_delays_only_its_own(
    harness: QueueHarness,
) -> None:
    mine, theirs = harness.job(submitter="alice"), harness.job(submitter="bob", priority=1)
    harness.claim(harness.agent("a"))
    for job in (mine, theirs):
        harness.record_save(job, 1)
    urgent, new = harness.job(submitter="alice", priority=9), harness.job(submitter="carol", priority=3)
    before = {job: harness.look(queries.waiting_before, job, at_most=9) for job in (mine, theirs, urgent, new)}
    assert before == {mine: 2, theirs: 0, urgent: 1, new: 3}
    assert [each.job for each in harness.claim("a", most=1)] == [theirs], "also where only one is read"
    harness.record_save(theirs, 2)
    assert [each.job for each in harness.claim("a")] == [theirs, urgent, mine, new]


def test_as_many_jobs_as_fit_cores_and_memory_are_handed_out(harness: QueueHarness) -> None:
    harness.submit(indices=tuple(range(10)), cpus=2, memory_mib=1000)
    harness.agent("a")
    assert len(harness.claim("a", cpus=7, memory_mib=50_000)) == 3
    assert len(harness.claim("a", cpus=64, memory_mib=2999)) == 2
    assert len(harness.claim("a", cpus=64, most=1)) == 1
    assert harness.claim("a", cpus=1) == ()
    assert harness.claim("a", memory_mib=999) == ()
    assert harness.claim("a", cpus=0, memory_mib=0) == ()
    assert len(harness.claim("a")) == 4


def test_a_job_that_does_not_fit_stops_nobody_behind_it(harness: QueueHarness) -> None:
    harness.job(cpus=32, priority=9)
    harness.job(memory_mib=10_000, priority=8)
    small = harness.job(cpus=2, memory_mib=128)
    harness.agent("a")
    assert [each.job for each in harness.claim("a", cpus=4, memory_mib=4000)] == [small]


def test_an_assignment_has_the_whole_specification_with_the_index_filled_in(harness: QueueHarness) -> None:
    spec: dict[str, Any] = {
        "name": "zmumu", "image": "gleaner/pythia", "command": ("generate", "--seed={index}"),
        "environment": {"OUT": "run{index}"}, "cpus": 2, "memory_mib": 700, "retries": 4, "compute_limit_s": 3600,
        "silent_limit_s": 1800, "disk_mib": 2048, "saves_itself": {"signal": "SIGUSR1", "exit_code": 3},
    }  # fmt: skip
    (job,) = harness.submit(indices=(7,), **spec).jobs
    made = harness.claim_one(harness.agent("a"))
    assert (made.job, made.attempt, made.group, made.image) == (job, 1, "physics", "gleaner/pythia")
    filled_in = {"command": ("generate", "--seed=7"), "environment": {"OUT": "run7"}}
    assert made.spec == JobSpec.model_validate(spec | filled_in | {"memory_mib": made.memory_mib})
    assert harness.detail(job).spec == made.spec
    assert (made.memory_mib, made.checkpoint) == (704, None), "700 is rounded up to a step"


def test_the_next_agent_gets_the_checkpoint_as_it_was_reported(harness: QueueHarness) -> None:
    job = harness.job()
    open_lines = {Stream.STDOUT: "Y2Fmww==", Stream.STDERR: "aGFsZg=="}
    facts: dict[str, Any] = {"log_lines": 3, "open_lines": open_lines, "silent_s": 1200.5}
    harness.claim_one(harness.agent("a"))
    harness.record_save(job, 1, **facts)
    assert harness.claim_one("a").checkpoint == checkpoint(1, **facts)
    harness.record_save(job, 2, number=2)
    again = harness.claim_one("a").checkpoint
    assert again is not None
    assert again.open_lines == {}


def test_an_index_is_filled_in_only_where_there_is_one(harness: QueueHarness) -> None:
    harness.job(command=("echo", "{index}"))
    assert harness.claim_one(harness.agent("a")).spec.command == ("echo", "{index}")


def test_waiting_work_is_counted_by_size_without_what_is_held_or_running(harness: QueueHarness) -> None:
    harness.submit(indices=tuple(range(4)), cpus=1)
    harness.submit(indices=tuple(range(3)), cpus=2, hold=True)
    harness.job(cpus=4)
    harness.claim_one(harness.agent("a"))
    assert set(harness.look(queries.waiting)) == {WaitingJobs(1, 512, 3), WaitingJobs(4, 512, 1)}
    assert harness.look(queries.waiting, at_most=2)[0] == WaitingJobs(1, 512, 2)


def _statements(harness: QueueHarness, agent: str) -> int:
    seen: list[str] = []
    listen = (harness.engine, "before_cursor_execute", lambda *args: seen.append(args[2]))
    event.listen(*listen)
    harness.claim(agent, cpus=4)
    event.remove(*listen)
    return len(seen)


def test_a_claim_asks_the_database_as_often_however_many_sizes_were_ever_submitted(harness: QueueHarness) -> None:
    harness.agent("a")
    harness.submit(indices=tuple(range(20)))
    before = _statements(harness, "a")
    for cpus in range(5, 30):
        harness.cancel(harness.job(cpus=cpus))  # lanes that are empty now
        harness.job(cpus=cpus)  # lanes that do not fit
    assert _statements(harness, "a") == before


def test_the_waiting_jobs_are_found_by_index_and_never_by_a_scan(sqlite_url: str) -> None:
    harness = QueueHarness(connect(sqlite_url))
    harness.submit(indices=tuple(range(500)))
    asked: list[tuple[str, Any]] = []
    event.listen(harness.engine, "before_cursor_execute", lambda *args: asked.append((args[2], args[3])))
    harness.claim(harness.agent("a"), most=3)
    selects = [
        (sql, values) for sql, values in asked if "SELECT" in sql and "job" in sql.lower() and "PRAGMA" not in sql
    ]
    assert selects
    with harness.engine.connect() as connection:
        for sql, values in selects:
            plan = [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {sql}", values)]
            assert not [line for line in plan if line.startswith("SCAN job")], plan


@pytest.mark.slow
def test_claims_at_once_never_share_a_job(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    jobs = [*harness.submit(indices=tuple(range(150))).jobs, *harness.submit(indices=tuple(range(150)), cpus=2).jobs]
    names = [harness.agent(f"agent-{n}") for n in range(8)]
    start = threading.Barrier(len(names))

    def work(name: str) -> list[int]:
        start.wait()
        mine: list[int] = []
        while claimed := harness.claim(name, cpus=4):
            mine += [each.job for each in claimed]
            for each in claimed:
                harness.record_completion(each.job, each.attempt)
        return mine

    with ThreadPoolExecutor(len(names)) as pool:
        taken = [job for mine in pool.map(work, names) for job in mine]
    # A claim may see nothing while others hold the last rows; what is left over is there for the next one.
    taken += [each.job for each in harness.claim(names[0], cpus=5000, memory_mib=10**7, most=1024)]
    assert sorted(taken) == sorted(jobs)


def test_two_reports_at_once_end_an_attempt_in_one_way(queue_engine: Engine) -> None:
    harness = QueueHarness(queue_engine)
    jobs = harness.submit(indices=tuple(range(40))).jobs
    harness.claim(harness.agent("a"))
    start = threading.Barrier(2)

    def report(kind: str) -> Counter[str]:
        start.wait()
        counted: Counter[str] = Counter()
        for job in jobs:
            try:
                if kind == "saved":
                    harness.record_save(job, 1)
                else:
                    harness.record_completion(job, 1)
                counted["accepted"] += 1
            except Conflict:
                counted["refused"] += 1
        return counted

    with ThreadPoolExecutor(2) as pool:
        counted = sum(pool.map(report, ("saved", "completed")), Counter())
    assert counted == {"accepted": len(jobs), "refused": len(jobs)}
    assert {harness.row(job).state.value for job in jobs} <= {"Saved", "Complete"}


@pytest.mark.postgres
def test_a_claim_does_not_wait_for_another_one(postgres_url: str) -> None:
    harness = QueueHarness(connect(postgres_url))
    first, second = harness.submit(indices=(1, 2)).jobs
    for name in ("a", "b"):
        harness.agent(name)
    with transaction(harness.engine) as db:
        claimed = claims.claim(db, "a", ClaimRequest(cpus=1, memory_mib=512), now_s=1.0).jobs
        assert [each.job for each in claimed] == [first]
        assert harness.claim_one("b").job == second


def test_a_campaign_is_held_released_and_cancelled_as_a_whole(harness: QueueHarness) -> None:
    made = harness.submit(indices=(5, 3, 8, 1))
    other = harness.job()
    assert made.campaign is not None
    assert [harness.row(job).index for job in made.jobs] == [5, 3, 8, 1]
    harness.claim(harness.agent("a"), most=2)
    harness.record_completion(made.jobs[0], 1)
    harness.do(jobs.hold_campaign, made.campaign, reason="by bob", now_s=2.0)
    assert [harness.row(job).held for job in (*made.jobs, other)] == [False, True, True, True, False]
    harness.do(jobs.release_campaign, made.campaign, now_s=3.0)
    harness.do(jobs.cancel_campaign, made.campaign, now_s=4.0)
    status = harness.look(queries.status, campaign=made.campaign)
    assert (status.succeeded, status.cancelled, status.held, status.running) == (1, 3, 0, 0)
    assert harness.row(other).outcome is None
    assert [event for job in made.jobs for event in harness.events(job)[-1:]] == [
        "succeed",
        "cancel",
        "cancel",
        "cancel",
    ]


@pytest.mark.postgres
@pytest.mark.parametrize("whole", ["submitted", "cancelled"])
def test_a_statement_that_writes_a_whole_campaign_may_take_long_and_others_may_not(
    postgres_url: str, whole: str
) -> None:
    """A hundred thousand runs took longer than the ten seconds of every statement on a server with a busy processor."""
    harness = QueueHarness(connect(postgres_url))
    made = harness.submit(indices=(1, 2))
    limit = text("SELECT current_setting('statement_timeout')")

    def limit_during(db: Connection) -> str:
        if whole == "submitted":
            submission = Submission(job=JobSpec(name="run", image="pythia"), indices=(1, 2))
            jobs.submit(db, submission, group="physics", rules=jobs.SubmissionRules(2), now_s=1.0)
        else:
            jobs.cancel_campaign(db, made.campaign or 0, now_s=1.0)
        return str(db.execute(limit).scalar_one())

    assert harness.do(limit_during) == "2min"
    assert harness.do(lambda db: db.execute(limit).scalar_one()) == "10s"
    harness.engine.dispose()
