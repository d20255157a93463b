"""Claims between groups: those below their target first, then the others; and what is recorded of it."""

from collections import Counter
from typing import Any

from sqlalchemy import Connection
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import Assignment, ReturnReason
from gleaner.control.policy.fair_share import ShareRules, Shares
from gleaner.control.queue import decisions
from gleaner.control.queue.queries import group_usage
from gleaner.control.states import State


def claim(harness: QueueHarness, agent: str, known: Shares, **more: Any) -> tuple[Assignment, ...]:
    return harness.claim(agent, shares=lambda _db: known, **more)


def test_a_group_with_ten_jobs_starts_beside_one_that_has_submitted_a_thousand_before(harness: QueueHarness) -> None:
    harness.submit(indices=tuple(range(1000)), group="physics")
    few = harness.submit(indices=tuple(range(10)), group="chemistry").jobs
    running: Counter[str] = Counter()
    for name in ("a", "b", "c"):  # one round's agents, of 4 cores each
        harness.agent(name, cpus=4)
        running.update(job.group for job in claim(harness, name, harness.look(group_usage), cpus=4))
    assert running == {"physics": 6, "chemistry": 6}
    assert harness.row(few[0]).state is State.RUNNING


def test_within_a_group_priority_counts_first_then_saved_before_new_then_age_across_sizes(
    harness: QueueHarness,
) -> None:
    low, high, saved = harness.job(), harness.job(cpus=2, priority=5), harness.job(memory_mib=300)
    harness.agent("a")
    for job in claim(harness, "a", Shares()):
        if job.job == saved:
            harness.record_save(saved, 1)
        else:
            harness.record_return(job.job, 1, ReturnReason.UNSTARTED)
    other = harness.job(group="chemistry")
    known = Shares(ShareRules({"physics": 100}), capacity_cpus=64)
    assert [job.job for job in claim(harness, "a", known)] == [high, saved, low, other]


def test_nothing_is_written_down_where_only_one_group_has_a_job_that_fits(harness: QueueHarness) -> None:
    harness.job(cpus=9, group="chemistry")
    jobs = harness.submit(indices=(0, 1)).jobs

    def asked(_db: Connection) -> Shares:
        raise AssertionError

    harness.agent("a")
    assert len(harness.claim("a", cpus=4, shares=asked)) == 2
    assert harness.look(decisions.latest, f"job {jobs[0]}", 9) == ()


def test_what_groups_hold_is_what_their_running_jobs_have(harness: QueueHarness) -> None:
    harness.submit(indices=(0, 1), cpus=3, group="physics")
    harness.agent("a", cpus=4)
    harness.agent("gone", cpus=99)
    harness.record_deregistration("gone")
    harness.claim("a", most=1)
    harness.job(group="chemistry", hold=True)
    harness.job(group="biology")
    assert harness.look(group_usage) == Shares(ShareRules(), 4, {"physics": 3}, frozenset({"physics", "biology"}))
