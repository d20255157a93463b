"""A clock for tests: virtual time, and the threads that live in it.

One thread runs at a time, and keeps the turn until it waits for the clock or ends; an event loop is a thread like
others. When all threads wait, those go on for which something has happened, in the order in which they began to wait.
Only when there is none does the time go on, at once, to the earliest instant that somebody waits for. So a test takes
no time, and comes out the same each time, however busy the machine is.
"""

import asyncio
import math
import selectors
import threading
from collections import deque
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar, TypeVarTuple

from gleaner.agent.common.clock import Clock, SystemClock

Result = TypeVar("Result")
Given = TypeVarTuple("Given")

LONGEST_S = 2000.0
"""A run that has not ended after so much virtual time never will."""


class RunIsOver(SystemExit):
    """Raised in a thread that still waits when its run has ended, as a process takes its threads along.

    A test that replaces `os._exit` raises it in that place; an event loop lets it through.
    """


def _never() -> bool:
    return False


@dataclass(eq=False)
class _Thread:
    """A thread that waits for the clock or for its turn, or has the turn."""

    ident: int | None
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    is_met: Callable[[], bool] = _never  # what it waits for has happened
    until_s: float = math.inf
    was_met: bool = False
    is_over: bool = False


class FakeClock:
    """Time that goes on when everybody waits for it, or when a test moves it. Its owner is the thread that makes it."""

    def __init__(self, now_s: float = 1_790_000_000.0) -> None:
        self.began_s = now_s
        self.passed_s = 0.0
        self.shift_s = 0.0  # the node's wall clock has been set by so much
        self._node = SystemClock(wall=lambda: self.true_s + self.shift_s, steady=lambda: self.passed_s)
        self._owner = self._current = _Thread(threading.get_ident())
        self._ready: deque[_Thread] = deque()
        self._waiting: list[_Thread] = []
        self._others: list[_Thread] = []  # all that have not ended, without the owner
        self._give_up_s = math.inf
        self._problem = ""
        self._failed: list[BaseException] = []

    @property
    def true_s(self) -> float:
        """Seconds since the epoch, wherever the node's clock has been set to."""
        return self.began_s + self.passed_s

    def now_s(self) -> float:
        return self._node.now_s()

    def monotonic_s(self) -> float:
        return self.passed_s

    async def sleep(self, duration_s: float) -> None:
        await asyncio.sleep(duration_s)

    def pause(self, duration_s: float) -> None:
        self.wait_until(_never, duration_s)

    def wait(self, event: threading.Event, patience_s: float) -> bool:
        return self.wait_until(event.is_set, patience_s)

    def start(self, work: Callable[[*Given], object], *given: *Given) -> None:
        self._check_turn()
        one = _Thread(None)
        thread = threading.Thread(target=self._live, args=(one, partial(work, *given)), daemon=True)
        thread.start()
        one.ident = thread.ident
        self._others.append(one)
        self._ready.append(one)

    def lock(self) -> AbstractContextManager[object]:
        return _Lock(self)

    def advance(self, duration_s: float) -> None:
        self.passed_s += duration_s

    def wait_until(self, is_so: Callable[[], bool], patience_s: float = math.inf) -> bool:
        """Wait until it is so, at most for that long; return True if it is."""
        me = self._check_turn()
        if is_so():
            return True
        me.is_met, me.until_s = is_so, self.passed_s + max(0.0, patience_s)
        self._waiting.append(me)
        self._pass_turn()
        me.turn.acquire()
        if me.is_over:
            raise RunIsOver
        if me is self._owner and self._problem:
            problem, self._problem = self._problem, ""
            raise AssertionError(problem)
        return me.was_met

    def run(self, life: Coroutine[Any, Any, Result]) -> Result:
        """Run it on an event loop in this clock's time. Threads that it leaves behind end with it."""
        self._give_up_s = self.passed_s + LONGEST_S
        try:
            with asyncio.Runner(loop_factory=lambda: _Loop(self)) as runner:
                return runner.run(life)
        finally:
            self._give_up_s = math.inf
            self._end_others()
            if self._failed:
                raise self._failed[0]

    # ── whose turn it is ──

    def _live(self, me: _Thread, work: Callable[[], object]) -> None:
        me.turn.acquire()
        try:
            if not me.is_over:
                work()
        except RunIsOver:
            pass
        except BaseException as error:
            self._failed.append(error)
        finally:
            self._others.remove(me)
            self._pass_turn()

    def _check_turn(self) -> _Thread:
        assert threading.get_ident() == self._current.ident, "a thread that the clock does not know waits for it"
        if self._current.is_over:
            raise RunIsOver
        return self._current

    def _pass_turn(self) -> None:
        self._current = self._next()
        self._current.turn.release()

    def _next(self) -> _Thread:
        if not self._ready:
            for one in self._waiting:
                one.was_met = one.is_met()
            if not any(one.was_met for one in self._waiting):
                self._go_on_to(min(one.until_s for one in self._waiting))
            self._ready.extend(one for one in self._waiting if self._goes_on(one))
            self._waiting = [one for one in self._waiting if one not in self._ready]
        return self._ready.popleft()

    def _go_on_to(self, instant_s: float) -> None:
        if instant_s == math.inf:
            self._problem = "everybody waits for ever"
        elif instant_s > self._give_up_s:
            self._problem = f"after {LONGEST_S:.0f} s this has not come to an end"
        else:
            self.passed_s = max(self.passed_s, instant_s)

    def _goes_on(self, one: _Thread) -> bool:
        if self._problem:
            return one is self._owner
        return one.was_met or (one.until_s <= self.passed_s and not any(other.was_met for other in self._waiting))

    def _end_others(self) -> None:
        for one in self._others:
            one.is_over = True
        waiting = [one for one in self._others if one in self._waiting]
        self._waiting = []
        self._ready.extend(waiting)
        self.wait_until(lambda: not self._others)


class _Lock:
    """A lock of which the clock knows who waits for it."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._is_taken = False

    def __enter__(self) -> None:
        self._clock.wait_until(self._take)

    def __exit__(self, *_: object) -> None:
        self._is_taken = False

    def _take(self) -> bool:
        was_taken, self._is_taken = self._is_taken, True
        return not was_taken


class _Selector(selectors.DefaultSelector):
    """The place where an event loop waits: for what other threads send it, for signals, and for its next timer."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__()
        self._clock = clock

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None or timeout > 0:
            ask = partial(super().select, 0)
            self._clock.wait_until(lambda: bool(ask()), math.inf if timeout is None else timeout)
        return super().select(0)


class _Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time. Its executor has as many threads as the one that it is given would have."""

    def __init__(self, clock: FakeClock) -> None:
        super().__init__(_Selector(clock))
        self._clock = clock
        self._calls: deque[tuple[asyncio.Future[Any], Callable[[], Any]]] = deque()
        self._busy = 0
        self._most = ThreadPoolExecutor()._max_workers

    def time(self) -> float:
        return self._clock.monotonic_s()

    def set_default_executor(self, executor: ThreadPoolExecutor) -> None:  # type: ignore[override]
        self._most = executor._max_workers

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Given], Result], *args: *Given
    ) -> asyncio.Future[Result]:
        assert executor is None, "only the default executor is in virtual time"
        answer: asyncio.Future[Result] = self.create_future()
        self._calls.append((answer, partial(func, *args)))
        self._begin_calls()
        return answer

    def _begin_calls(self) -> None:
        while self._calls and self._busy < self._most:
            answer, call = self._calls.popleft()
            if not answer.cancelled():
                self._busy += 1
                self._clock.start(self._call, answer, call)

    def _call(self, answer: asyncio.Future[Any], call: Callable[[], Any]) -> None:
        try:
            say = partial(answer.set_result, call())
        except RunIsOver:
            raise
        except BaseException as error:
            say = partial(answer.set_exception, error)
        self._busy -= 1
        with suppress(RuntimeError):  # the loop has been closed: nobody listens any more
            self.call_soon_threadsafe(lambda: None if answer.cancelled() else say())
        self._begin_calls()


if TYPE_CHECKING:
    _: type[Clock] = FakeClock
