"""Workloads that tests make."""

import numpy as np

from gleaner.control.simulation.model import Workload


def busy(jobs: int = 400, *, seed: int = 1, days: float = 30, processors: int = 16) -> Workload:
    """Jobs of 1 to 8 processors, some hours long, that come at random and keep 16 processors fairly busy."""
    chance = np.random.Generator(np.random.PCG64(seed))
    submit_s = np.sort(np.floor(chance.uniform(0, days * 86400, jobs)))
    size = np.asarray(2 ** chance.integers(0, 4, jobs), dtype=np.int64)
    work_s = 0.75 * processors * days * 86400 / jobs
    run_s = np.maximum(1, np.floor(chance.exponential(work_s / 4, jobs)))
    codes = np.zeros(jobs, np.int32)
    return Workload(
        name="busy",
        job=np.arange(1, jobs + 1),
        submit_s=submit_s,
        run_s=run_s,
        limit_s=run_s * 2,
        processors=size,
        memory_mib=np.zeros(jobs),
        user=codes,
        group=codes,
        job_class=np.zeros(jobs, np.int8),
    )


def by_hand(*jobs: tuple[int, int, int, int]) -> Workload:
    """Return a workload of these jobs: submission, nodes, run time and limit of each."""
    submit_s, nodes, run_s, limit_s = (np.array(column, float) for column in zip(*jobs, strict=True))
    codes = np.zeros(len(jobs), np.int32)
    return Workload(
        name="by hand",
        job=np.arange(1, len(jobs) + 1),
        submit_s=submit_s,
        run_s=run_s,
        limit_s=limit_s,
        processors=nodes.astype(np.int64),
        memory_mib=np.zeros(len(jobs)),
        user=codes,
        group=codes,
        job_class=np.zeros(len(jobs), np.int8),
    )
