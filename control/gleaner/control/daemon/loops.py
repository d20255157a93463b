"""Background work: one `Loop` for each kind, with one rule for the leadership and one for errors.

A step takes the time as an argument, and no thread starts in it. So a test or a simulation calls the same steps by a
clock of its own (`Loop.run_once`), while `LoopThreads` calls them by the real one.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TypeVar

import structlog

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.control_state import ControlState
from gleaner.control.queue.errors import NotLeading, QueueBusy, QueueError, SchemaMismatch
from gleaner.control.slurm.interface import ClusterError

JOIN_S = 3
"""The time for which threads are waited for at the end, in seconds."""

Thing = TypeVar("Thing")

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Loop:
    """One kind of background work: `step(now_s)`, called again `every_s` seconds after its last end."""

    name: str
    every_s: float
    step: Callable[[float], object]
    trouble: str = "this has to wait"
    """The log line for a database, a Slurm or a storage that fails. The reason follows."""
    leader_only: bool = True
    _reason: str = field(default="", init=False)

    def run_once(self, state: ControlState, now_s: float) -> None:
        """Do one step, if this program leads, and note in `state.faults` when it was good.

        A failure of the database, of Slurm or of the storage is logged once; the next step tries again. Any other
        exception is a bug, and gets further.
        """
        if self.leader_only and not state.is_leader:
            state.faults.worked_s.pop(self.name, None)
            return
        reason = ""
        state.faults.every_s[self.name] = self.every_s
        state.faults.worked_s.setdefault(
            self.name, state.steady_clock()
        )  # the age of one that was never good grows, too
        try:
            self.step(now_s)
        except NotLeading as error:  # the leader's loop says who leads
            _log.info("this round is left to who leads", loop=self.name, reason=str(error))
        except (ClusterError, QueueError, StorageError) as error:
            reason = str(error)
            if reason != self._reason:
                _log.warning(self.trouble, loop=self.name, reason=reason)
        else:
            state.faults.worked_s[self.name] = state.steady_clock()
        if reason:
            state.faults.troubles[self.name] = reason
        else:
            state.faults.troubles.pop(self.name, None)
        self._reason = reason


class LoopThreads:
    """A thread for each loop, so that no loop waits for another: a slow Slurm or storage does not end the leadership.

    A step that fails by a bug is logged, and called again after its pause. The other loops go on, and what is wrong
    only for a while (a record of Slurm's, say) costs no more than that while. `/health` and `/metrics` show it.
    """

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run_once(self, loop: Loop) -> None:
        """Do one step. Nothing that the step raises gets further."""
        try:
            loop.run_once(self._state, self._state.clock())
        except Exception as error:
            if self._state.faults.note(loop.name, repr(error)):
                _log.exception("a step of control has failed; it is tried again", step=loop.name)
        else:
            if self._state.faults.forget(loop.name):
                _log.info("a step of control works again", step=loop.name)

    def start(self, loop: Loop) -> None:
        """Do one step after the other, until all loops are stopped."""

        def live() -> None:
            while not self._stop.is_set():
                self.run_once(loop)
                self._stop.wait(loop.every_s)

        # A daemon thread: a program of Slurm that hangs must not keep control from ending.
        thread = threading.Thread(target=live, name=loop.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Let no further step begin."""
        self._stop.set()

    def join(self) -> None:
        """Stop, and wait a little for the steps that are going on."""
        self.stop()
        for thread in self._threads:
            thread.join(JOIN_S)


def do_each(things: Iterable[Thing], do: Callable[[Thing], object]) -> None:
    """Do this for each of the things. A failure of one thing is raised when all others are done.

    Raises `QueueBusy` (and so `NotLeading`) and `SchemaMismatch` at once: they would be raised for each of the others.
    """
    errors: list[Exception] = []
    for one in things:
        try:
            do(one)
        except (QueueBusy, SchemaMismatch):
            raise
        except Exception as error:
            errors.append(error)
    if errors:
        raise ExceptionGroup(f"{len(errors)} could not be done", errors)
