"""`glean run`: a user's own Slurm job, whose container is saved and goes on wherever Slurm starts the job again.

The shell around `agent.task` for one job: it does what the task says, one thing after the other, in the main thread.
Nobody is reported to. What Slurm has to know it is told as the job's owner.
"""

import math
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeAlias, assert_never

from gleaner.agent import folder, task
from gleaner.agent.beginning import begun
from gleaner.agent.durable import sync_folder, sync_tree
from gleaner.agent.estimates import Estimates, Load
from gleaner.agent.exits import exit_of
from gleaner.agent.joblog import Mark
from gleaner.agent.own_job.batch import Batch, NotRequeued
from gleaner.agent.own_job.kept import Kept
from gleaner.agent.own_job.moments import Plan, Wish, by_clock, by_signal, is_governed, was_asked_before
from gleaner.agent.periods import early_save_s
from gleaner.agent.protocol import Generation, Way, Why
from gleaner.agent.runtime.protocol import (
    CannotCheckpoint,
    ContainerExited,
    ContainerId,
    ContainerSpec,
    Runtime,
    RuntimeFault,
)
from gleaner.agent.storage.protocol import StorageError
from gleaner.agent.stored import NOTHING, Stored
from gleaner.agent.times import elapsed_s

FAILED = 1
ENDED = 128 + signal.SIGTERM
_TICK_S = 1.0
_AGAIN_S = 2.0
"""Between two tries to save it."""
_WEIGH_EVERY_S = 10.0
_ASK_EVERY_S = 60.0
_QUIET_S = 0.3
_QUIET_WITHIN_S = 3.0
_LAST_WORDS_S = 5.0
_REQUEUE_WITHIN_S = 10.0
_KILLED_WITHIN_S = 120.0
"""After it was requeued, Slurm ends our process; if it has not by then, we go by ourselves."""
_STREAMS = {1: sys.stdout, 2: sys.stderr}

Happened = int | task.Exited | task.Lost
"""A signal's number, or how the process ended."""
Happenings: TypeAlias = "queue.SimpleQueue[Happened]"


def listening() -> Happenings:
    """From now on signals are heard, and not obeyed by dying."""
    heard: Happenings = queue.SimpleQueue()
    for number in (signal.SIGUSR1, signal.SIGTERM):
        signal.signal(number, lambda number, _: heard.put(number))
    return heard


def say(line: str) -> None:
    """One line for the job's owner."""
    sys.stderr.write(f"glean run: {line}\n")
    sys.stderr.flush()


class Output:
    """What the container writes, on our own standard streams, as it comes."""

    def __init__(self, chunks: Iterator[tuple[int, bytes]]) -> None:
        self._chunks = chunks
        self._heard_s = time.monotonic()
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        try:
            for stream, content in self._chunks:
                sink = _STREAMS[stream].buffer
                sink.write(content)
                sink.flush()
                if content:
                    self._heard_s = time.monotonic()
        except (RuntimeFault, OSError, ValueError) as error:
            say(f"its output cannot be passed on any more: {error}")

    def drain(self) -> None:
        """Of a paused container: until all that it wrote before has come through."""
        give_up_s = time.monotonic() + _QUIET_WITHIN_S
        since_s = time.monotonic()
        while (now_s := time.monotonic()) < give_up_s and now_s < max(self._heard_s, since_s) + _QUIET_S:
            time.sleep(0.05)

    def finish(self) -> None:
        """Of an ended container: until the rest is out."""
        self._thread.join(_LAST_WORDS_S)


@dataclass(slots=True)
class OwnJob:
    """One start of one job, from its container's to its end."""

    batch: Batch
    runtime: Runtime
    stored: Stored
    kept: Kept
    spec: ContainerSpec
    plan: Plan
    results: Path
    begin_with: Path | None
    happened: Happenings
    readmit: Callable[[], object] = lambda: None
    """The node's helper makes the job's folder, and takes it away with a container that came to nothing."""
    exit_code: int = FAILED
    state: task.Task = field(default_factory=task.Preparing)
    _estimates: Estimates = field(default_factory=lambda: Estimates(Way.CRIU, at_once=1))
    _output: Output | None = None
    _load: Load = field(default_factory=lambda: Load(0, Way.CRIU))
    _weighed_s: float = 0.0
    _asked_s: float = field(default_factory=time.time)
    _since_s: float = 0.0
    """When it was last tried to save it, or else when it began to compute."""
    _wish: Wish | None = None
    """What it is being saved for."""
    _is_requeued: bool = False

    def run(self) -> int:
        """See it through; the workload's exit code, if it comes to one."""
        begun_with = self._begun()
        self._hear_what_was_missed()
        self._notice()
        self._follow(begun_with)
        while not isinstance(self.state, task.Ended):
            self._turn()
        if self._is_requeued:
            self._wait_for_the_end()
        return self.exit_code

    def _begun(self) -> task.Started | task.NotStarted:
        """Started, or restored from the newest generation that can be read here.

        One that cannot is set aside once an older one has been restored. If none can be read it may be the node's
        fault: all of them stay as they are, and nothing begins anew.
        """
        broken: list[tuple[Generation, str]] = []
        while True:
            found = begun(self.runtime, self.spec, self.stored, fill=self._fill)
            used = self.stored.assignment.generation
            if used is None or not isinstance(found, task.NotStarted) or found.why is not Why.GENERATION_BROKEN:
                break
            before = self.kept.before(used)
            if before is None:
                say(f"nothing that was saved can be read on this node; if no other can: rm {self.kept.record}")
                break
            broken.append((used, found.detail))
            self._try(self.readmit, "cannot go on from what was saved before that")
            given = self.stored.assignment.model_copy(update={"generation": before})
            self.stored = Stored(self.stored.storage, given, self.stored.node, self.stored.folder)
        for one, detail in broken if isinstance(found, task.Started) else ():
            self.kept.drop(one)
            say(f"what was saved last is broken, and set aside: {detail}")
        if isinstance(found, task.Started):
            self._since_s = time.time()
            if used is not None:
                say(f"goes on from what was saved, after {elapsed_s(self.plan.began_s):.1f} s")
            self._output = Output(iter(self.runtime.logs(found.container)))
            threading.Thread(target=self._await_exit, args=(found.container,), daemon=True).start()
        return found

    def _fill(self, place: Path) -> None:
        if self.begin_with is not None:
            folder.unpack(folder.pack(self.begin_with), place)

    def _await_exit(self, container: ContainerId) -> None:
        found = exit_of(self.runtime, container)
        if isinstance(found, task.Exited | task.Lost):
            self.happened.put(found)

    # ── what happens ──

    def _turn(self) -> None:
        try:
            happened = self.happened.get(timeout=_TICK_S)
        except queue.Empty:
            wish = self._by_clock()
        else:
            if not isinstance(happened, int):
                self._follow(happened)
                return
            wish = self._by_signal(happened)
        if wish is not None:
            self._obey(wish)

    def _obey(self, wish: Wish) -> None:
        self._wish = wish
        if wish is Wish.SAVE:
            self._follow(task.SaveDue())
        elif wish is Wish.END:
            say("the job was cancelled")
            self.exit_code = ENDED
            self._clear()
            self._follow(task.DropAsked())
        else:
            self._follow(task.VacateAsked())

    def _follow(self, event: task.Event) -> None:
        """Tell the task what happened, do what it says, and so on."""
        happened = [event]
        while happened:
            self.state, todos = task.step(self.state, happened.pop(0))
            if isinstance(self.state, task.Running):  # a job of one's own may be asked to leave any number of times
                self.state = replace(self.state, failed_saves=0)
            happened += [then for todo in todos if (then := self._do(todo)) is not None]

    def _hear_what_was_missed(self) -> None:
        """A signal that Slurm sent before there was a step of ours is gone; what Gleaner has written down stays."""
        if self.happened.empty() and (job := self.batch.look()) is not None and was_asked_before(job):
            self.happened.put(signal.SIGUSR1)

    def _notice(self) -> None:
        """Signals that came while something was being done: a save that was to go on becomes the last one."""
        others: list[Happened] = []
        with suppress(queue.Empty):
            while True:
                happened = self.happened.get_nowait()
                wish = self._by_signal(happened) if isinstance(happened, int) else None
                if wish in (Wish.LEAVE, Wish.LEAVE_REQUEUED):
                    self._wish = wish
                    self.state, _ = task.step(self.state, task.VacateAsked())
                else:
                    others.append(happened)
        for happened in others:
            self.happened.put(happened)

    def _by_signal(self, number: int) -> Wish:
        job = self.batch.look()
        if job is not None:
            self.plan = replace(self.plan, end_s=job.end_s)  # a job that is preempted ends after its grace time
        return by_signal(number, job)

    def _by_clock(self) -> Wish | None:
        now_s = time.time()
        if not isinstance(self.state, task.Running):
            return None
        if now_s >= self._asked_s + _ASK_EVERY_S:
            self._asked_s = now_s
            if (job := self.batch.look()) is not None:
                self.plan = replace(self.plan, end_s=job.end_s)
        if now_s >= self._weighed_s + _WEIGH_EVERY_S:
            self._weigh(self.state.container)
        save_s = self._estimates.all_s([self._load])
        wish = by_clock(self.plan, now_s=now_s, since_s=self._since_s, save_s=save_s)
        if wish is None and self.stored.is_to_begin_chain:  # at the end it may take too long to write all there is
            is_due = now_s >= early_save_s(self._since_s, gone_s=self.plan.end_s or math.inf)
            wish = Wish.SAVE if is_due else None
        return None if now_s < self._since_s + _AGAIN_S else wish

    # ── what the task says ──

    def _do(self, todo: task.Todo) -> task.Event | None:
        match todo:
            case task.Save(container):
                return self._save(container)
            case task.GoOn(container):
                self._try(lambda: self.runtime.unpause(container), "cannot let it go on")
            case task.Finish(_, exit_code):
                self._finish(exit_code)
                return task.Finished()
            case task.Kill(container):
                self._try(lambda: self.runtime.kill(container), "cannot kill the container; Slurm's Epilog will")
                if self._output is not None:
                    self._output.finish()
            case task.Clean():
                name = ContainerId(self.spec.name)
                self._try(lambda: self.runtime.remove(name), "cannot remove the container; Slurm's Epilog will")
            case task.ReportUnstartable(exit_code, reason):
                say(reason)
                self.exit_code = exit_code
                self._clear()
            case task.GiveBack(why, detail):
                self._give_back(why, detail)
            case (
                task.ReportSaved()
                | task.ReportCheckpointed()
                | task.ReportStopped()
                | task.Signal()
                | task.StoreFolder()
            ):
                pass
            case _:
                assert_never(todo)
        return None

    def _save(self, container: ContainerId) -> task.SaveDone | task.SaveFailed:
        """Pause, save, and if it is to leave, have Slurm requeue the job: only then is the container killed."""
        began_s = time.time()
        try:
            self._weigh(container)
            self.runtime.pause(container)
            at_the_end = self._wish is not Wish.SAVE
            saved = self.stored.save_memory(self.runtime, container, self._mark, at_the_end=at_the_end)
            self.kept.note(saved.generation)
            took_s = elapsed_s(began_s)
            if self._estimates.is_telling(self._load.way, wrote_all=saved.wrote_all):
                self._estimates.note(self._load, at_once=1, took_s=took_s)
            self._notice()
            if self._wish is Wish.SAVE:
                say(f"saved in {took_s:.1f} s; it goes on")
            else:
                self._requeue(f"saved in {took_s:.1f} s")
            return task.SaveDone(saved.generation)
        except ContainerExited as error:
            return task.SaveFailed(str(error))
        except NotRequeued as error:
            say(f"saved, but it goes on here: {error}")
            return task.SaveFailed(str(error))
        except (CannotCheckpoint, StorageError, RuntimeFault, OSError) as error:
            say(f"cannot be saved, and goes on: {error}")
            return task.SaveFailed(str(error))
        finally:
            self._since_s = time.time()

    def _mark(self) -> Mark:
        if self._output is not None:
            self._output.drain()
        return NOTHING

    def _requeue(self, what: str, *, held: bool = False) -> None:
        """Raises `NotRequeued`."""
        if self._wish is Wish.LEAVE_REQUEUED:
            say(f"{what}; the job has been requeued")
        else:
            held = held or is_governed(self.batch.look())
            self.batch.requeue(held=held, within_s=_REQUEUE_WITHIN_S)
            say(f"{what}; the job is requeued" + (", held" if held else ""))
        self._is_requeued = True

    def _give_back(self, why: Why, detail: str) -> None:
        """Nothing came of this start. What was saved before stays."""
        number = self.batch.number
        try:
            if why is Why.UNSTARTED:
                self._requeue("it was not begun")
                return
            say(detail)
            if why is Why.INCOMPATIBLE:
                self._requeue(
                    f"choose other nodes (scontrol update JobId={number} ExcNodeList={self.stored.node.node}), then "
                    f"scontrol release {number}",
                    held=True,
                )
                return
        except NotRequeued as error:
            say(str(error))
        if self.stored.assignment.generation is not None:
            say(f"what was saved is still there: scontrol requeue {number} lets it go on from that")

    def _finish(self, exit_code: int) -> None:
        """Deliver what it has left in its folder."""
        self.exit_code = exit_code
        try:
            deliver(self.stored.folder, self.results)
        except OSError as error:
            self.exit_code = exit_code or FAILED
            say(f"its files cannot be put into {self.results}: {error}")
            say(f"what was saved last stays: scontrol requeue {self.batch.number} lets it go on from that")
            return
        self._clear()

    def _clear(self) -> None:
        try:
            self.kept.clear()
        except StorageError as error:
            say(f"what was saved cannot be removed: {error}")

    def _weigh(self, container: ContainerId) -> None:
        self._weighed_s = time.time()
        with suppress(RuntimeFault):
            for used in self.runtime.usage([container]).values():
                self._load = Load(used.memory_bytes, Way.CRIU)

    def _try(self, act: Callable[[], object], otherwise: str) -> None:
        try:
            act()
        except RuntimeFault as error:
            say(f"{otherwise}: {error}")

    def _wait_for_the_end(self) -> None:
        """Until Slurm says so: what comes after us in the job's script is not to run now."""
        with suppress(queue.Empty):
            self.happened.get(timeout=_KILLED_WITHIN_S)
        self.exit_code = ENDED


def deliver(place: Path, results: Path) -> None:
    """Copy a job's folder to where its owner wants it; seen there whole or not at all. Nothing for an empty one."""
    if not any(place.iterdir()):
        return
    draft = results.with_name(f".{results.name}.new")
    draft.mkdir(exist_ok=True)
    folder.unpack(folder.pack(place), draft)
    sync_tree(draft)  # what was saved goes when this is done, and these files are all that is left then
    draft.rename(results)
    with suppress(PermissionError):  # a folder that its owner may write in and not list
        sync_folder(results.parent)
