"""Every state against every move, and every report against every way in which an attempt can stand."""

from collections.abc import Callable
from contextlib import suppress

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import IntegrityError
from tests.queue.scene import SPENT, Scene, digest

from gleaner.agent.protocol import Generation, GivenBack, Saved, Why
from gleaner.control.life import Move, Outcome, State
from gleaner.control.queue import arrows, moves
from gleaner.control.queue.engine import transaction
from gleaner.control.queue.errors import Invalid, MoveRefused, NotCurrent, QueueError, Refused, Unknown
from gleaner.control.queue.tables import METADATA


def new(scene: Scene) -> int:
    return scene.job()


def running(scene: Scene) -> int:
    job = scene.job()
    scene.claim_one(scene.agent("first"))
    return job


def saved(scene: Scene) -> int:
    job = running(scene)
    scene.saved(job, 1)
    return job


def going_on(scene: Scene) -> int:
    """Running, restored from a generation."""
    job = saved(scene)
    scene.claim_one(scene.agent("second"))
    return job


def lost_new(scene: Scene) -> int:
    job = running(scene)
    scene.silence()
    return job


def lost_saved(scene: Scene) -> int:
    job = going_on(scene)
    scene.silence()
    return job


def succeeded(scene: Scene) -> int:
    job = running(scene)
    scene.completed(job, 1)
    return job


def failed(scene: Scene) -> int:
    job = scene.job(retries=0)
    scene.claim_one(scene.agent("first"))
    scene.completed(job, 1, exit_code=3)
    return job


def cancelled(scene: Scene) -> int:
    job = running(scene)
    scene.cancel(job)
    return job


STANDS: dict[Callable[[Scene], int], State] = {
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
FACTS: dict[Move, dict[str, object]] = {
    Move.SAVE: {"from_attempt": 1, "from_number": 1, "attempt": 1},
    Move.SUCCEED: {"outcome": Outcome.SUCCEEDED, "exit_code": 0},
    Move.FAIL: {"outcome": Outcome.FAILED, "exit_code": 1},
    Move.RETRY: {"failures": 1},
    Move.CHECKPOINT: {"from_attempt": 1, "from_number": 1, "attempt": 1},
    Move.CHECKPOINT_TO_SAVED: {"from_attempt": 1, "from_number": 1, "attempt": 1, "lost": True},
    Move.LOSE_TO_SAVED: {"from_attempt": 1, "from_number": 1, "lost": True},
    Move.LOSE_TO_NEW: {"lost": True},
    Move.REVIVE: {"agent": "first", "attempt": 1},
    Move.START_OVER: {},
    Move.CANCEL: {"outcome": Outcome.CANCELLED},
}
"""CLAIM is not here: only `claim` can make it, see below."""


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_a_move_is_made_from_its_sources_and_refused_from_anywhere_else(
    scene: Scene, stand: Callable[[Scene], int]
) -> None:
    job = stand(scene)
    latest = scene.row(job).attempt
    before = scene.everything()
    for move, named in FACTS.items():
        facts = named | ({"attempt": latest} if "attempt" in named else {})
        is_legal = STANDS[stand] in move.sources
        if is_legal and ("attempt" in facts or latest == 0):
            continue  # the reports' own rules are tested below
        with suppress(_Undo), transaction(scene.engine) as db:
            if is_legal:
                arrows.move(db, job, move, now_s=scene.now_s, **facts)  # type: ignore[arg-type]
                state = db.execute(text("SELECT state FROM job WHERE id = :job"), {"job": job}).scalar()
                assert state == move.target
            else:
                with pytest.raises(Refused, match=rf"job {job}\b.*"):
                    arrows.move(db, job, move, now_s=scene.now_s, **facts)  # type: ignore[arg-type]
            raise _Undo
        assert scene.everything() == before


class _Undo(Exception):
    pass


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_only_a_waiting_job_is_claimed(scene: Scene, stand: Callable[[Scene], int]) -> None:
    job = stand(scene)
    attempt = scene.row(job).attempt
    claimed = scene.claim(scene.agent("late"))
    assert [each.job for each in claimed] == ([job] if STANDS[stand] in Move.CLAIM.sources else [])
    assert [each.attempt for each in claimed] == ([attempt + 1] if claimed else [])


OPEN = (running, going_on, lost_new, lost_saved)
"""Where the latest attempt may still report."""
REPORTS: dict[str, Callable[[Scene, int, int], None]] = {
    "saved": lambda scene, job, attempt: scene.saved(job, attempt, number=7),
    "succeeded": lambda scene, job, attempt: scene.completed(job, attempt, exit_code=0, output=True),
    "failed": lambda scene, job, attempt: scene.completed(job, attempt, exit_code=5),
    "given back": lambda scene, job, attempt: scene.given_back(job, attempt, Why.UNSTARTED, "no time"),
}


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_a_report_counts_for_the_latest_attempt_while_it_is_open_and_changes_nothing_otherwise(
    scene: Scene, stand: Callable[[Scene], int], report: str
) -> None:
    job = stand(scene)
    latest = scene.row(job).attempt
    before = scene.everything()
    for attempt in {*range(1, latest), latest + 1, latest + 5} | (
        set() if stand in OPEN or report == stand.__name__ else {max(latest, 1)}
    ):
        with pytest.raises((NotCurrent, Unknown)):
            REPORTS[report](scene, job, attempt)
        assert scene.everything() == before
    if stand in OPEN:
        REPORTS[report](scene, job, latest)
        assert scene.endings(job)[-1] == report


@pytest.mark.parametrize("report", REPORTS)
@pytest.mark.parametrize("stand", OPEN, ids=lambda stand: stand.__name__)
def test_an_ending_reported_again_is_no_error_and_a_different_one_is_refused(
    scene: Scene, stand: Callable[[Scene], int], report: str
) -> None:
    job = stand(scene)
    latest = scene.row(job).attempt
    REPORTS[report](scene, job, latest)
    ended = scene.everything()
    REPORTS[report](scene, job, latest)
    for other in REPORTS.keys() - {report}:
        with pytest.raises(NotCurrent, match=f"attempt {latest} of job {job}"):
            REPORTS[other](scene, job, latest)
    assert scene.everything() == ended


def test_the_answer_to_saved_may_be_lost_even_if_the_job_has_been_claimed_since(scene: Scene) -> None:
    job = saved(scene)
    scene.claim_one(scene.agent("second"))
    before = scene.everything()
    scene.saved(job, 1)
    assert scene.everything() == before
    with pytest.raises(NotCurrent, match="attempt 2 is the latest"):
        scene.saved(job, 1, number=2)


def test_a_generation_must_be_of_the_reporting_attempt(scene: Scene) -> None:
    job = going_on(scene)

    other = Generation(attempt=1, number=2, digest=digest(2), size_bytes=1, log_lines=0)
    with pytest.raises(Invalid, match="attempt 2 of job 1 reports a generation of attempt 1"):
        scene.do(moves.saved, job, 2, Saved(generation=other, slice=SPENT), now_s=1.0)


@pytest.mark.parametrize("stand", STANDS, ids=lambda stand: stand.__name__)
def test_cancelling_ends_what_has_not_ended(scene: Scene, stand: Callable[[Scene], int]) -> None:
    job = stand(scene)
    before = scene.everything()
    if STANDS[stand] is not State.COMPLETE:
        scene.cancel(job)
        assert (scene.row(job).outcome, scene.row(job).ended_s) == (Outcome.CANCELLED, scene.now_s)
        assert scene.events(job)[-1] == "cancel"
    elif stand is cancelled:
        scene.cancel(job)
        assert scene.everything() == before
    else:
        with pytest.raises(MoveRefused, match=rf"job {job}: cannot cancel, for it is Complete \({stand.__name__}\)"):
            scene.cancel(job)
        assert scene.everything() == before


@pytest.mark.parametrize("stand", [succeeded, failed, cancelled], ids=lambda stand: stand.__name__)
def test_a_complete_job_is_neither_held_nor_released_nor_moved_up(scene: Scene, stand: Callable[[Scene], int]) -> None:
    job = stand(scene)
    before = scene.everything()
    for act in (
        lambda: scene.hold(job),
        lambda: scene.release(job),
        lambda: scene.do(moves.set_priority, job, 5, now_s=1.0),
    ):
        with pytest.raises(Refused, match=rf"it is Complete \({stand.__name__}\)"):
            act()
    assert scene.everything() == before


def test_an_unknown_job_is_unknown_to_every_call(scene: Scene) -> None:
    scene.agent("first")
    calls: list[Callable[[], object]] = [
        lambda: scene.row(7),
        lambda: scene.detail(7),
        lambda: scene.cancel(7),
        lambda: scene.hold(7),
        lambda: scene.release(7),
        lambda: scene.do(moves.set_priority, 7, 1, now_s=1.0),
        lambda: scene.log(7, 1, 0, "a"),
        lambda: scene.checkpointed(7, 1),
        *(lambda report=report: report(scene, 7, 1) for report in REPORTS.values()),  # type: ignore[misc]
    ]
    before = scene.everything()
    for call in calls:
        with pytest.raises(Unknown, match="there is no job 7"):
            call()
    assert scene.everything() == before


def test_every_move_leaves_an_event_with_its_reason(scene: Scene) -> None:
    job = scene.job(retries=1)
    scene.claim_one(scene.agent("a"))
    scene.saved(job, 1, number=4)
    scene.claim_one(scene.agent("b"))
    scene.now_s += 100
    scene.completed(job, 2, exit_code=139)
    scene.now_s += 100
    scene.claim_one(scene.agent("c"))
    scene.now_s += 100
    scene.completed(job, 3, exit_code=2)
    told = [(event.what, event.detail) for event in scene.detail(job).events]
    assert told == [
        ("submit", ""),
        ("claim", "by a on node-of-a"),
        ("save", "generation 1/4, 1000 bytes"),
        ("claim", "by b on node-of-b"),
        ("retry", "exit code 139; starts over, 0 retries left"),
        ("claim", "by c on node-of-c"),
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
    "Saved without a generation": "UPDATE job SET state = 'Saved', attempt = 1",
    "held without a reason": "UPDATE job SET held = true",
    "output of a waiting job": "UPDATE job SET output_digest = 'x', output_bytes = 1",
    "more failures than tries": "UPDATE job SET failures = 3",
    "a lane that is not there": "UPDATE job SET lane = 99",
    "an event of no job": "UPDATE event SET job = 99",
    "an agent of no phase": "UPDATE agent SET phase = 'tired'",
    "an agent that is live but never registered": "UPDATE agent SET registered_s = NULL",
    "a second leader": "INSERT INTO leader (id, holder, until_s) VALUES (2, 'x', 1)",
    "two live attempts": (
        "INSERT INTO attempt (job, attempt, agent, node, claimed_s, detail, log_from, restore_s, compute_s, save_s)"
        " VALUES (1, 1, 'first', 'n', 1, '', 0, 0, 0, 0), (1, 2, 'first', 'n', 1, '', 0, 0, 0, 0)"
    ),
}


def test_the_tables_refuse_impossible_rows(scene: Scene) -> None:
    scene.agent("first")
    scene.job(retries=1)
    before = scene.everything()
    for what, statement in IMPOSSIBLE.items():
        with pytest.raises(IntegrityError), scene.engine.begin() as connection:
            connection.execute(text(statement))
            pytest.fail(f"possible: {what}")
    assert scene.everything() == before


def test_all_tables_are_empty_until_something_is_submitted(queue_engine: Engine) -> None:
    assert set(Scene(queue_engine).everything()) == set(METADATA.tables)
    assert not any(Scene(queue_engine).everything().values())


def test_every_refusal_is_one_line_that_names_the_job(scene: Scene) -> None:
    job = cancelled(scene)
    for report in REPORTS.values():
        with pytest.raises(QueueError) as refused:
            report(scene, job, 1)
        assert f"job {job}" in str(refused.value)
        assert "\n" not in str(refused.value)


def test_given_back_names_why_and_where_it_goes_on(scene: Scene) -> None:
    job = going_on(scene)
    scene.do(moves.given_back, job, 2, GivenBack(why=Why.SAVE_FAILED, detail="disk full"), now_s=1.0)
    told = [(event.what, event.detail) for event in scene.detail(job).events][-2:]
    assert told == [
        ("give back", "save failed: disk full"),
        ("lose to saved", "goes on from generation 1/1"),
    ]
