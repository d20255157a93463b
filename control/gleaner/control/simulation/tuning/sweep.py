"""Many trials on all cores: what is done is kept in a journal, and the same inputs give the same outcomes.

Workers are processes of their own. They map the workload from disk and make a seed's variant themselves, so that a
trial is a few numbers. Trials of one seed come one after the other. Outcomes are told apart by key, never by the order
in which they come, so the number of workers changes nothing.

The journal is on disk: one line of JSON for each outcome, appended as it comes. A sweep that is interrupted or killed
keeps all lines, except perhaps the line that it was writing. That line has no line end, and is removed when the journal
is opened again. A line's key is made of everything on which its outcome depends, so an outcome of other inputs, or of
another version of the simulator, is never taken for an answer.
"""

import fcntl
import hashlib
import json
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, fields, replace
from functools import lru_cache
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.model import Schedule, Workload
from gleaner.control.simulation.settings import AgentSettings
from gleaner.control.simulation.tuning.trial import Conditions, Outcome, figures, trial, trial_without
from gleaner.control.simulation.tuning.variants import Variation, variant


class BadState(SimulationError):
    """The error for a sweep's folder or journal that cannot be used."""


def key_of(**parts: object) -> str:
    """Return the name of these inputs. Equal values give equal names, in whatever order the inputs are given.

    >>> key_of(a=1, b=[2.5]) == key_of(b=[2.5], a=1), key_of(a=1) == key_of(a=2)
    (True, False)
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """The outcomes of one sweep by key. One process writes the journal; a second process is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise BadState(f"{path}: cannot be written ({error.strerror}); --state names another folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.outcomes = self._read()
        except BlockingIOError as error:
            self._file.close()
            raise BadState(
                f"{path}: the same sweep is running already; wait for it, or name another --state"
            ) from error
        except BaseException:
            self._file.close()
            raise

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep one more outcome. It is on its way to the disk afterwards, whatever becomes of the process.

        Raise `BadState` if the journal cannot be written.
        """
        line = json.dumps({"key": key, "outcome": outcome}, separators=(",", ":"), allow_nan=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise BadState(f"{self.path}: cannot be written ({error.strerror})") from error
        self.outcomes[key] = outcome

    def _read(self) -> dict[str, Outcome]:
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # a sweep was killed while it wrote this line
            os.truncate(self._file.fileno(), whole)
        outcomes: dict[str, Outcome] = {}
        for number, line in enumerate(text[:whole].splitlines(), start=1):
            try:
                entry = cast("Mapping[str, object]", json.loads(line))
                outcomes[str(entry["key"])] = _outcome(entry["outcome"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadState(f"{self.path}, line {number}: not an outcome of a sweep; remove the file") from error
        return outcomes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _outcome(value: object) -> Outcome:
    """Return the value as an outcome. Raise Python's own errors if the value is no outcome."""
    figures = cast("Outcome", value)
    return {name: [float(one) for one in found] for name, found in figures.items()}


_AHEAD = 16
"""The number of trials per worker that are handed out at once: few, since Ctrl-C waits until they are handed out."""
_LOOK_S = 0.5
"""The longest time until Ctrl-C is heard while workers compute."""


@dataclass(frozen=True, slots=True)
class TrialInputs:
    """The inputs of one trial: the seed of its variant of the workload, and its agents (None: no agents)."""

    seed: int
    agents: AgentSettings | None


@dataclass(frozen=True, slots=True)
class Sweep:
    """The inputs that all trials of a sweep share."""

    workload: Workload
    how: Variation
    conditions: Conditions

    def digest(self) -> str:
        """Return a digest that names all inputs and the program that works with them."""
        sums = hashlib.sha256()
        for name, array in sorted(_arrays(self.workload).items()):
            sums.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return key_of(
            workload=sums.hexdigest(),
            users=self.workload.users,
            groups=self.workload.groups,
            how=asdict(replace(self.how, made=None)),
            made=None if self.how.made is None else self.how.made.model_dump(mode="json"),
            machine=asdict(self.conditions.machine),
            scheduler=self.conditions.scheduler.model_dump(mode="json"),
            margins_s=self.conditions.margins_s,
            save_spread=self.conditions.save_spread,
            program=_program(),
        )

    @contextmanager
    def running(self, journal: Callable[[str], Journal], workers: int) -> Generator["Trials"]:
        """Yield trials that can be run, on this many processes. `journal` opens the journal of this digest.

        Raise `BadState`. Whatever ends the block, what is done is kept.
        """
        digest = self.digest()
        with journal(digest) as kept, tempfile.TemporaryDirectory(prefix="gleaner-tune-") as folder:
            trials = Trials(self, digest, kept, folder, workers)
            with trials.workers:
                yield trials


class Trials:
    """The trials of a sweep while it runs. Workers start when there is something to do, and serve until the end."""

    def __init__(self, sweep: Sweep, digest: str, journal: Journal, folder: str, count: int) -> None:
        self._sweep, self._digest, self._journal, self._folder, self._count = sweep, digest, journal, folder, count
        self.workers = ExitStack()
        self._pool: ProcessPoolExecutor | None = None
        self._is_stored = False

    def outcomes(
        self,
        trials: Sequence[TrialInputs],
        *,
        is_over: Callable[[], bool] = lambda: False,
        progress: Callable[[int, int], None] = lambda _done, _all: None,
    ) -> list[Outcome | None]:
        """Return the outcome of each trial, in their order. A trial whose outcome the journal has is not done again.

        When `is_over` returns True, no further trial begins; those that were not done are None. `progress` is told how
        many trials are done, of how many. Raise what a trial raises, `BadState`, and KeyboardInterrupt at once.
        """
        kept = self._journal.outcomes
        keys = [_key(self._digest, inputs) for inputs in trials]
        missing = {key: inputs for key, inputs in zip(keys, trials, strict=True) if key not in kept}
        whole = len(set(keys))
        done = whole - len(missing)
        progress(done, whole)
        for key, outcome in self._run(missing, is_over):
            self._journal.add(key, outcome)
            done += 1
            progress(done, whole)
        return [kept.get(key) for key in keys]

    def _run(self, trials: dict[str, TrialInputs], is_over: Callable[[], bool]) -> Generator[tuple[str, Outcome]]:
        if not trials:
            return
        if not self._is_stored:
            _store(self._sweep, Path(self._folder))
            self._is_stored = True
        if self._count == 1:
            for key, inputs in trials.items():
                if is_over():
                    return
                yield key, _perform(self._folder, inputs)
            return
        if self._pool is None:
            self._pool = self.workers.enter_context(_processes(self._count))
        yield from self._on(self._pool, trials, is_over)

    def _on(
        self, pool: ProcessPoolExecutor, trials: dict[str, TrialInputs], is_over: Callable[[], bool]
    ) -> Generator[tuple[str, Outcome]]:
        rest_of_them, running = iter(trials.items()), dict[Future[Outcome], str]()
        try:
            while True:
                if is_over():
                    rest_of_them = iter(())
                    running = {future: key for future, key in running.items() if not future.cancel()}
                # Workers start here, and inherit that. And an interrupt within the pool's own calls would leave its
                # locks held, so that its thread could never end.
                with later(signal.SIGINT):
                    for key, inputs in islice(rest_of_them, _AHEAD * self._count - len(running)):
                        running[pool.submit(_perform, self._folder, inputs)] = key
                    ended = wait(running, timeout=_LOOK_S, return_when=FIRST_COMPLETED).done
                for future in ended:
                    yield running.pop(future), future.result()
                if not running:
                    return
        except BrokenProcessPool as error:
            raise SimulationError(
                "a worker was killed, perhaps for want of memory; what is done is kept: try fewer --workers"
            ) from error


def default_workers() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


@contextmanager
def _processes(workers: int) -> Generator[ProcessPoolExecutor]:
    """Yield a pool whose processes end at once when the block is left early, and when this process is killed."""
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn"), initializer=_begin)
    try:
        yield pool
    except BaseException:
        for process in set(multiprocessing.active_children()) - others:
            process.terminate()
        raise
    finally:  # the pool's thread has ended after this: a thread that ends together with Python may print an error
        pool.shutdown(cancel_futures=True)


@contextmanager
def later(number: signal.Signals) -> Generator[None]:
    """Hold a signal back until the end of the block. A process that is started in the block never gets the signal.

    To block the signal in this thread is not enough for this process: any other thread, a library's too, may get it.
    """
    heard: list[int] = []
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    handler = signal.signal(number, lambda number, _frame: heard.append(number))
    try:
        yield
    finally:
        signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if heard:
            signal.raise_signal(number)


def _begin() -> None:
    """Prepare a new worker: it ignores Ctrl-C, which its parent handles, and ends when its parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _perform(folder: str, inputs: TrialInputs) -> Outcome:
    sweep, (workload, without) = _stored(folder), _seed(folder, inputs.seed)
    if inputs.agents is None:
        return figures(without, sweep.conditions, None)
    return trial(workload, sweep.conditions, inputs.agents, without)


@lru_cache(maxsize=1)
def _seed(folder: str, seed: int) -> tuple[Workload, Schedule]:
    """Return a seed's variant of the workload, and its replay without agents, with which each trial is compared."""
    sweep = _stored(folder)
    workload = variant(sweep.workload, sweep.conditions.machine, sweep.how, seed)
    return workload, trial_without(workload, sweep.conditions)


@lru_cache(maxsize=1)
def _stored(folder: str) -> Sweep:
    arrays: dict[str, Any] = {
        path.stem: np.load(path, mmap_mode="r", allow_pickle=False) for path in Path(folder).glob("*.npy")
    }
    sweep: Sweep = pickle.loads((Path(folder) / "sweep.pickle").read_bytes())  # noqa: S301 - only this user can write there
    return replace(sweep, workload=replace(sweep.workload, **arrays))


def _store(sweep: Sweep, folder: Path) -> None:
    """Store the sweep for the workers; the workload's arrays are files that all workers map as one copy."""
    arrays = _arrays(sweep.workload)
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array, allow_pickle=False)
    bare = sweep.workload.only(np.zeros(0, np.int64))
    (folder / "sweep.pickle").write_bytes(pickle.dumps(replace(sweep, workload=bare)))


def _arrays(workload: Workload) -> dict[str, NDArray[np.generic]]:
    values = {f.name: getattr(workload, f.name) for f in fields(workload)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _key(digest: str, inputs: TrialInputs) -> str:
    agents = None if inputs.agents is None else inputs.agents.model_dump(mode="json")
    return key_of(sweep=digest, seed=inputs.seed, agents=agents)


def _program() -> str:
    """Return a digest of the code that computes outcomes.

    A version number would not do, since it does not change while somebody works on the code.
    """
    here = Path(__file__).parents[1]
    sums = hashlib.sha256()
    for folder in (here, here.parent / "policy"):
        for path in sorted(folder.rglob("*.py")):
            sums.update(path.read_bytes())
    return sums.hexdigest()
