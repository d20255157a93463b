"""Attempts that end without a result: some cost a retry, some do not, and some hold the job."""

import pytest
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.job_spec import SelfSave
from gleaner.agent.messages import ReturnReason, Slice
from gleaner.control.queue import queries
from gleaner.control.states import Outcome, State


@pytest.mark.parametrize("computed_s", [1.0, 60.0])
def test_a_job_that_saves_itself_again_and_again_without_computing_is_held(
    harness: QueueHarness, computed_s: float
) -> None:
    job = harness.job(saves_itself=SelfSave())
    harness.agent("a")
    for attempt in range(1, 6):
        assert not harness.row(job).held
        harness.claim_one("a")
        harness.record_save(job, attempt, has_memory=False, spent=Slice(started_s=1, compute_s=computed_s))
    assert harness.row(job).held is (computed_s < 5)
    assert ("hold" in harness.events(job)) is (computed_s < 5)


def test_only_its_own_failure_costs_a_retry_and_the_last_one_ends_it(harness: QueueHarness) -> None:
    job = harness.job(retries=2)
    harness.agent("a")
    for attempt, exit_code in enumerate((1, 137, 9), 1):
        harness.claim_one("a")
        harness.record_completion(job, attempt, exit_code=exit_code)
        harness.now_s += 40  # more than the longest pause after two failures
        harness.record_heartbeat("a")
    row = harness.row(job)
    assert (row.state, row.outcome, row.exit_code) == (State.COMPLETE, Outcome.FAILED, 9)
    assert harness.detail(job).failures == 3


def test_a_failure_starts_over_and_no_old_checkpoint_is_named(harness: QueueHarness) -> None:
    job = harness.job()
    harness.agent("a")
    harness.claim("a")
    harness.record_save(job, 1)
    harness.claim("a")
    harness.record_completion(job, 2, exit_code=1)
    assert harness.row(job).state is State.NEW
    assert harness.named(job) == frozenset()
    harness.now_s += 40
    assert harness.claim_one("a").checkpoint is None


def test_an_image_that_the_site_refuses_holds_the_whole_campaign(harness: QueueHarness) -> None:
    campaign = harness.submit(indices=(1, 2, 3))
    first = harness.claim_one(harness.agent("a"))
    harness.record_return(first.job, first.attempt, ReturnReason.IMAGE_REFUSED, "pythia:8 may not run here")
    for job in campaign.jobs:
        assert harness.look(queries.hold_reason, job) == "image refused: pythia:8 may not run here"


@pytest.mark.parametrize(
    "why", [ReturnReason.UNSTARTED, ReturnReason.NODE_FAULT, ReturnReason.STORAGE_FAULT, ReturnReason.SAVE_FAILED]
)
def test_a_return_costs_nothing_and_goes_back_to_the_last_checkpoint(harness: QueueHarness, why: ReturnReason) -> None:
    job = harness.job()
    harness.agent("a")
    harness.claim("a")
    harness.record_save(job, 1)
    harness.claim("a")
    harness.record_return(job, 2, why)
    assert (harness.row(job).state, harness.row(job).held, harness.detail(job).failures) == (State.SAVED, False, 0)


def _come_to_nothing(harness: QueueHarness, job: int, node: str, why: ReturnReason) -> None:
    """Let an agent on this node claim the job, and return it."""
    agent = harness.agent(f"on-{node}-{harness.row(job).attempt}", node=node)
    harness.record_return(job, harness.claim_one(agent).attempt, why, "killed")


@pytest.mark.parametrize(
    ("why", "nodes"),
    [
        (ReturnReason.NODE_FAULT, ("n1", "n2", "n1", "n3")),
        (ReturnReason.NODE_LACKS, ("n1", "n2", "n3")),
        (ReturnReason.UNSAVABLE, ("n1", "n2")),
        (ReturnReason.UNSAVABLE, ("n1", "n1")),
        (ReturnReason.IMAGE_MISSING, ("n1", "n2")),
        (ReturnReason.INPUT_MISSING, ("n1", "n2")),
    ],
)
def test_a_job_that_so_many_nodes_cannot_run_is_held_with_the_reason_and_costs_no_retry(
    harness: QueueHarness, why: ReturnReason, nodes: tuple[str, ...]
) -> None:
    job = harness.job()
    for node in nodes:
        assert not harness.row(job).held
        _come_to_nothing(harness, job, node, why)
    found = f"found {len(nodes)} times, on {', '.join(sorted(set(nodes)))}"
    assert harness.look(queries.hold_reason, job) == f"{why}: killed; {found}"
    assert harness.detail(job).failures == 0
    harness.release(job)
    _come_to_nothing(harness, job, "n9", why)
    assert not harness.row(job).held, "the count began again"


@pytest.mark.parametrize(
    ("why", "others", "comes_back"),
    [
        (ReturnReason.NODE_FAULT, 1, False),
        (ReturnReason.NODE_FAULT, 0, True),
        (ReturnReason.NODE_LACKS, 0, False),
        (ReturnReason.UNSAVABLE, 1, False),
        (ReturnReason.SAVE_FAILED, 1, True),
    ],
)
def test_the_reason_decides_where_the_job_goes_next(
    harness: QueueHarness, why: ReturnReason, others: int, *, comes_back: bool
) -> None:
    job = harness.job()
    for number in range(others):
        harness.agent(f"other-{number}")
    harness.agent("a")
    harness.record_return(job, harness.claim_one("a").attempt, why)
    assert bool(harness.claim("a")) is comes_back


def test_a_job_that_comes_to_nothing_five_times_is_held_also_where_there_is_one_node(harness: QueueHarness) -> None:
    job = harness.job()
    for why in (
        ReturnReason.NODE_FAULT,
        ReturnReason.SAVE_FAILED,
        ReturnReason.SAVE_FAILED,
        ReturnReason.UNSTARTED,
        ReturnReason.NODE_FAULT,
        ReturnReason.SAVE_FAILED,
    ):
        assert not harness.row(job).held
        _come_to_nothing(harness, job, "only", why)
    assert (
        harness.look(queries.hold_reason, job) == "came to nothing 5 times in a row, the last time: save failed: killed"
    )


def _missing(harness: QueueHarness, agent: str, *, most: int) -> int:
    """An agent claims jobs, and finds the image of none. Return how many it has claimed."""
    found = harness.claim(agent, most=most)
    for one in found:
        harness.record_return(one.job, one.attempt, ReturnReason.IMAGE_MISSING, "lab:1")
    return len(found)


def test_a_campaign_whose_image_two_nodes_miss_is_held_at_once(harness: QueueHarness) -> None:
    campaign = harness.submit(indices=tuple(range(30)))
    other, second = harness.job(), harness.agent("a2", node="n2")
    assert _missing(harness, harness.agent("a1", node="n1"), most=3) == 3
    assert not any(harness.row(job).held for job in campaign.jobs)
    assert _missing(harness, second, most=1) == 1
    reason = "image missing: lab:1; found 4 times, on n1, n2"
    for job in campaign.jobs:
        assert harness.look(queries.hold_reason, job) == reason
        assert harness.events(job).count("hold") == 1
    assert not harness.row(other).held


def test_a_campaign_is_held_after_five_jobs_where_one_node_alone_takes_them(harness: QueueHarness) -> None:
    campaign = harness.submit(indices=tuple(range(30)))
    harness.agent("busy", node="n2")
    assert _missing(harness, harness.agent("a1", node="n1"), most=64) == 30
    assert all(harness.row(job).held for job in campaign.jobs)
    assert [harness.events(job).count("hold") for job in campaign.jobs] == [1] * 30


def test_a_campaign_that_has_computed_is_not_held_because_nodes_have_lost_its_image(harness: QueueHarness) -> None:
    campaign = harness.submit(indices=tuple(range(30)))
    begun = harness.claim_one(harness.agent("a0", node="n0"))
    harness.record_completion(begun.job, begun.attempt)
    for node in ("n1", "n2"):
        assert _missing(harness, harness.agent(f"on-{node}", node=node), most=3) == 3
    assert sum(harness.row(job).held for job in campaign.jobs) == 3  # those that both have tried


def test_a_job_shows_why_its_last_slice_could_not_be_saved_until_one_is(harness: QueueHarness) -> None:
    job = harness.job()
    assert harness.detail(job).unsaved_because is None
    _come_to_nothing(harness, job, "n1", ReturnReason.UNSAVABLE)
    assert harness.detail(job).unsaved_because == "cannot be saved: killed"
    _come_to_nothing(harness, job, "n2", ReturnReason.TOO_LATE)
    assert harness.detail(job).unsaved_because == "too late: killed"
    harness.record_save(job, harness.claim_one(harness.agent("a", node="n1")).attempt)
    assert harness.detail(job).unsaved_because is None


def test_a_fault_of_the_storage_never_counts_against_the_job(harness: QueueHarness) -> None:
    job = harness.job()
    for number in range(10):
        _come_to_nothing(harness, job, f"n{number}", ReturnReason.STORAGE_FAULT)
    assert (harness.row(job).state, harness.row(job).held, harness.detail(job).failures) == (State.NEW, False, 0)
    assert harness.detail(job).attempts[-1].detail == "storage fault: killed"


def test_a_save_in_between_shows_that_the_job_gets_on(harness: QueueHarness) -> None:
    job = harness.job()
    for node in ("n1", "n2"):
        _come_to_nothing(harness, job, node, ReturnReason.NODE_FAULT)
    harness.record_save(job, harness.claim_one(harness.agent("a")).attempt)
    for node in ("n3", "n4"):
        _come_to_nothing(harness, job, node, ReturnReason.NODE_FAULT)
    assert not harness.row(job).held
