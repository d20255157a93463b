"""Control's loops, most of them by a virtual clock: no thread, no Slurm, no waiting, and the same each time."""

import math
import threading
from pathlib import Path

import pytest
from structlog.testing import capture_logs
from tests.databases import new_sqlite

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.loops import Loop, LoopThreads, do_each
from gleaner.control.queue.database import connect
from gleaner.control.queue.errors import (
    Conflict,
    Invalid,
    NotFound,
    NotLeading,
    QueueBusy,
    QueueError,
    SchemaMismatch,
)
from gleaner.control.settings import (
    Settings,
)
from gleaner.control.slurm.interface import ClusterUnavailable


@pytest.fixture
def state(tmp_path: Path) -> ControlState:
    """A program that leads, at the time 5."""
    return ControlState(
        Settings(), connect(new_sqlite(tmp_path)), FolderStorage(tmp_path), leads_until_s=math.inf, clock=lambda: 5.0
    )


def test_a_step_that_goes_on_when_all_is_stopped_is_done_to_its_end(state: ControlState) -> None:
    called, may_end = threading.Event(), threading.Event()
    seen: list[float] = []

    def slow(now_s: float) -> None:
        called.set()
        may_end.wait(60)
        seen.append(now_s)

    threads = LoopThreads(state)
    threads.start(Loop("slow", 0.001, slow))
    assert called.wait(60)
    threads.stop()
    may_end.set()
    threads.join()
    assert seen == [5.0]


def test_a_step_that_fails_is_told_and_called_again(state: ControlState) -> None:
    faults, again = state.faults, threading.Event()
    failures = [RuntimeError("a bug"), RuntimeError("a bug"), UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "another")]
    told: list[tuple[str, ...]] = []

    def bad(_now_s: float) -> None:
        told.append(faults.now)
        if failures:
            raise failures.pop(0)
        if len(told) > 4:  # the round before was good, and has been told
            again.set()

    threads = LoopThreads(state)
    with capture_logs() as logs:
        threads.start(Loop("bad", 0.001, bad))
        assert again.wait(60)
        threads.join()
    assert told[:5] == [(), ("bad",), ("bad",), ("bad",), ()]
    assert (faults.now, faults.rounds["bad"]) == ((), 3)
    logged = [(line["log_level"], line["step"], line.get("exc_info", False)) for line in logs]
    assert logged == [("error", "bad", True), ("error", "bad", True), ("info", "bad", False)], "each reason once"


def test_the_time_since_the_last_good_round_is_known_of_each_loop_while_this_program_leads(state: ControlState) -> None:
    now_s = [100.0]
    state.steady_clock = lambda: now_s[0]
    outcomes: list[Exception | None] = [StorageError("away"), None, StorageError("away")]

    def step(_now_s: float) -> None:
        if (outcome := outcomes.pop(0)) is not None:
            raise outcome

    loop = Loop("a", 10, step)
    assert state.loop_ages_s == {}
    loop.run_once(state, 5.0)
    now_s[0] = 107.0
    assert state.faults.every_s == {"a": 10}
    assert state.loop_ages_s == {"a": 7.0}, "it was never good, and its age grows"
    loop.run_once(state, 5.0)
    now_s[0] = 167.0
    loop.run_once(state, 5.0)
    assert state.loop_ages_s == {"a": 60.0}, "the second round was not good"
    state.leads_until_s = 0.0
    loop.run_once(state, 5.0)
    assert state.loop_ages_s == {}, "another program does it now"


@pytest.mark.parametrize("error", [QueueBusy, ClusterUnavailable, StorageError])
def test_a_trouble_is_said_once_until_it_is_over(state: ControlState, error: type[Exception]) -> None:
    outcomes = iter([error("away"), error("away"), error("busy"), None, error("busy")])

    def step(_now_s: float) -> None:
        if (outcome := next(outcomes)) is not None:
            raise outcome

    loop = Loop("drains", 2, step)
    with capture_logs() as logs:
        for _ in range(5):
            loop.run_once(state, 5.0)
    assert [(line["event"], line["reason"]) for line in logs] == [
        ("this has to wait", "away"),
        ("this has to wait", "busy"),
        ("this has to wait", "busy"),
    ]


@pytest.mark.parametrize(("leader_only", "steps"), [(True, []), (False, [5.0])])
def test_a_program_that_does_not_lead_leaves_the_leaders_work_alone(
    state: ControlState, leader_only: bool, steps: list[float]
) -> None:
    state.leads_until_s = 0.0
    done: list[float] = []
    Loop("shares", 2, done.append, leader_only=leader_only).run_once(state, 5.0)
    assert done == steps


@pytest.mark.parametrize("error", [ZeroDivisionError, Invalid, Conflict, NotFound])
def test_one_thing_that_fails_by_a_bug_or_a_refusal_keeps_none_of_the_others_waiting(error: type[Exception]) -> None:
    done: list[int] = []

    def do(number: int) -> None:
        done.append(number)
        if number in (2, 3):
            raise error("not this one")

    with pytest.raises(ExceptionGroup, match="2 could not be done"):
        do_each([1, 2, 3, 4], do)
    assert done == [1, 2, 3, 4]


@pytest.mark.parametrize("error", [QueueBusy, NotLeading, SchemaMismatch])
def test_nothing_more_is_asked_of_a_queue_that_answers_nobody(error: type[QueueError]) -> None:
    done: list[int] = []

    def do(number: int) -> None:
        done.append(number)
        raise error("none")

    with pytest.raises(error):
        do_each([1, 2], do)
    assert done == [1]
