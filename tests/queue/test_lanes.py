"""Lanes: what a job wishes of its nodes stays the same, whatever becomes of the job."""

from typing import Any

import pytest
from sqlalchemy import select
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import ReturnReason
from gleaner.control.policy.retries import LONGEST_ELSEWHERE_S
from gleaner.control.queue import relocation
from gleaner.control.queue.tables import JOB, LANE, LaneWish
from gleaner.control.states import State

FOLDER = "/cvmfs/a"


def wishes(harness: QueueHarness, job: int) -> dict[str, Any]:
    """Return what the job's lane says of the job itself."""
    lane = select(LANE).join(JOB, JOB.c.lane == LANE.c.id).where(JOB.c.id == job)
    with harness.engine.connect() as connection:
        row = connection.execute(lane).one()._asdict()
    return {name: row[name] for name in LaneWish.model_fields}


@pytest.mark.parametrize("saves_itself", [None, {"signal": "SIGTERM"}])
def test_whatever_becomes_of_a_job_its_wishes_stay(harness: QueueHarness, saves_itself: object) -> None:
    has_memory = saves_itself is None
    job = harness.job(
        group="chemistry", mounts=(FOLDER,), needs_at_least_s=1200, most_memory_mib=1024, retries=9,
        saves_itself=saves_itself,
    )  # fmt: skip
    wished = wishes(harness, job)
    assert (wished["group"], wished["mounts"], wished["needs_s"]) == ("chemistry", (FOLDER,), 1200)
    harness.agent("without")
    for name in ("a", "b", "c"):
        harness.agent(name, mounts=(FOLDER,))

    def claimed(agent: str) -> int:
        harness.now_s += LONGEST_ELSEWHERE_S
        for name in ("without", agent):
            harness.record_heartbeat(name)
        assert harness.claim("without") == harness.claim(agent, left_s=1199) == ()
        (work,) = harness.claim(agent, left_s=1200)
        assert (work.job, wishes(harness, job)) == (job, wished | {"memory_mib": work.memory_mib})
        return work.attempt

    harness.record_save(job, claimed("a"), has_memory=has_memory)
    for agent in ("a", "b", "c"):
        harness.record_return(job, claimed(agent), ReturnReason.CHECKPOINT_BROKEN)
    assert harness.row(job).state is State.NEW
    harness.record_save(job, claimed("a"), has_memory=has_memory)
    harness.record_return(job, claimed("a"), ReturnReason.CANNOT_RESTORE)
    harness.record_return(job, claimed("b"), ReturnReason.INCOMPATIBLE)
    attempt = claimed("a")
    harness.do(relocation.ask, job, to=None, by="alice", now_s=harness.now_s)
    harness.record_save(job, attempt, has_memory=has_memory)
    harness.record_completion(job, claimed("b"), exit_code=137, out_of_memory=True)
    harness.record_completion(job, claimed("c"), exit_code=1)  # it pauses
    claimed("a")
    harness.silence()
    assert claimed("b")


def test_jobs_with_different_wishes_wait_apart_also_when_they_are_saved(harness: QueueHarness) -> None:
    different: tuple[dict[str, Any], ...] = (
        {}, {"group": "chemistry"}, {"cpus": 2}, {"memory_mib": 1024}, {"needs_at_least_s": 1200},
        {"mounts": (FOLDER,)},
    )  # fmt: skip
    jobs = [harness.job(**wish) for wish in different]
    wished = [wishes(harness, job) for job in jobs]
    for work in harness.claim(harness.agent("a", mounts=(FOLDER,))):
        harness.record_save(work.job, work.attempt)
    assert {harness.row(job).state for job in jobs} == {State.SAVED}
    assert [wishes(harness, job) for job in jobs] == wished
