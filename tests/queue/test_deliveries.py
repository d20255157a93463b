"""Results wait to be delivered once they count, and each try has its own number."""

from typing import Any

import pytest
from pydantic import ValidationError
from tests.queue.queue_harness import QueueHarness

from gleaner.agent.messages import DeliveryReport
from gleaner.control.models.outputs import DeliveryPhase, DeliveryRow
from gleaner.control.queue import deliveries
from gleaner.control.queue.errors import Conflict, Invalid, NotCurrent, NotFound

TARGET = "file:///data/physics/{campaign}-{index}-{job}/"
LEASE_S, FAILURES = 100.0, 3
TAKING: dict[str, Any] = {"lease_s": LEASE_S, "most_failures": FAILURES}


@pytest.fixture
def site(harness: QueueHarness) -> QueueHarness:
    harness.targets = ("file:///data/{group}/",)
    return harness


def taken(site: QueueHarness, agent: str = "a") -> tuple[int, int] | None:
    """Let an agent take a delivery; return its job and the number of the try."""
    row = site.do(deliveries.take, agent, **TAKING, now_s=site.now_s)
    return None if row is None else (row.job, row.tries)


def end(site: QueueHarness, job: int, number: int, agent: str = "a", **said: object) -> None:
    report = DeliveryReport.model_validate({"job": job, "number": number, "files": 2, "size_bytes": 5} | said)
    site.do(deliveries.record_end, report, agent=agent, most_failures=FAILURES, now_s=site.now_s)


def found(site: QueueHarness, job: int) -> DeliveryRow:
    delivery = site.detail(job).delivery
    assert delivery is not None
    return delivery


def done(site: QueueHarness) -> int:
    """Submit a job that names a target, and let it succeed; agent `a` lives on."""
    (job,) = site.submit(indices=(4,), outputs={"to": TARGET}).jobs
    work = site.claim_one(site.agent("a"))
    site.record_completion(work.job, work.attempt, output=True)
    return job


def test_a_result_is_offered_when_it_counts_and_shown_when_it_is_there(site: QueueHarness) -> None:
    (job,) = site.submit(indices=(4,), outputs={"to": TARGET}).jobs
    agent = site.agent("a")
    work = site.claim_one(agent)
    assert taken(site) is None
    site.record_completion(job, work.attempt, output=True)
    site.record_completion(job, work.attempt, output=True)  # the report comes twice
    assert found(site, job).to == f"file:///data/physics/1-4-{job}/"
    row = site.do(deliveries.take, "a", **TAKING, now_s=site.now_s)
    assert row is not None
    assert (row.job, row.attempt, row.tries, row.group, row.run) == (job, work.attempt, 1, "physics", 4)
    assert (found(site, job).agent, taken(site)) == ("a", None)
    for _ in range(2):
        end(site, job, 1)
    delivery = found(site, job)
    assert (delivery.phase, delivery.files, delivery.size_bytes) == (DeliveryPhase.DELIVERED, 2, 5)
    assert (delivery.ended_s, delivery.agent) == (site.now_s, None)
    assert site.events(job).count(deliveries.DELIVERED) == 1
    assert taken(site) is None


def test_what_an_attempt_has_that_does_not_count_is_never_offered(site: QueueHarness) -> None:
    job = site.job(outputs={"to": "file:///data/physics/{job}/"}, retries=0)
    work = site.claim_one(site.agent("a"))
    site.silence()
    again = site.claim_one(site.agent("b"))
    with pytest.raises(NotCurrent):
        site.record_completion(job, work.attempt, output=True)
    assert (taken(site, "b"), site.detail(job).delivery) == (None, None)
    site.record_completion(job, again.attempt, exit_code=1, output=True)
    assert (taken(site, "b"), site.detail(job).delivery) == (None, None)


def test_an_agent_that_comes_to_no_end_loses_it_and_its_report_changes_nothing(site: QueueHarness) -> None:
    job = done(site)
    assert taken(site) == (job, 1)
    site.now_s += LEASE_S - 1
    assert taken(site, site.agent("b")) is None
    site.now_s += 1
    assert taken(site, "b") == (job, 2)
    for late in ({}, {"failed": "no"}):
        with pytest.raises(NotCurrent):
            end(site, job, 1, "a", **late)
        with pytest.raises(NotCurrent):
            end(site, job, 2, "a", **late)
    with pytest.raises(NotCurrent):
        end(site, job, 1, "b")
    end(site, job, 2, "b")
    assert found(site, job).phase is DeliveryPhase.DELIVERED


def test_an_agent_that_ends_loses_it_at_once_and_when_all_do_it_is_given_up(site: QueueHarness) -> None:
    job = done(site)
    for number in range(1, FAILURES + 1):
        agent = site.agent(f"agent{number}")
        assert taken(site, agent) == (job, number)
        assert found(site, job).problem == ("" if number == 1 else deliveries.UNHEARD)
        site.record_deregistration(agent)
        assert site.look(deliveries.is_due, now_s=site.now_s)
    with pytest.raises(Conflict, match="not live"):
        taken(site, agent)
    assert taken(site, site.agent("last")) is None
    assert (found(site, job).phase, found(site, job).problem) == (DeliveryPhase.FAILED, deliveries.UNHEARD)
    assert site.events(job).count(deliveries.NOT_DELIVERED) == 1
    assert not site.look(deliveries.is_due, now_s=site.now_s)


def test_a_failure_is_tried_again_after_a_pause_and_given_up_after_some(site: QueueHarness) -> None:
    job = done(site)
    pauses = []
    for number in range(1, FAILURES + 1):
        assert taken(site) == (job, number)
        end(site, job, number, failed="the disk is full")
        end(site, job, number, failed="the disk is full")  # the report comes twice
        began_s = site.now_s
        while found(site, job).phase is DeliveryPhase.WAITING and not site.look(deliveries.is_due, now_s=site.now_s):
            site.now_s += 1
        pauses.append(site.now_s - began_s)
    assert pauses == [10, 20, 0]
    delivery = found(site, job)
    assert (delivery.phase, delivery.problem, delivery.tries) == (DeliveryPhase.FAILED, "the disk is full", FAILURES)
    assert site.events(job).count(deliveries.NOT_DELIVERED) == 1
    site.now_s += 10**6
    assert taken(site, site.agent("b")) is None


def test_what_no_other_try_changes_is_given_up_at_once_and_may_be_asked_for_anew(site: QueueHarness) -> None:
    job = done(site)
    assert taken(site) == (job, 1)
    end(site, job, 1, failed="a link", may_pass=False)
    assert found(site, job).phase is DeliveryPhase.FAILED
    site.do(deliveries.try_again, job, now_s=site.now_s)
    assert taken(site) == (job, 2)
    site.do(deliveries.try_again, job, now_s=site.now_s)  # it is under way
    end(site, job, 2)
    assert (found(site, job).phase, found(site, job).problem) == (DeliveryPhase.DELIVERED, "")
    with pytest.raises(NotFound):
        site.do(deliveries.try_again, site.job(), now_s=site.now_s)


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("file:///data/physics/{campaign}/", "needs {index} or {job}"),
        (
            "file:///data/other/{index}/",
            "is not below a URL that this site allows: an admin may add it to urls in [out",
        ),
        ("file:///data/physics/../other/{job}", "must not lead upward"),
        ("file:///data/physics/{run}", "there is no such parameter: known are campaign, index, job"),
        ("file:///data/physics/a?b", "a folder has no ?"),
    ],
)
def test_a_target_that_may_not_be_is_refused_at_the_submission(site: QueueHarness, to: str, said: str) -> None:
    with pytest.raises((Invalid, Conflict, ValidationError)) as refused:
        site.submit(indices=(1, 2), outputs={"to": to})
    assert said in str(refused.value)
    with pytest.raises(ValidationError, match="known are job"):
        site.job(outputs={"to": TARGET})
