"""`glean check` says whether a program can be saved here, from what becomes of its job."""

import json
import signal
from typing import Any

import pytest
from tests.cli.cli_harness import CliHarness
from tests.privileged.waiting import wait_until

from gleaner.agent.job_spec import SelfSave
from gleaner.agent.messages import Assignment, ReturnReason
from gleaner.control.cli.check import FAILED_FOR_S, Act, CanBeSaved, CheckEnd, next_step, out_of_patience
from gleaner.control.models.jobs import AttemptRow, CheckpointRow, Ending, EventRow, JobDetail, JobRow
from gleaner.control.queue import queries
from gleaner.control.queue.database import snapshot
from gleaner.control.states import Outcome, State

AFTER_S = 10.0
QUEUE = "cannot be saved: it has a POSIX message queue (mq_open): use a pipe"


def detail(
    state: State,
    *slices: AttemptRow,
    held: bool = False,
    outcome: Outcome | None = None,
    saves_itself: Any = None,
    **more: Any,
) -> JobDetail:
    row = JobRow(
        id=7, name="check", group="atlas", campaign=None, index=None, state=state, outcome=outcome, exit_code=None,
        held=held, priority=0, cpus=1, memory_mib=512, attempt=len(slices), node=None, submitted_s=1.0, ended_s=None,
    )  # fmt: skip
    events: tuple[EventRow, ...] = ()
    blank: dict[str, Any] = {
        "spec": {"name": "check", "image": "lab:1", "saves_itself": saves_itself}, "failures": 0,
        "waits_because": "all agents are busy", "events": events, "checkpoints": (), "output_bytes": None,
    }  # fmt: skip
    return JobDetail.model_validate(blank | {"job": row, "attempts": slices} | more)


def slice_(ending: Ending | None = None, said: str = "", *, restored: bool = False) -> AttemptRow:
    why = next((each for each in ReturnReason if said.startswith(each)), None)
    return AttemptRow(
        attempt=1, agent="a", node="node2" if restored else "node1", claimed_s=1.0, ended_s=None, ending=ending,
        why=why, detail=said, started_s=None, restore_s=0.9, compute_s=2.5,
        from_attempt=1 if restored else None, from_number=1 if restored else None,
        save_s=1.2,
    )  # fmt: skip


def step(found: JobDetail, *, ran_s: float = 0.0) -> Act | CheckEnd:
    return next_step(found, ran_s=ran_s, after_s=AFTER_S)


def test_a_job_runs_for_a_while_is_held_until_it_is_saved_and_then_goes_on_to_be_saved_again() -> None:
    saved = slice_(Ending.SAVED)
    assert step(detail(State.NEW)) is Act.WAIT
    assert step(detail(State.RUNNING, slice_()), ran_s=AFTER_S - 1) is Act.WAIT
    assert step(detail(State.RUNNING, slice_()), ran_s=AFTER_S) is Act.HOLD
    assert step(detail(State.RUNNING, slice_(), held=True), ran_s=AFTER_S + 1) is Act.WAIT
    assert step(detail(State.SAVED, saved, held=True)) is Act.RELEASE
    assert step(detail(State.SAVED, saved)) is Act.WAIT
    assert step(detail(State.RUNNING, saved, slice_(restored=True)), ran_s=AFTER_S) is Act.HOLD
    again = detail(
        State.SAVED, saved, slice_(Ending.SAVED, restored=True), held=True,
        checkpoints=(CheckpointRow(attempt=2, number=1, size_bytes=85_000_000, published_s=1.0),),
    )  # fmt: skip
    how = "saved on node1 in 1.2 s (81.1 MiB), restored on node2 in 0.9 s, saved again"
    assert step(again) == CheckEnd(CanBeSaved.YES, how)


def test_a_program_that_ends_well_after_its_restore_can_be_saved() -> None:
    ended = slice_(Ending.SUCCEEDED, restored=True)
    found = step(detail(State.COMPLETE, slice_(Ending.SAVED), ended, outcome=Outcome.SUCCEEDED))
    assert found == CheckEnd(
        CanBeSaved.YES, "saved on node1 in 1.2 s, restored on node2 in 0.9 s, ended with exit code 0"
    )


def test_a_reason_that_lasts_ends_the_check_at_once_and_one_that_may_pass_after_a_while() -> None:
    assert step(detail(State.RUNNING, slice_(), held=True, not_saved_because=QUEUE)) == CheckEnd(CanBeSaved.NO, QUEUE)
    passing = detail(State.RUNNING, slice_(), held=True, not_saved_because="save failed: a TCP connection is open")
    assert step(passing, ran_s=AFTER_S + FAILED_FOR_S - 1) is Act.WAIT
    assert step(passing, ran_s=AFTER_S + FAILED_FOR_S) == CheckEnd(
        CanBeSaved.NO, "save failed: a TCP connection is open"
    )
    returned = detail(State.NEW, slice_(Ending.RETURNED, QUEUE), held=True, unsaved_because=QUEUE)
    assert step(returned) == CheckEnd(CanBeSaved.NO, QUEUE)


def test_a_program_that_was_to_be_saved_before_it_had_started_is_left_alone_for_longer() -> None:
    unstarted = slice_(Ending.RETURNED, f"{ReturnReason.UNSTARTED}: the agent was ending")
    assert step(detail(State.NEW, unstarted, held=True)) is Act.RELEASE
    assert step(detail(State.RUNNING, unstarted, slice_()), ran_s=2 * AFTER_S) is Act.WAIT
    assert step(detail(State.RUNNING, unstarted, slice_()), ran_s=3 * AFTER_S) is Act.HOLD


def test_a_slice_that_ended_too_early_for_its_save_is_no_answer() -> None:
    late = f"{ReturnReason.TOO_LATE}: no checkpoint"
    assert step(detail(State.NEW, slice_(Ending.RETURNED, late), unsaved_because=late)) is Act.WAIT


def test_a_checkpoint_that_is_not_restored_is_a_no() -> None:
    broken = slice_(Ending.RETURNED, f"{ReturnReason.CANNOT_RESTORE}: CRIU failed", restored=True)
    found = step(detail(State.SAVED, slice_(Ending.SAVED), broken))
    assert found == CheckEnd(CanBeSaved.NO, "it was saved, but not restored on node2: cannot restore: CRIU failed")


@pytest.mark.parametrize(
    ("slices", "outcome", "verdict", "words"),
    [
        (
            (slice_(Ending.SUCCEEDED),),
            Outcome.SUCCEEDED,
            CanBeSaved.UNKNOWN,
            "it ended after 2.5 s, before it was saved",
        ),
        ((slice_(Ending.FAILED),), Outcome.FAILED, CanBeSaved.UNKNOWN, "it failed before it was saved: exit"),
        (
            (slice_(Ending.SAVED), slice_(Ending.FAILED, restored=True)),
            Outcome.FAILED,
            CanBeSaved.NO,
            "it was saved and restored, and then failed: exit code 3; `glean logs 7` shows what it printed",
        ),
        ((), Outcome.CANCELLED, CanBeSaved.UNKNOWN, "its job was cancelled"),
    ],
)
def test_a_program_that_ends_before_the_answer(
    slices: tuple[AttemptRow, ...], outcome: Outcome, verdict: CanBeSaved, words: str
) -> None:
    found = step(detail(State.COMPLETE, *slices, outcome=outcome, failed_because="exit code 3"))
    assert isinstance(found, CheckEnd)
    assert (found.verdict, found.reason[: len(words)]) == (verdict, words)


def test_an_image_that_is_not_there_is_no_answer() -> None:
    missing = slice_(Ending.RETURNED, f"{ReturnReason.IMAGE_MISSING}: lab:1")
    found = step(detail(State.NEW, missing, held=True, waits_because="held: image missing: lab:1"))
    assert found == CheckEnd(CanBeSaved.UNKNOWN, "it did not start: held: image missing: lab:1")


def test_patience_ends_with_what_is_known() -> None:
    waits = out_of_patience(detail(State.NEW), waited_s=600)
    assert waits == CheckEnd(CanBeSaved.UNKNOWN, "no agent took it within 10 min: all agents are busy")
    deaf = detail(State.RUNNING, slice_(), held=True, saves_itself=SelfSave())
    assert out_of_patience(deaf, waited_s=600).verdict is CanBeSaved.NO
    slow = out_of_patience(detail(State.RUNNING, slice_(), held=True), waited_s=60)
    assert slow == CheckEnd(CanBeSaved.UNKNOWN, "its save did not end within 1 min")


# ── with a real control program ───────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_a_check_cancels_its_job(harness: CliHarness, number: signal.Signals) -> None:
    process = harness.start("check", "lab:1", "--after", "1", "--json", "--", "simulate", "--seed", "1")
    claimed: list[Assignment] = []
    wait_until(lambda: claimed.extend(harness.node.claim()) or bool(claimed), "the job is claimed")
    assert process.stderr
    while "runs on" not in process.stderr.readline():
        pass
    process.send_signal(number)
    assert process.wait(timeout=60) == 130
    with snapshot(harness.state.engine) as db:
        assert queries.job_detail(db, claimed[0].job).job.outcome is Outcome.CANCELLED


def test_wrong_options_of_a_check_submit_nothing(harness: CliHarness) -> None:
    assert harness.refused("check", "lab:1", "--after", "soon", code=2).startswith("--after must be like 90")
    assert harness.refused("check", "lab:1", "--after", "0", code=2) == "--after must be at least a second, found 0"
    assert harness.refused("check", "lab:1", "--memory-mib", "much", code=2).startswith("--memory-mib")
    assert json.loads(harness.good("list", "--json"))["total"] == 0
