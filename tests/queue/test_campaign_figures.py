"""The figures of campaigns and lists of jobs: progress, causes, use, dates, and the results of searches."""

import pytest
from tests.queue.queue_harness import QueueHarness, computed

from gleaner.control.models.campaigns import CampaignDetail, CampaignRow
from gleaner.control.models.searches import CampaignFilter, JobFilter
from gleaner.control.queue import campaign_figures, jobs, queries, retention, searches
from gleaner.control.queue.errors import Conflict, NotFound
from gleaner.control.queue.tables import JOB
from gleaner.control.states import Outcome

KEEP_S = 5000.0


def listed(queue: QueueHarness, **wanted: object) -> list[int]:
    found = queue.look(searches.job_page, JobFilter.model_validate(wanted), mine="alice")
    assert found.total == len(found.jobs) or "after" in wanted or "limit" in wanted
    return [row.id for row in found.jobs]


def campaigns(queue: QueueHarness, **wanted: object) -> tuple[CampaignRow, ...]:
    asked = CampaignFilter.model_validate(wanted)
    return queue.look(searches.campaign_page, asked, now_s=queue.now_s, keep_s=KEEP_S).campaigns


def shown(queue: QueueHarness, campaign: int) -> CampaignDetail:
    return queue.look(campaign_figures.campaign_detail, campaign, now_s=queue.now_s, keep_s=KEEP_S)


def test_a_campaign_shows_its_progress_causes_use_and_dates(harness: QueueHarness) -> None:
    made = harness.submit(indices=tuple(range(10, 18)), retries=0, cpus=2)
    assert made.campaign is not None
    harness.agent("a")
    works = harness.claim("a", most=6)
    for work, code in zip(works[:5], (3, 4, 3, 0, 0), strict=True):
        harness.now_s += 100
        harness.log(work.job, 1, 0, "begun", f"the end of {work.job}")
        harness.record_completion(work.job, 1, exit_code=code, output=code == 0, spent=computed(3600.0))
    harness.hold(made.jobs[7])
    found = shown(harness, made.campaign)
    assert campaigns(harness) == (CampaignRow.model_validate(found.model_dump()),)
    counts = (found.new, found.running, found.succeeded, found.failed, found.held, found.jobs)
    assert counts == (2, 1, 2, 3, 1, 8)
    assert (found.first_job, found.last_job) == ({"index": "10"}, {"index": "17"})
    assert (found.spec.cpus, found.submitted_s, found.ended_s) == (2, 1000.0, None)
    first, second = works[0].job, works[1].job
    assert [(cause.cause, cause.jobs, cause.first_job, cause.last_line) for cause in found.causes] == [
        ("exit code 3", 2, first, f"the end of {first}"), ("exit code 4", 1, second, f"the end of {second}"),
    ]  # fmt: skip
    assert found.use is not None
    assert (found.use.slices, found.lost_slices, found.use.harvested_core_h) == (5, 0, 10.0)
    assert (found.result_bytes, found.kept_until_s) == (10, 1400.0 + KEEP_S), "the date of the result that goes first"
    assert (found.expected.ended, found.expected.over_s) == (5, 500.0)
    assert found.expected.earliest_s is not None
    harness.now_s += 7 * 3600
    assert shown(harness, made.campaign).expected.over_s == 7 * 3600 + 500, "none has ended in the last hours"


def test_a_lost_slice_and_the_end_of_a_campaign_are_shown(harness: QueueHarness) -> None:
    made = harness.submit(indices=(1, 2))
    assert made.campaign is not None
    harness.claim_one(harness.agent("a"))
    harness.silence()
    assert shown(harness, made.campaign).lost_slices == 1
    harness.do(jobs.cancel_campaign, made.campaign, now_s=harness.now_s)
    found = shown(harness, made.campaign)
    assert (found.ended_s, found.causes, found.kept_until_s) == (harness.now_s, (), None)
    with pytest.raises(NotFound):
        shown(harness, made.campaign + 1)


def test_a_search_for_jobs_takes_all_conditions_together(harness: QueueHarness) -> None:
    harness.agent("a")
    failed, done, held = harness.job(retries=0), harness.job(name="other"), harness.job(group="cms", hold=True)
    for work, code in zip(harness.claim("a"), (5, 0), strict=True):
        harness.record_completion(work.job, 1, exit_code=code, output=True)
    assert listed(harness) == [failed, done, held]
    assert listed(harness, order="-id", limit=2) == [held, done]
    assert listed(harness, order="-id", limit=2, page=2) == [failed]
    assert listed(harness, after=failed, limit=1) == [done]
    assert listed(harness, outcome="failed") == [failed]
    assert listed(harness, held=True) == listed(harness, group="cms") == [held]
    assert listed(harness, text="OTHE") == listed(harness, text=str(done), state="Complete") == [done]
    assert listed(harness, mine=True) == []
    kept = harness.look(queries.job_row, done, keep_s=KEEP_S)
    assert (kept.kept_until_s, harness.row(done).kept_until_s) == (harness.now_s + KEEP_S, None)
    assert harness.look(queries.job_row, held, keep_s=KEEP_S).kept_until_s is None


def test_removed_jobs_are_in_no_list_and_lose_their_results(harness: QueueHarness) -> None:
    made = harness.submit(indices=(1, 2))
    assert made.campaign is not None
    works = harness.claim(harness.agent("a"))
    harness.record_completion(works[0].job, 1, output=True)
    before = harness.everything()
    said = f"job {works[1].job} cannot be removed: it is Running; `glean cancel`"
    with pytest.raises(Conflict, match=said):
        harness.do(retention.remove_job, works[1].job)
    with pytest.raises(Conflict, match=said):
        harness.do(retention.remove_campaign, made.campaign)
    assert harness.everything() == before
    harness.do(retention.remove_job, works[0].job)
    assert (listed(harness), len(campaigns(harness))) == ([works[1].job], 1)
    harness.record_completion(works[1].job, 1, output=True)
    harness.do(retention.remove_campaign, made.campaign)
    assert (listed(harness), campaigns(harness)) == ([], ())
    assert harness.row(works[1].job).outcome is Outcome.SUCCEEDED, "reports still count it"


def test_a_result_that_is_being_delivered_stays(harness: QueueHarness) -> None:
    harness.targets = ("file:///data/{group}/",)
    job = harness.job(outputs={"to": "file:///data/physics/{job}/"})
    harness.claim_one(harness.agent("a"))
    harness.record_completion(job, 1, output=True)
    with pytest.raises(Conflict, match="its result is being delivered"):
        harness.do(retention.remove_job, job)
    assert harness.do(retention.remove_results, JOB.c.id == job) == 0
