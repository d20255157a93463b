"""Background work, with one `Loop` for each kind, and common rules for leadership and errors.

A step gets the time as an argument and starts no thread. Therefore a test or a simulation can call the same steps with
its own clock (`Loop.run_once`), while `LoopThreads` calls them with the real one.
"""

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import structlog

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.control_state import ControlState
from gleaner.control.queue.errors import NotLeading, QueueBusy, QueueError, SchemaMismatch
from gleaner.control.slurm.interface import ClusterError

JOIN_S = 3
"""The longest time to wait for the threads at the end."""

Thing = TypeVar("Thing")

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Loop:
    """One kind of background work. `step(now_s)` is called again `every_s` seconds after it has ended."""

    name: str
    every_s: float
    step: Callable[[float], object]
    leader_only: bool = True

    def run_once(self, state: ControlState, now_s: float) -> None:
        """Do one step if this program leads, and record in `state.faults` the time of the last success.

        A failure of the database, Slurm or the storage is logged once, and the next step tries again. Any other
        exception is a bug and is passed on.
        """
        if self.leader_only and not state.is_leader:
            state.faults.worked_s.pop(self.name, None)
            return
        reason = ""
        state.faults.every_s[self.name] = self.every_s
        state.faults.worked_s.setdefault(
            self.name, state.steady_clock()
        )  # so that the age of a loop that has never succeeded also grows
        try:
            self.step(now_s)
        except NotLeading as error:  # the leader's loop reports which program leads
            _log.info("this round is left to who leads", loop=self.name, reason=str(error))
        except (ClusterError, QueueError, StorageError) as error:
            reason = str(error)
            if reason != state.faults.troubles.get(self.name):
                _log.warning("this has to wait", loop=self.name, reason=reason)
        else:
            state.faults.worked_s[self.name] = state.steady_clock()
        if reason:
            state.faults.troubles[self.name] = reason
        else:
            state.faults.troubles.pop(self.name, None)


class LoopThreads:
    """A thread for each loop, so that a slow Slurm or a slow storage delays only its own loop and never ends the
    leadership.

    If a step fails because of a bug, the error is logged and the step is called again after its pause. The other loops
    continue. So a temporary cause, such as one bad record in Slurm, stops the loop only while it lasts. `/health` and
    `/metrics` show the error.
    """

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def run_once(self, loop: Loop) -> None:
        """Do one step, and pass on none of its exceptions."""
        try:
            loop.run_once(self._state, self._state.clock())
        except Exception as error:
            if self._state.faults.note(loop.name, repr(error)):
                _log.exception("a step of control has failed; it is tried again", step=loop.name)
        else:
            if self._state.faults.forget(loop.name):
                _log.info("a step of control works again", step=loop.name)

    def start(self, loop: Loop) -> None:
        """Repeat the steps in a thread until all loops are stopped."""

        def live() -> None:
            while not self._stop.is_set():
                self.run_once(loop)
                self._stop.wait(loop.every_s)

        # A daemon thread, so that a Slurm program that hangs cannot keep control from ending.
        thread = threading.Thread(target=live, name=loop.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Start no further step."""
        self._stop.set()

    def join(self) -> None:
        """Stop the loops, and wait a short time for the steps that are still running."""
        self.stop()
        for thread in self._threads:
            thread.join(JOIN_S)


def do_each(things: Iterable[Thing], do: Callable[[Thing], object]) -> None:
    """Call `do` for each thing. If it fails for one thing, the error is raised after all others are done.

    Raises `QueueBusy` (and so `NotLeading`) and `SchemaMismatch` at once, because all other calls would raise them as
    well.
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
