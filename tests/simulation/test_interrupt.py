"""Ctrl-C while compiled code runs is Ctrl-C, and nothing else."""

import signal
import time
from collections.abc import Generator
from contextlib import contextmanager

import numpy as np
import pytest
from tests.simulation.made import busy

from gleaner.control.simulation.model import of_processors
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings


@contextmanager
def ctrl_c_after(delay_s: float) -> Generator[None]:
    """Do to the program, by an alarm, what Ctrl-C does."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, delay_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.slow
def test_a_replay_that_is_interrupted_says_so() -> None:
    workload = busy(jobs=200_000, days=2000, processors=16)
    replay(workload.only(np.arange(100)), of_processors(16), SchedulerSettings())  # compiled before the clock runs
    started_s = time.perf_counter()
    replay(workload, of_processors(16), SchedulerSettings())
    whole_s = time.perf_counter() - started_s
    for part in np.linspace(0.1, 0.9, 9):
        with pytest.raises(KeyboardInterrupt), ctrl_c_after(part * whole_s):
            for _ in range(100):  # whatever else the machine does meanwhile, one of them is interrupted
                replay(workload, of_processors(16), SchedulerSettings())
