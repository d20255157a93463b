"""Reruns: what failed or was cancelled runs again as if it were new, once, and within all rules."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import delete, select, text
from tests.queue.queue_harness import QueueHarness, computed, digest
from tests.queue.test_campaign_rules import Campaign
from tests.queue.test_recovery import recover, result, saved

from gleaner.agent.messages import ReturnReason
from gleaner.control.daemon.storage_gc import JobArchive, is_garbage
from gleaner.control.models.images import ImageRow
from gleaner.control.models.inputs import InputRow
from gleaner.control.models.jobs import CampaignRerun
from gleaner.control.policy.quotas import Limit, Quantity, QuotaRules
from gleaner.control.queue import images, inputs, jobs, queries, reruns, retention
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import Conflict, Invalid, NotCurrent, NotFound
from gleaner.control.queue.quota_checks import OverQuota
from gleaner.control.queue.tables import IMAGE, INPUT, JOB, STORED_IMAGE
from gleaner.control.states import Outcome, State


def failed(harness: QueueHarness, **spec: Any) -> int:
    """Return a job that has failed after a save, with a result."""
    job = harness.job(**{"retries": 0} | spec)
    harness.claim_one(harness.agent("first"))
    harness.record_save(job, 1)
    harness.claim_one(harness.agent("second"))
    harness.record_completion(job, 2, exit_code=3, output=True, may_retry=False)
    return job


def rerun_campaign(harness: QueueHarness, campaign: int, quotas: QuotaRules | None = None, **change: Any) -> list[int]:
    rules = jobs.SubmissionRules(0, quotas=quotas or jobs.NO_QUOTAS)
    wanted = CampaignRerun(**change)
    return list(harness.do(reruns.rerun_campaign, campaign, wanted, rules=rules, by="bob", now_s=harness.now_s))


def test_a_failed_job_waits_as_if_it_were_new_and_its_attempts_are_counted_on(harness: QueueHarness) -> None:
    job = failed(harness, compute_limit_s=100, priority=4)
    harness.rerun(job)
    row, detail = harness.row(job), harness.detail(job)
    assert (row.state, row.outcome, row.exit_code, row.ended_s) == (State.NEW, None, None, None)
    assert (detail.failures, detail.output_bytes, detail.failed_because, row.priority) == (0, None, None, 4)
    assert (detail.counted_s, detail.checkpoints) == (0.0, ())
    assert [(event.what, event.detail) for event in detail.events][-1] == ("rerun", "by alice")
    work = harness.claim_one(harness.agent("third"))
    assert (work.attempt, work.checkpoint, work.compute_left_s) == (3, None, 100)
    harness.record_completion(job, 3, exit_code=3, spent=computed(40), may_retry=False)
    assert (harness.row(job).outcome, harness.detail(job).counted_s) == (Outcome.FAILED, 40)
    harness.rerun(job)
    harness.claim_one(harness.agent("fourth"))
    harness.record_completion(job, 4)
    with pytest.raises(Conflict, match="job 1 has succeeded; submit it again to compute it again"):
        harness.rerun(job)


@pytest.mark.parametrize("has_ended", [False, True])
def test_a_late_report_of_an_earlier_attempt_changes_nothing(harness: QueueHarness, has_ended: bool) -> None:
    job = harness.job(retries=0)
    harness.claim_one(harness.agent("first"))
    if has_ended:
        harness.silence()
    harness.cancel(job)
    harness.rerun(job)
    before = harness.everything()
    for report in (
        lambda: harness.record_completion(job, 1, output=True),
        lambda: harness.record_save(job, 1),
        lambda: harness.record_checkpoint(job, 1),
        lambda: harness.record_return(job, 1, ReturnReason.UNSTARTED),
    ):
        with pytest.raises(NotCurrent):
            report()
    assert harness.everything() == before
    assert harness.record_heartbeat("first", (job, 1)).orders == ("drop",)


def test_what_cleans_up_and_saw_the_job_complete_spares_what_the_new_run_writes(harness: QueueHarness) -> None:
    job = failed(harness)
    before = harness.look(queries.archives_to_keep, [job])[job]
    harness.rerun(job)
    harness.claim_one(harness.agent("third"))
    harness.record_checkpoint(job, 3)
    harness.log(job, 3, 0, "a line")
    assert harness.do(retention.remove_lines, deque([job]), before_s=9e9) == 0
    assert harness.do(retention.remove_events, (job,), before_s=9e9, at_most=100) == 0
    after = harness.look(queries.archives_to_keep, [job])[job]
    old, new = JobArchive("", job, 1, 1), JobArchive("", job, 3, 1)
    assert [is_garbage(one, kept) for kept in (before, after) for one in (old, new)] == [True, False, True, False]
    harness.record_return(job, 3, ReturnReason.CHECKPOINT_BROKEN)
    assert harness.named(job) == {(3, 1)}, "nothing of an earlier run is continued"
    harness.do(jobs.cancel, job, by="alice", now_s=harness.now_s)
    assert harness.do(retention.remove_lines, deque([job]), before_s=harness.now_s) == 0, "its end is not old"


def test_after_a_restored_backup_no_attempt_number_of_the_storage_is_given_again(harness: QueueHarness) -> None:
    job = failed(harness)
    recover(harness, result(job, 2), saved(job, 5))
    (row,) = harness.look(queries.results, Path("/storage"), job=job)
    assert (row.attempt, row.digest) == (2, digest(99))
    harness.rerun(job)
    assert harness.claim_one(harness.agent("third")).attempt == 6


def test_after_a_restored_backup_a_success_of_a_later_rerun_counts(harness: QueueHarness) -> None:
    job = failed(harness)
    assert recover(harness, result(job, 3)).ended == 1
    assert harness.detail(job).job.outcome is Outcome.SUCCEEDED
    (row,) = harness.look(queries.results, Path("/storage"), job=job)
    assert (row.attempt, row.digest) == (3, digest(99))


def test_with_other_memory_and_image_the_job_has_a_new_spec_and_lane(harness: QueueHarness) -> None:
    job, other = failed(harness, memory_mib=512), harness.job()
    harness.rerun(job, memory_mib=2000, image="pythia:9")
    detail = harness.detail(job)
    assert (detail.job.memory_mib, detail.spec.memory_mib, detail.spec.image) == (2048, 2048, "pythia:9")
    assert detail.events[-1].detail == "by alice, with 2000 MiB, with the image pythia:9"
    assert harness.detail(other).spec.image == "pythia"
    assert harness.claim("second", memory_mib=2047, most=1)[0].job == other
    assert harness.claim_one("second").memory_mib == 2048


def test_an_image_or_input_that_was_removed_is_named(harness: QueueHarness) -> None:
    now: dict[str, Any] = {"pushed_s": 1.0, "pusher": "alice", "image_id": digest(7), "group": "physics"}
    harness.do(images.put, ImageRow(name="pi", architecture="amd64", size_bytes=1, jobs=0, **now), digest=digest(8))
    harness.do(inputs.put, InputRow(content=digest(1), group="physics", size_bytes=1, used_s=1.0), digest=digest(2))
    job = failed(harness, image="pi", inputs=[{"name": "a.dat", "content": digest(1)}])
    with transaction(harness.engine) as db:
        for table in (IMAGE, STORED_IMAGE):
            db.execute(delete(table))
    with pytest.raises(Conflict, match="the image pi of the first run was removed: name one with --image"):
        harness.rerun(job)
    harness.do(lambda db: db.execute(delete(INPUT)))
    with pytest.raises(Conflict, match=r"the input a\.dat was removed from the storage"):
        harness.rerun(job, image="other")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"mounts": ("/cvmfs/a",)}, "/cvmfs/a"),
        ({"inputs": ({"name": "a", "url": "https://host/a"},)}, "the input a: "),
        ({"outputs": {"to": "file:///data/physics/{job}/"}}, "outputs: "),
    ],
)
def test_a_rerun_keeps_to_what_the_site_allows_by_then(harness: QueueHarness, spec: dict[str, Any], said: str) -> None:
    harness.urls, harness.targets = ("https://host/",), ("file:///data/{group}/",)
    job = harness.job(**spec)
    harness.cancel(job)
    harness.urls = harness.targets = ()
    with pytest.raises((Conflict, Invalid), match=said):
        harness.rerun(job)
    assert harness.row(job).state is State.COMPLETE


def test_those_that_failed_run_again_or_those_that_are_named_and_all_or_none(harness: QueueHarness) -> None:
    campaign = Campaign(harness)
    campaign.claim()
    for place, code in enumerate([1, 0, 1, 1]):
        campaign.end(place, exit_code=code)
    campaign.cancel(5)
    before = harness.everything()
    for only, said in (
        ((0, 1), "job 2 has succeeded"),
        ((0, 6), "job 7 cannot run again before it has ended: it is Running"),
        ((0, 77), "campaign 1 has no job with index 77"),
    ):
        with pytest.raises((Conflict, NotFound), match=said):
            rerun_campaign(harness, campaign.number, only=only)
    quotas = QuotaRules((Limit(Quantity.JOBS, 7),))
    with pytest.raises(OverQuota):
        rerun_campaign(harness, campaign.number, quotas)
    assert harness.everything() == before
    assert rerun_campaign(harness, campaign.number, only=(5, 0)) == [campaign.jobs[0], campaign.jobs[5]]
    assert rerun_campaign(harness, campaign.number) == [campaign.jobs[2], campaign.jobs[3]]
    with pytest.raises(Conflict, match="campaign 1 has no failed job, so nothing runs again"):
        rerun_campaign(harness, campaign.number)
    assert sorted(campaign.claim()) == [0, 2, 3, 5]


def test_reruns_are_part_of_the_rules_of_their_campaign_again(harness: QueueHarness) -> None:
    campaign = Campaign(harness, max_running=2, max_failures="1")
    assert campaign.claim() == [0, 1]
    campaign.end(0, exit_code=1)
    rerun_campaign(harness, campaign.number, memory_mib=1024)
    assert campaign.turn(0) == "it waits for its turn: of its campaign at most 2 jobs run at once"
    harness.do(jobs.set_priority, campaign.jobs[0], 5, now_s=2.0)
    assert campaign.claim() == [2]
    campaign.end(1, exit_code=1)
    assert (campaign.claim(), campaign.held()) == ([0], []), "the failure that was run again does not count"
    campaign.end(2, exit_code=1)
    assert campaign.held() == [0, 3, 4, 5, 6, 7, 8, 9]


def test_after_the_first_failed_or_all_were_cancelled_they_are_tried_once_more(harness: QueueHarness) -> None:
    campaign = Campaign(harness, try_first=1, max_running=3)
    assert campaign.claim() == [0]
    campaign.end(0, exit_code=1)
    rerun_campaign(harness, campaign.number)
    assert campaign.claim() == [0]
    harness.do(jobs.cancel_campaign, campaign.number, now_s=2.0)
    rerun_campaign(harness, campaign.number, only=tuple(range(10)))
    assert campaign.claim() == [0]
    campaign.end(0, attempt=3)
    assert campaign.claim() == [1, 2, 3]


def test_of_two_users_who_run_a_campaign_again_at_once_one_is_told_that_nothing_is_left(harness: QueueHarness) -> None:
    campaign = Campaign(harness, max_running=4)
    campaign.claim()
    for place in range(4):
        campaign.end(place, exit_code=1)
    start = threading.Barrier(3)

    def answer(act: Callable[[], Sequence[int] | None]) -> str:
        start.wait()
        try:
            return str(act())
        except Conflict as refusal:
            return str(refusal)

    acts: list[Callable[[], Sequence[int] | None]] = [lambda: rerun_campaign(harness, campaign.number)] * 2
    acts.append(lambda: harness.do(jobs.cancel_campaign, campaign.number, now_s=2.0))
    with ThreadPoolExecutor(3) as threads:
        answers = sorted(threads.map(answer, acts))
    assert answers == ["None", "[1, 2, 3, 4]", "campaign 1 has no failed job, so nothing runs again"]
    with harness.engine.connect() as db:
        events = db.execute(text("SELECT count(*) FROM event WHERE what = 'cancel'")).scalar_one()
        cancelled = db.execute(select(JOB.c.id).where(JOB.c.outcome == Outcome.CANCELLED)).all()
    assert events == len(cancelled), "each job that was cancelled has its event"
