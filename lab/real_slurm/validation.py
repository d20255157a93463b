"""One workload, replayed by us and several times by the real Slurm, and the differences between the starts."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.model import Machine, Schedule, Seconds, Workload
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings
from lab.real_slurm import world
from lab.real_slurm.configuration import CGROUP_CONF, SlurmSettings, slurm_conf
from lab.real_slurm.record import Record, record
from lab.real_slurm.workloads import as_slurm_has_it

_PATIENCE_S = 30
"""The real seconds within which a Slurm program must answer."""
_LEAD_S = 10
"""The minimum time from Slurm's start to the first submission, in Slurm's seconds."""


@dataclass(frozen=True, slots=True)
class ValidationPlan:
    """The plan for the replays by the real Slurm."""

    speed: float = 60
    offsets: int = 2
    """The number of points in the backfilling cycle at which replays begin, as far apart as possible."""
    repeats: int = 2
    """The number of replays at each point."""
    interval_s: int = 30
    resolution_s: int = 60

    @property
    def offsets_s(self) -> tuple[float, ...]:
        """Return the offset of each replay in the backfilling cycle."""
        return tuple(
            self.interval_s * place / self.offsets for place in range(self.offsets) for _ in range(self.repeats)
        )


@dataclass(frozen=True, slots=True)
class Validation:
    """The results of a validation. Arrays have one entry per job, or one row per replay and one column per job."""

    workload: Workload
    machine: Machine
    plan: ValidationPlan
    simulated: Schedule
    records: tuple[Record, ...]
    moved_by_limits: float
    """The share of jobs whose start in our replay changes if limits are whole minutes, as in Slurm."""

    @property
    def starts_s(self) -> NDArray[np.float64]:
        return np.array([one.start_s for one in self.records])

    @property
    def difference_s(self) -> Seconds:
        """Return how much later each job started in Slurm than in our replay, as the median over the real replays."""
        return np.asarray(np.median(self.starts_s, axis=0) - self.simulated.start_s)

    def spread_s(self) -> Seconds:
        """Return the largest spread of each job's real starts at one offset."""
        offsets = np.array([one.offset_s for one in self.records])
        groups = [self.starts_s[offsets == offset] for offset in np.unique(offsets)]
        return np.asarray(np.max([group.max(axis=0) - group.min(axis=0) for group in groups], axis=0))

    def spread_of_offsets_s(self) -> Seconds:
        """Return the time between each job's earliest and latest real start, over all replays."""
        return np.asarray(self.starts_s.max(axis=0) - self.starts_s.min(axis=0))


def validate(
    workload: Workload,
    machine: Machine,
    plan: ValidationPlan,
    place: world.Place,
    *,
    progress: Callable[[int, int], None] = lambda done, whole: None,
) -> Validation:
    """Replay a workload, whose first job is submitted at 0, here and by the real Slurm. Raises `ReplayFailed` and the
    errors of `replay`."""
    told = as_slurm_has_it(workload)
    simulated = replay(told, machine, SchedulerSettings())
    exact = replay(workload, machine, SchedulerSettings())
    whole = len(told) * len(plan.offsets_s)
    records: list[Record] = []
    for offset_s in plan.offsets_s:
        task = _task(told, machine, plan, offset_s, float(simulated.end_s.max()))
        answer = world.run(
            place,
            task,
            speed=plan.speed,
            longest_s=2 * _PATIENCE_S + 2 * float(task["wait_s"]) / plan.speed,
            ended=lambda jobs: progress(len(told) * len(records) + jobs, whole),
        )
        records.append(record(answer, offset_s=offset_s))
    moved = float((exact.start_s != simulated.start_s).mean())
    return Validation(told, machine, plan, simulated, tuple(records), moved)


def _task(workload: Workload, machine: Machine, plan: ValidationPlan, offset_s: float, end_s: float) -> dict[str, Any]:
    """Return the task for the driver."""
    settings = SlurmSettings(
        machine.nodes,
        interval_s=plan.interval_s,
        resolution_s=plan.resolution_s,
        longest_s=float(workload.limit_s.max()),
        most_waiting=len(workload),
    )
    return {
        "nodes": machine.nodes,
        "files": {"slurm.conf": slurm_conf(settings), "cgroup.conf": CGROUP_CONF},
        "jobs": _jobs(workload, machine),
        "patience_s": _PATIENCE_S * plan.speed,
        "lead_s": _LEAD_S,
        "cycle_s": plan.interval_s,
        "offset_s": offset_s,
        "wait_s": end_s + 3600,
    }


def _jobs(workload: Workload, machine: Machine) -> list[dict[str, int]]:
    arrays = {
        "submit_s": workload.submit_s,
        "run_s": workload.run_s,
        "minutes": workload.limit_s / 60,
        "nodes": machine.units_asked(workload.processors),
    }
    columns = [array.astype(np.int64).tolist() for array in arrays.values()]
    return [dict(zip(arrays, row, strict=True)) for row in zip(*columns, strict=True)]
