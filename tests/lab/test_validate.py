"""The script that compares our replay with the real Slurm: the files that Slurm gets, its record, and the figures."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
from lab.real_slurm import world
from lab.real_slurm.record import Record, record
from lab.real_slurm.validation import Validation, ValidationPlan, validate
from lab.real_slurm.workloads import as_slurm_has_it, cut, made
from tests.simulation.oracle import workload_of

from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings

DONE = (
    "JobId={id} UserId=lab(4200) JobState={state} TimeLimit=5 StartTime=2026-01-01T00:01:{start:02} "
    "EndTime=2026-01-01T00:02:00 NodeList=n[1-4] SubmitTime=2026-01-01T00:01:00 EligibleTime=2026-01-01T00:01:00\n"
)


def test_a_trace_is_cut_to_the_length_and_keeps_its_proportions() -> None:
    short, factor = cut(workload_of([(100, 1000, 2000, 1), (1100, 500, 500, 2), (9000, 1, 1, 1)]), jobs=2, length_s=100)
    assert factor == 0.1
    assert short.submit_s.tolist() == [0, 100]
    assert short.run_s.tolist() == [100, 50]
    assert short.limit_s.tolist() == [200, 50]
    short, factor = cut(workload_of([(0, 10, 20, 1), (50, 10, 20, 1)]), jobs=300, length_s=100)
    assert factor == 1
    assert short.submit_s.tolist() == [0, 50]


def test_times_count_from_the_origin_in_the_order_of_the_workload() -> None:
    jobs = DONE.format(id=2, state="COMPLETED", start=30) + DONE.format(id=1, state="COMPLETED", start=10)
    found = record({"ids": [1, 2], "origin_s": 1767225660.0, "jobs": jobs}, offset_s=15)
    assert found.submit_s.tolist() == [0, 0]
    assert found.start_s.tolist() == [10, 30]
    assert found.end_s.tolist() == [60, 60]


def validation(*starts_s: tuple[float, float]) -> Validation:
    jobs = workload_of([(0, 100, 600, 3), (1, 100, 600, 4)])
    plan = ValidationPlan(offsets=1, repeats=len(starts_s))
    records = tuple(
        Record(offset_s, jobs.submit_s, np.array(start_s, float), np.array(start_s) + jobs.run_s)
        for start_s, offset_s in zip(starts_s, plan.offsets_s, strict=True)
    )
    machine = of_nodes(4)
    return Validation(jobs, machine, plan, replay(jobs, machine, SchedulerSettings()), records, 0.0)


def test_a_jobs_difference_is_the_median_of_the_replays() -> None:
    assert validation((0, 101), (1, 103), (9, 140)).difference_s.tolist() == [1, 3]


@pytest.mark.nodes
@pytest.mark.extended
def test_the_real_slurm_starts_the_median_job_when_our_replay_does() -> None:
    """40 jobs on 16 nodes, 60 times faster than the clock."""
    build = Path(__file__).parents[2] / "images" / "build.sh"
    subprocess.run([str(build), "--only", "slurm-lab"], check=True, timeout=280)
    machine = of_nodes(16)
    jobs = as_slurm_has_it(made(machine, jobs=40, length_s=1800, load=0.8, seed=3))
    found = validate(jobs, machine, ValidationPlan(speed=60, offsets=1, repeats=1), world.find())
    (real,) = found.records
    assert (real.start_s >= jobs.submit_s).all()
    assert (real.end_s >= real.start_s + jobs.run_s).all()
    assert abs(float(np.median(found.difference_s))) <= 30
