"""The clock that tests live by: it goes on only when everybody waits for it, and each run comes out the same."""

import asyncio
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.agent.control_harness import Control, controlled
from tests.agent.fake_clock import LONGEST_S, FakeClock, RunIsOver


def test_time_goes_on_at_once_and_only_to_what_somebody_waits_for() -> None:
    clock, heard = FakeClock(), list[tuple[float, str]]()

    def thread(name: str, pause_s: float) -> None:
        for _ in range(2):
            clock.pause(pause_s)
            heard.append((clock.passed_s, name))

    async def live() -> None:
        clock.start(thread, "a", 3)
        clock.start(thread, "b", 2)
        await asyncio.sleep(5)
        heard.append((clock.passed_s, "loop"))
        await asyncio.to_thread(thread, "c", 100)

    clock.run(live())
    assert heard == [(2, "b"), (3, "a"), (4, "b"), (5, "loop"), (6, "a"), (105, "c"), (205, "c")]


def test_a_thread_keeps_the_turn_until_it_waits() -> None:
    clock, heard = FakeClock(), list[str]()

    def thread(name: str) -> None:
        heard.append(f"{name} begins")
        threading.Event().wait(0.01)  # real time, in which another thread could run
        heard.append(f"{name} goes on")
        clock.pause(1)
        heard.append(f"{name} ends")

    async def live() -> None:
        await asyncio.gather(asyncio.to_thread(thread, "a"), asyncio.to_thread(thread, "b"))

    clock.run(live())
    assert heard == ["a begins", "a goes on", "b begins", "b goes on", "a ends", "b ends"]


@pytest.mark.parametrize("threads_come_first", [False, True])
def test_a_test_says_whether_a_new_thread_has_the_turn_at_once(*, threads_come_first: bool) -> None:
    clock, heard = FakeClock(), list[str]()
    clock.threads_come_first = threads_come_first

    async def live() -> None:
        clock.start(heard.append, "thread")
        heard.append("loop")
        await asyncio.sleep(1)

    clock.run(live())
    assert heard == (["thread", "loop"] if threads_come_first else ["loop", "thread"])


def test_what_happens_is_noticed_before_the_time_goes_on() -> None:
    clock, event = FakeClock(), threading.Event()

    async def live() -> tuple[bool, bool]:
        clock.start(lambda: (clock.pause(2), event.set()))
        early = await asyncio.to_thread(clock.wait, event, 1)
        return early, await asyncio.to_thread(clock.wait, event, 60)

    assert clock.run(live()) == (False, True)
    assert clock.passed_s == 2


def test_the_time_outs_of_asyncio_follow_the_clock() -> None:
    clock = FakeClock()

    async def live() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(30):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 20)

    clock.run(live())
    assert clock.passed_s == 50


def test_whoever_waits_for_a_lock_has_it_when_its_holder_has_waited() -> None:
    clock, heard = FakeClock(), list[tuple[float, str]]()
    lock = clock.lock()

    def thread(name: str) -> None:
        with lock:
            clock.pause(2)
            heard.append((clock.passed_s, name))

    async def live() -> None:
        await asyncio.gather(*(asyncio.to_thread(thread, name) for name in "abc"))

    clock.run(live())
    assert heard == [(2, "a"), (4, "b"), (6, "c")]


def test_an_executor_has_only_the_threads_that_it_was_given() -> None:
    clock = FakeClock()

    async def live() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        await asyncio.gather(*(asyncio.to_thread(clock.pause, 10) for _ in range(5)))

    clock.run(live())
    assert clock.passed_s == 30


def test_a_signal_is_heard_at_its_instant() -> None:
    clock, heard = FakeClock(), list[float]()

    async def live() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, lambda: heard.append(clock.passed_s))
        clock.start(lambda: (clock.pause(3), signal.raise_signal(signal.SIGUSR1)))
        await asyncio.sleep(10)

    clock.run(live())
    assert heard == [3]


def test_who_waits_for_ever_is_found_out_at_once() -> None:
    clock = FakeClock()

    async def live() -> None:
        await asyncio.gather(asyncio.Event().wait(), asyncio.to_thread(clock.wait_until, lambda: False))

    with pytest.raises(AssertionError, match="everybody waits for ever"):
        clock.run(live())


def test_what_never_ends_is_found_out() -> None:
    clock = FakeClock()

    async def live() -> None:
        while True:
            await asyncio.sleep(1)

    with pytest.raises(AssertionError, match="not come to an end"):
        clock.run(live())
    assert clock.passed_s == LONGEST_S


def test_what_fails_in_a_thread_fails_the_run() -> None:
    clock = FakeClock()
    clock.start(lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        clock.run(asyncio.sleep(1))


def test_threads_that_are_left_behind_end_with_the_run() -> None:
    clock, left = FakeClock(), list[str]()

    def thread() -> None:
        try:
            clock.pause(10)
        except RunIsOver:
            left.append("over")
            raise

    clock.start(thread)
    clock.run(asyncio.sleep(1))
    assert left == ["over"]
    assert clock.passed_s == 1


def test_a_thread_that_the_clock_does_not_know_cannot_wait_for_it() -> None:
    clock, failed = FakeClock(), list[AssertionError]()

    def thread() -> None:
        try:
            clock.pause(1)
        except AssertionError as error:
            failed.append(error)

    unknown = threading.Thread(target=thread)
    unknown.start()
    unknown.join()
    assert "does not know" in str(failed[0])


def a_life(control: Control) -> list[tuple[float, str]]:
    """Return what control heard, and when, of three jobs on an agent that has to leave."""
    heard: list[tuple[float, str]] = []
    handle = control.transport.handle_request

    def listen(request: httpx.Request) -> httpx.Response:
        heard.append((control.clock.passed_s, request.url.path))
        return handle(request)

    control.transport.handle_request = listen  # type: ignore[method-assign]
    for goal in ("5", "100000", "100000"):
        control.submit(goal)
    control.runtime.checkpoint_takes_s = 1
    control.live(control.brief("a1", computes_s=8, saves_at_once=2, margin_s=7))
    return heard


def test_a_life_comes_out_the_same_each_time(tmp_path: Path) -> None:
    lives: list[list[tuple[float, str]]] = []
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        with controlled(tmp_path / name) as control:
            lives.append(a_life(control))
    assert lives[0] == lives[1]
    assert {path.rpartition("/")[2] for _, path in lives[0]} >= {
        "register",
        "claim",
        "beat",
        "completed",
        "saved",
        "log",
    }
