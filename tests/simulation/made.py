"""Workloads that tests make."""

import numpy as np
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import Workload


def busy(jobs: int = 400, *, seed: int = 1, days: float = 30, processors: int = 16) -> Workload:
    """Jobs of 1 to 8 processors, some hours long, that come at random and keep 16 processors fairly busy."""
    chance = np.random.Generator(np.random.PCG64(seed))
    submit_s = np.sort(np.floor(chance.uniform(0, days * 86400, jobs)))
    size = np.asarray(2 ** chance.integers(0, 4, jobs), dtype=np.int64)
    work_s = 0.75 * processors * days * 86400 / jobs
    run_s = np.maximum(1, np.floor(chance.exponential(work_s / 4, jobs)))
    return workload_of(zip(submit_s, run_s, run_s * 2, size, strict=True), "busy")
