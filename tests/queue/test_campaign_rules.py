"""The rules of a campaign: how many jobs run at once, how many must succeed first, how many may fail."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.job_spec import JobSpec
from gleaner.agent.messages import ReturnReason
from gleaner.control.models.jobs import Submission
from gleaner.control.queue import campaign_rules, jobs, queries

COUNT = 10


class Campaign:
    """A campaign of ten jobs, with agents for all of them."""

    def __init__(self, harness: QueueHarness, **rules: Any) -> None:
        self.harness = harness
        spec = JobSpec(name="run", image="pythia", retries=0)
        made = harness.do(
            jobs.submit, Submission(job=spec, indices=tuple(range(COUNT)), **rules), group="physics",
            rules=jobs.SubmissionRules(0), now_s=1.0,
        )  # fmt: skip
        assert made.campaign is not None
        self.number, self.jobs = made.campaign, made.jobs
        harness.agent("a")

    def claim(self) -> list[int]:
        """Return the places in the campaign of the jobs that are handed out now."""
        return [self.jobs.index(each.job) for each in self.harness.claim("a")]

    def end(self, place: int, *, exit_code: int = 0, attempt: int = 1) -> None:
        self.harness.record_completion(self.jobs[place], attempt, exit_code=exit_code)

    def cancel(self, place: int) -> None:
        self.harness.do(jobs.cancel, self.jobs[place], now_s=2.0)

    def turn(self, place: int) -> str:
        return self.harness.look(campaign_rules.turn, self.jobs[place])

    def held(self) -> list[int]:
        return [place for place in range(COUNT) if self.harness.row(self.jobs[place]).held]


def test_so_many_jobs_run_at_once_and_each_end_lets_another_start(harness: QueueHarness) -> None:
    campaign = Campaign(harness, max_running=3)
    other = harness.job()
    assert campaign.turn(3) == "it waits for its turn: of its campaign at most 3 jobs run at once"
    assert {each.job for each in harness.claim("a")} == {*campaign.jobs[:3], other}
    campaign.cancel(9)  # it was not to run yet, so its end lets nothing start
    harness.record_save(campaign.jobs[0], 1)
    harness.do(jobs.set_priority, campaign.jobs[5], 7, now_s=2.0)
    harness.do(jobs.hold, campaign.jobs[3], reason="by bob", now_s=2.0)
    assert (campaign.claim(), campaign.turn(0)) == ([0], "")
    campaign.end(1)
    assert campaign.claim() == [5]
    campaign.cancel(2)
    campaign.end(0, attempt=2)
    assert campaign.claim() == [4, 6]
    harness.do(jobs.release, campaign.jobs[3], now_s=2.0)
    assert campaign.claim() == []
    harness.record_return(campaign.jobs[4], 1, ReturnReason.TOO_LATE)
    assert campaign.claim() == [4], "a job that is tried again keeps its place"
    campaign.end(4, attempt=2)
    assert campaign.claim() == [3]
    for place in (3, 5, 6, 7, 8):
        campaign.end(place)
        campaign.claim()
    assert harness.look(queries.status, campaign=campaign.number).unfinished == 0


def test_the_others_start_when_the_first_have_succeeded(harness: QueueHarness) -> None:
    campaign = Campaign(harness, try_first=4, max_running=3)
    assert campaign.claim() == [0, 1, 2]
    campaign.end(1)
    assert campaign.claim() == [3]
    campaign.end(0)
    campaign.end(3)
    assert campaign.claim() == []
    assert campaign.turn(4).startswith("it waits until the first jobs of its campaign have succeeded, 1 more")
    campaign.end(2)
    assert campaign.claim() == [4, 5, 6]
    campaign.end(4)
    assert campaign.claim() == [7]


@pytest.mark.parametrize("most", ["1", "10%", "19%"])
def test_past_max_failures_the_rest_is_held_once_with_the_reason(harness: QueueHarness, most: str) -> None:
    campaign = Campaign(harness, max_failures=most, max_running=4)
    assert campaign.claim() == [0, 1, 2, 3]
    campaign.end(0, exit_code=1)
    campaign.end(1)
    assert campaign.held() == []
    campaign.end(2, exit_code=1)
    assert campaign.held() == [3, 4, 5, 6, 7, 8, 9]
    reason = harness.look(queries.hold_reason, campaign.jobs[9])
    assert reason == "more jobs of its campaign have failed than max_failures allows"
    harness.do(jobs.release_campaign, campaign.number, now_s=2.0)
    campaign.end(3, exit_code=1)
    assert campaign.held() == []
    assert campaign.claim() == [4, 5, 6, 7]


def test_agents_at_once_never_run_more_and_come_to_the_end(harness: QueueHarness) -> None:
    campaign = Campaign(harness, max_running=3)
    most: list[int] = []

    def work() -> None:
        while harness.look(queries.status, campaign=campaign.number).unfinished:
            for claimed in harness.claim("a", most=1):
                most.append(harness.look(queries.status, campaign=campaign.number).running)
                harness.record_completion(claimed.job, claimed.attempt)

    with ThreadPoolExecutor(4) as threads:
        for agent in [threads.submit(work) for _ in range(4)]:
            agent.result()
    assert (len(most), max(most) <= 3) == (COUNT, True)


def test_a_release_that_frees_held_jobs_ends_no_rule_and_one_that_finds_none_starts_the_others(
    harness: QueueHarness,
) -> None:
    campaign = Campaign(harness, try_first=2, hold=True)
    assert campaign.claim() == []
    harness.do(jobs.release, campaign.jobs[4], now_s=2.0)
    assert campaign.claim() == [4]
    harness.do(jobs.release_campaign, campaign.number, now_s=2.0)
    assert campaign.claim() == [0]
    campaign.cancel(0)  # another job is tried in its place
    assert campaign.claim() == [1]
    campaign.end(4, exit_code=1)
    assert campaign.claim() == []
    harness.do(jobs.release_campaign, campaign.number, now_s=2.0)
    assert campaign.claim() == [2, 3, 5, 6, 7, 8, 9]
