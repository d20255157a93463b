"""Replays of the real Slurm, made up: what it would have written down, and what is said of it."""

import numpy as np

from gleaner.control.simulation.model import Workload, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.lab.real_slurm.explain import Reason, SlurmFacts, judge, reasons
from gleaner.lab.real_slurm.record import Pass, Record

MACHINE = of_nodes(4)
FULL, WIDE = (0, 3, 100, 600), (1, 4, 100, 600)
"""The second waits for the first."""


def workload(*jobs: tuple[int, int, int, int]) -> Workload:
    """Each with its submission, nodes, run time and limit."""
    submit_s, nodes, run_s, limit_s = (np.array(column) for column in zip(*jobs, strict=True))
    codes = np.zeros(len(jobs), np.int32)
    return Workload(
        name="by hand",
        job=np.arange(1, len(jobs) + 1),
        submit_s=submit_s.astype(float),
        run_s=run_s.astype(float),
        limit_s=limit_s.astype(float),
        processors=nodes.astype(np.int64),
        memory_mib=np.zeros(len(jobs)),
        user=codes,
        group=codes,
        job_class=np.zeros(len(jobs), np.int8),
    )


def really(
    told: Workload,
    *start_s: float,
    submit_s: tuple[float, ...] = (),
    backfilled: tuple[int, ...] = (),
    nodes: tuple[set[int], ...] = (),
    plan: tuple[float, set[int]] = (float("nan"), set()),
) -> Record:
    """Return Slurm's record had it started the jobs at these times. Each pass plans the same."""
    starts = np.array(start_s, float)
    return Record(
        offset_s=0,
        submit_s=np.array(submit_s) if submit_s else told.submit_s,
        start_s=starts,
        end_s=starts + told.run_s,
        by_backfill=np.isin(np.arange(len(told)), np.array(backfilled, int)),
        nodes=tuple(map(frozenset, nodes)) or tuple(frozenset(range(1, size + 1)) for size in told.processors),
        passes=tuple(Pass(float(at_s), plan[0], frozenset(plan[1])) for at_s in np.arange(27.25, 3000, 30)),
    )


def why(told: Workload, real: Record) -> list[Reason]:
    simulated = replay(told, MACHINE, SchedulerSettings())
    return reasons(told, simulated.start_s, judge(told, MACHINE, real), real, SlurmFacts(nodes=4))
