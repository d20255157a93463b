"""Many trials on several cores: nothing is lost, and nothing depends on who did what when."""

import json
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.simulation.made import busy

from gleaner.control.simulation.errors import BadScenario, SimulationError
from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.settings import AgentSettings, CostSettings, SchedulerSettings
from gleaner.control.simulation.tuning.sweep import Journal, Sweep, TrialInputs, later
from gleaner.control.simulation.tuning.trial import Conditions, Outcome
from gleaner.control.simulation.tuning.variants import variation

AGENTS = AgentSettings(
    length_s=3600, shortest_slice_s=120, save=CostSettings(constant_s=60), restore=CostSettings(constant_s=30)
)


def sweep(margins_s: tuple[float, ...] = (10.0, 60.0)) -> Sweep:
    workload = busy()
    return Sweep(workload, variation(workload), Conditions(of_processors(16), SchedulerSettings(), margins_s, 0.25))


def trials(seeds: int = 3) -> list[TrialInputs]:
    lengths_s = (1800.0, 3600.0, 7200.0)
    agents = [None, *(AGENTS.model_copy(update={"length_s": length_s}) for length_s in lengths_s)]
    return [TrialInputs(seed, one) for seed in range(seeds) for one in agents]


def done(
    folder: Path, *, workers: int = 1, seeds: int = 3, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> list[Outcome]:
    with sweep().running(lambda _: Journal(folder / "journal.jsonl"), workers) as running:
        return [one for one in running.outcomes(trials(seeds), progress=progress) if one is not None]


@pytest.mark.slow
def test_one_worker_and_two_give_the_same_bytes(tmp_path: Path) -> None:
    alone, together = done(tmp_path / "one", workers=1), done(tmp_path / "two", workers=2)
    assert json.dumps(alone) == json.dumps(together)
    assert len({outcome["mean_wait_s"][0] for outcome in alone}) > 1


def test_what_the_journal_has_is_not_done_again(tmp_path: Path) -> None:
    first = done(tmp_path, seeds=1)
    seen: list[tuple[int, int]] = []
    again = done(tmp_path, seeds=2, progress=lambda *counts: seen.append(counts))
    assert again[: len(first)] == first
    assert seen[0] == (4, 8)
    assert seen[-1] == (8, 8)


def test_other_inputs_have_other_keys() -> None:
    assert sweep().digest() == sweep().digest()
    assert sweep().digest() != sweep(margins_s=(10.0,)).digest()


@pytest.mark.slow
def test_what_a_trial_refuses_is_refused_with_its_own_words(tmp_path: Path) -> None:
    workload = busy()
    small = Sweep(workload, variation(workload), Conditions(of_processors(4), SchedulerSettings(), (10.0,), 0.25))
    with (
        small.running(lambda _: Journal(tmp_path / "journal.jsonl"), workers=2) as running,
        pytest.raises(BadScenario, match="jobs are larger than the machine"),
    ):
        running.outcomes(trials(1))


@pytest.mark.slow
def test_a_worker_that_is_killed_is_one_clear_line_and_loses_nothing(tmp_path: Path) -> None:
    def kill_one(finished: int, _all: int) -> None:
        if finished == 2:
            children = multiprocessing.active_children()
            os.kill(children[0].pid or 0, signal.SIGKILL)

    with pytest.raises(SimulationError, match="a worker was killed"):
        done(tmp_path, workers=2, seeds=20, progress=kill_one)
    with Journal(tmp_path / "journal.jsonl") as journal:
        assert len(journal.outcomes) >= 2
    assert done(tmp_path, seeds=1) == done(tmp_path / "fresh", seeds=1)


@pytest.mark.slow
def test_workers_are_given_few_tasks_ahead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C waits until they are: to hand out 84,000 trials at once took half a minute on a busy machine."""
    given = 0
    submit = ProcessPoolExecutor.submit

    def counted(*args: Any, **kwargs: Any) -> Future[Any]:
        nonlocal given
        given += 1
        return submit(*args, **kwargs)

    def at_first(finished: int, _all: int) -> None:
        if finished:
            raise KeyboardInterrupt

    monkeypatch.setattr(ProcessPoolExecutor, "submit", counted)
    with pytest.raises(KeyboardInterrupt):
        done(tmp_path, workers=2, seeds=100, progress=at_first)
    assert 0 < given < 100


@pytest.mark.slow
def test_no_thread_of_the_workers_is_left_after_ctrl_c(tmp_path: Path) -> None:
    """One that ends together with Python writes into a pipe that is closed, and prints the error after our line."""

    def at_once(_finished: int, _all: int) -> None:
        if set(threading.enumerate()) - before:
            raise KeyboardInterrupt

    before = set(threading.enumerate())
    with pytest.raises(KeyboardInterrupt):
        done(tmp_path, workers=2, seeds=100, progress=at_once)
    assert set(threading.enumerate()) <= before


SWEEPER = """
import sys
from pathlib import Path
from tests.simulation.test_sweep import done
if __name__ == "__main__":
    done(Path(sys.argv[1]), workers=2, seeds=200, progress=lambda *counts: print(*counts, flush=True))
"""


@pytest.mark.slow
def test_a_sweep_that_is_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    script = tmp_path / "sweeper.py"
    script.write_text(SWEEPER)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, str(script), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as sweeper:
        assert sweeper.stdout is not None
        counts = [sweeper.stdout.readline().split() for _ in range(6)][-1]
        workers = _children(sweeper.pid)
        os.kill(sweeper.pid, signal.SIGKILL)
    assert int(counts[0]) < int(counts[1]) == 800
    seen: list[int] = []
    resumed = done(tmp_path, seeds=10, progress=lambda finished, _all: seen.append(finished))
    assert seen[0] >= 5
    assert resumed == done(tmp_path / "fresh", seeds=10)
    assert _gone(workers)


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in listed.split()]


def _gone(pids: list[int]) -> bool:
    """Return True if all these processes end without anybody's help."""
    assert len(pids) >= 2
    until_s = time.monotonic() + 200
    while any(_runs(pid) for pid in pids):
        if time.monotonic() > until_s:
            return False
        time.sleep(0.05)
    return True


def _runs(pid: int) -> bool:
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_signal_waits_although_another_thread_takes_it() -> None:
    over = threading.Event()
    other = threading.Thread(target=over.wait)  # it blocks no signal, as those of numerical libraries
    other.start()
    steps: list[str] = []
    caught, written = socket.socketpair()
    caught.settimeout(60)
    written.setblocking(False)
    before = signal.set_wakeup_fd(written.fileno())
    try:
        with pytest.raises(KeyboardInterrupt):
            with later(signal.SIGINT):
                os.kill(os.getpid(), signal.SIGINT)
                assert caught.recv(1)[0] == signal.SIGINT  # Python has it now, and runs the handler
                steps.append("the end of the block")
            steps.append("after it")
    finally:
        signal.set_wakeup_fd(before)
        caught.close()
        written.close()
        over.set()
        other.join()
    assert steps == ["the end of the block"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
