"""Every state against every transition, and every report against every state of an attempt."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from tests.queue.queue_harness import SPENT, QueueHarness, checkpoint

from gleaner.agent.messages import ReturnReason, Saved
from gleaner.control.queue import attempt_reports, jobs, transitions
from gleaner.control.queue.database import transaction
from gleaner.control.queue.errors import Conflict, Invalid, NotCurrent, NotFound, TransitionRefused
from gleaner.control.states import Outcome, State, Transition


def new(harness: QueueHarness) -> int:
    return harness.job()


def running(harness: QueueHarness) -> int:
    job = harness.job()
    harness.claim_one(harness.agent("first"))
    return job


def saved(harness: QueueHarness) -> int:
    job = running(harness)
    harness.record_save(job, 1)
    return job


def going_on(harness: QueueHarness) -> int:
    """Return a job that runs, restored from a checkpoint."""
    job = saved(harness)
    harness.claim_one(harness.agent("second"))
    return job


def lost_new(harness: QueueHarness) -> int:
    job = running(harness)
    harness.silence()
    return job


def lost_saved(harness: QueueHarness) -> int:
    job = going_on(harness)
    harness.silence()
    return job


def succeeded(harness: QueueHarness) -> int:
    job = running(harness)
    harness.record_completion(job, 1)
    return job


def failed(harness: QueueHarness) -> int:
    job = harness.job(retries=0)
    harness.claim_one(harness.agent("first"))
    harness.record_completion(job, 1, exit_code=3)
    return job


def cancelled(harness: QueueHarness) -> int:
    job = running(harness)
    harness.cancel(job)
    return job


STANDS: dict[Callable[[QueueHarness], int], State] = {
    new: State.NEW,
    lost_new: State.NEW,
    running: State.RUNNING,
    going_on: State.RUNNING,
    saved: State.SAVED,
    lost_saved: State.SAVED,
    succeeded: State.COMPLETE,
    failed: State.COMPLETE,
    cancelled: State.COMPLETE,
}
FACTS: dict[Transition, dict[str, object]] = {
    Transition.SAVE: {"from_attempt": 1, "from_number": 1, "attempt": 1},
    Transition.SUCCEED: {"outcome": Outcome.SUCCEEDED, "exit_code": 0},
    Transition.FAIL: {"outcome": Outcome.FAILED, "exit_code": 1},
    Transition.RETRY: {"failures": 1},
    Transition.CHECKPOINT: {"from_attempt": 1, "from_number": 1, "attempt": 1},
    Transition.CHECKPOINT_TO_SAVED: {"from_attempt": 1, "from_number": 1, "attempt": 1, "lost": True},
    Transition.LOSE_TO_SAVED: {"from_attempt": 1, "from_number": 1, "lost": True},
    Transition.LOSE_TO_NEW: {"lost": True},
    Transition.REVIVE: {"agent": "first", "attempt": 1},
    Transition.START_OVER: {},
    Transition.CANCEL: {"outcome": Outcome.CANCELLED},
}
"""CLAIM and RERUN are missing: only `claim` and `reruns` make them, for many jobs, see below and `test_reruns`."""


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_a_move_is_made_from_its_sources_and_refused_from_anywhere_else(
    harness: QueueHarness, stand: Callable[[QueueHarness], int]
) -> None:
    job = stand(harness)
    latest = harness.row(job).attempt
    before = harness.everything()
    for move, named in FACTS.items():
        facts = named | ({"attempt": latest} if "attempt" in named else {})
        is_legal = STANDS[stand] in move.sources
        if is_legal and ("attempt" in facts or latest == 0):
            continue  # the reports' own rules are tested below
        with suppress(_Undo), transaction(harness.engine) as db:
            if is_legal:
                transitions.make_transition(db, job, move, now_s=harness.now_s, **facts)  # type: ignore[arg-type]
                state = db.execute(text("SELECT state FROM job WHERE id = :job"), {"job": job}).scalar()
                assert state == move.target
            else:
                with pytest.raises(Conflict, match=rf"job {job}\b.*"):
                    transitions.make_transition(db, job, move, now_s=harness.now_s, **facts)  # type: ignore[arg-type]
            raise _Undo
        assert harness.everything() == before


class _Undo(Exception):
    pass


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_only_a_waiting_job_is_claimed(harness: QueueHarness, stand: Callable[[QueueHarness], int]) -> None:
    job = stand(harness)
    attempt = harness.row(job).attempt
    claimed = harness.claim(harness.agent("late"))
    assert [each.job for each in claimed] == ([job] if STANDS[stand] in Transition.CLAIM.sources else [])
    assert [each.attempt for each in claimed] == ([attempt + 1] if claimed else [])


OPEN = (running, going_on, lost_new, lost_saved)
"""The states in which the latest attempt may still report."""
REPORTS: dict[str, Callable[[QueueHarness, int, int], object]] = {
    "saved": lambda harness, job, attempt: harness.record_save(job, attempt, number=7),
    "succeeded": lambda harness, job, attempt: harness.record_completion(job, attempt, exit_code=0, output=True),
    "failed": lambda harness, job, attempt: harness.record_completion(job, attempt, exit_code=5),
    "returned": lambda harness, job, attempt: harness.record_return(job, attempt, ReturnReason.UNSTARTED, "no time"),
}


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_a_report_counts_for_the_latest_attempt_while_it_is_open_and_changes_nothing_otherwise(
    harness: QueueHarness, stand: Callable[[QueueHarness], int], report: str
) -> None:
    job = stand(harness)
    latest = harness.row(job).attempt
    before = harness.everything()
    for attempt in {*range(1, latest), latest + 1, latest + 5} | (
        set() if stand in OPEN or report == stand.__name__ else {max(latest, 1)}
    ):
        with pytest.raises((NotCurrent, NotFound)):
            REPORTS[report](harness, job, attempt)
        with pytest.raises((NotCurrent, NotFound)):
            harness.record_checkpoint(job, attempt, number=8)
        assert harness.everything() == before
    if stand in OPEN:
        REPORTS[report](harness, job, latest)
        assert harness.endings(job)[-1] == report


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("stand", OPEN, ids=lambda stand: stand.__name__)
def test_an_ending_reported_again_is_no_error_and_a_different_one_is_refused(
    harness: QueueHarness, stand: Callable[[QueueHarness], int], report: str
) -> None:
    job = stand(harness)
    latest = harness.row(job).attempt
    REPORTS[report](harness, job, latest)
    ended = harness.everything()
    REPORTS[report](harness, job, latest)
    for other in REPORTS.keys() - {report}:
        with pytest.raises(NotCurrent, match=f"attempt {latest} of job {job}"):
            REPORTS[other](harness, job, latest)
    assert harness.everything() == ended


def test_the_answer_to_saved_may_be_lost_even_if_the_job_has_been_claimed_since(harness: QueueHarness) -> None:
    job = saved(harness)
    harness.claim_one(harness.agent("second"))
    before = harness.everything()
    harness.record_save(job, 1)
    assert harness.everything() == before
    with pytest.raises(NotCurrent, match="attempt 2 is the latest"):
        harness.record_save(job, 1, number=2)


def test_a_checkpoint_must_be_of_the_reporting_attempt(harness: QueueHarness) -> None:
    job = going_on(harness)

    with pytest.raises(Invalid, match="attempt 2 of job 1 reports a checkpoint of attempt 1"):
        harness.do(attempt_reports.record_save, job, 2, Saved(checkpoint=checkpoint(1, 2), slice=SPENT), now_s=1.0)


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_cancelling_ends_what_has_not_ended(harness: QueueHarness, stand: Callable[[QueueHarness], int]) -> None:
    job = stand(harness)
    before = harness.everything()
    if STANDS[stand] is not State.COMPLETE:
        harness.cancel(job)
        assert (harness.row(job).outcome, harness.row(job).ended_s) == (Outcome.CANCELLED, harness.now_s)
        assert harness.events(job)[-1] == "cancel"
    elif stand is cancelled:
        harness.cancel(job)
        assert harness.everything() == before
    else:
        with pytest.raises(
            TransitionRefused, match=rf"job {job}: cannot cancel, for it is Complete \({stand.__name__}\)"
        ):
            harness.cancel(job)
        assert harness.everything() == before


@pytest.mark.parametrize("stand", [succeeded, failed, cancelled], ids=lambda stand: stand.__name__)
def test_a_complete_job_is_neither_held_nor_released_nor_moved_up(
    harness: QueueHarness, stand: Callable[[QueueHarness], int]
) -> None:
    job = stand(harness)
    before = harness.everything()
    for act in (
        lambda: harness.hold(job),
        lambda: harness.release(job),
        lambda: harness.do(jobs.set_priority, job, 5, now_s=1.0),
    ):
        with pytest.raises(Conflict, match=rf"it is Complete \({stand.__name__}\)"):
            act()
    assert harness.everything() == before


def test_an_unknown_job_is_unknown_to_every_call(harness: QueueHarness) -> None:
    harness.agent("first")
    calls: list[Callable[[], object]] = [
        lambda: harness.row(7),
        lambda: harness.detail(7),
        lambda: harness.cancel(7),
        lambda: harness.hold(7),
        lambda: harness.release(7),
        lambda: harness.do(jobs.set_priority, 7, 1, now_s=1.0),
        lambda: harness.log(7, 1, 0, "a"),
        lambda: harness.record_checkpoint(7, 1),
        *(lambda report=report: report(harness, 7, 1) for report in REPORTS.values()),
    ]
    before = harness.everything()
    for call in calls:
        with pytest.raises(NotFound, match="there is no job 7"):
            call()
    assert harness.everything() == before


def test_every_move_leaves_an_event_with_its_reason(harness: QueueHarness) -> None:
    job = harness.job(retries=1)
    harness.claim_one(harness.agent("a"))
    harness.record_save(job, 1, number=4)
    harness.claim_one(harness.agent("b"))
    harness.record_return(job, 2, ReturnReason.SAVE_FAILED, "disk full")
    harness.claim_one(harness.agent("c"))
    harness.now_s += 100
    harness.record_completion(job, 3, exit_code=3)
    harness.now_s += 100
    harness.claim_one(harness.agent("d"))
    harness.now_s += 100
    harness.record_completion(job, 4, exit_code=2)
    told = [(event.what, event.detail) for event in harness.detail(job).events]
    assert told == [
        ("submit", ""),
        ("claim", "by a on node-of-a"),
        ("save", "checkpoint 1/4, 1000 bytes"),
        ("claim", "by b on node-of-b"),
        ("return", "save failed: disk full"),
        ("lose to saved", "goes on from checkpoint 1/4"),
        ("claim", "by c on node-of-c"),
        ("retry", "exit code 3; starts over, 0 retries left"),
        ("claim", "by d on node-of-d"),
        ("fail", "exit code 2"),
    ]


IMPOSSIBLE = {
    "a waiting job with an agent": "UPDATE job SET agent = 'first'",
    "an outcome before the end": "UPDATE job SET outcome = 'succeeded'",
    "Complete without an outcome": "UPDATE job SET state = 'Complete', ended_s = 1",
    "Complete without an end": "UPDATE job SET state = 'Complete', outcome = 'cancelled'",
    "success without an exit code": "UPDATE job SET state = 'Complete', outcome = 'succeeded', ended_s = 1",
    "failure with exit code 0": ("UPDATE job SET state = 'Complete', outcome = 'failed', exit_code = 0, ended_s = 1"),
    "an unknown state": "UPDATE job SET state = 'Lost'",
    "Running without an agent": "UPDATE job SET state = 'Running', attempt = 1",
    "Running without an attempt": "UPDATE job SET state = 'Running', agent = 'first'",
    "Saved without a checkpoint": "UPDATE job SET state = 'Saved', attempt = 1",
    "held without a reason": "UPDATE job SET held = true",
    "output of a waiting job": "UPDATE job SET output_digest = 'x', output_bytes = 1",
    "more failures than tries": "UPDATE job SET failures = 3",
    "a lane that is not there": "UPDATE job SET lane = 99",
    "an agent of no phase": "UPDATE agent SET phase = 'tired'",
    "an agent that is live but never registered": "UPDATE agent SET registered_s = NULL",
    "a second leader": "INSERT INTO leader (id, holder, until_s) VALUES (2, 'x', 1)",
    "two live attempts": (
        "INSERT INTO attempt (job, attempt, agent, node, claimed_s, detail, log_from, restore_s, compute_s, save_s)"
        " VALUES (1, 1, 'first', 'n', 1, '', 0, 0, 0, 0), (1, 2, 'first', 'n', 1, '', 0, 0, 0, 0)"
    ),
}


def test_the_tables_refuse_impossible_rows(harness: QueueHarness) -> None:
    harness.agent("first")
    harness.job(retries=1)
    before = harness.everything()
    for what, statement in IMPOSSIBLE.items():
        with pytest.raises(IntegrityError), harness.engine.begin() as connection:
            connection.execute(text(statement))
            pytest.fail(f"possible: {what}")
    assert harness.everything() == before
