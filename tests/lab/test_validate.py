"""The script that compares our replay with the real Slurm: the files that Slurm gets, its record, and the figures."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab.real_slurm import output, world
from lab.real_slurm.configuration import SlurmSettings, limits_s, slurm_conf
from lab.real_slurm.record import Record, ReplayFailed, record
from lab.real_slurm.validation import Validation, ValidationPlan, validate
from lab.real_slurm.workloads import as_slurm_has_it, cut, made
from tests.simulation.made import by_hand

from gleaner.control.simulation.model import of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings

DRIVER = Path(world.__file__).with_name("driver.py").read_text(encoding="utf-8")
DONE = (
    "JobId={id} UserId=lab(4200) JobState={state} TimeLimit=5 StartTime=2026-01-01T00:01:{start:02} "
    "EndTime=2026-01-01T00:02:00 NodeList=n[1-4] SubmitTime=2026-01-01T00:01:00 EligibleTime=2026-01-01T00:01:00\n"
)
FAKES = {
    "faketime": 'shift 3; exec "$@"',
    "munged": 'for each; do case $each in --socket=*) : >"${each#*=}" ;; esac; done; exec sleep 60',
    "slurmctld": "exec sleep 60",
    "slurmd": "exec sleep 60",
    "scontrol": "exit 0",
    "sinfo": "echo 2 idle",
    "sbatch": """
        cat >/dev/null
        folder=$(dirname "$SLURM_CONF")
        id=$(($(cat "$folder/jobs" 2>/dev/null | wc -l) + 1))
        now=$(date -u +%Y-%m-%dT%H:%M:%S)
        echo "JobId=$id JobState=COMPLETED SubmitTime=$now StartTime=$now EndTime=$now" >>"$folder/jobs"
        echo $id""",
}


def test_slurm_is_told_to_do_easy_on_whole_nodes_in_order_of_submission() -> None:
    lines = slurm_conf(SlurmSettings(64, interval_s=20, longest_s=7 * 86400)).splitlines()
    assert "PriorityType=priority/basic" in lines
    assert any("OverSubscribe=EXCLUSIVE" in line for line in lines)
    (parameters,) = (line for line in lines if line.startswith("SchedulerParameters="))
    assert "bf_job_part_count_reserve=1," in parameters
    assert "bf_interval=20," in parameters
    assert int(parameters.partition("bf_window=")[2].partition(",")[0]) > 7 * 24 * 60


def test_a_machine_of_one_node_has_no_range() -> None:
    assert "NodeName=n1 " in slurm_conf(SlurmSettings(1))
    assert "NodeName=n[1-2] NodeHostname=lab NodeAddr=127.0.0.1 Port=[20001-20002] " in slurm_conf(SlurmSettings(2))


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_slurms_limits_are_whole_minutes_and_never_shorter(asked_s: list[int]) -> None:
    given_s = limits_s(by_hand(*((0, 1, 1, limit_s) for limit_s in asked_s)))
    assert (given_s % 60 == 0).all()
    assert (given_s >= np.array(asked_s)).all()
    assert (given_s < np.array(asked_s) + 60).all()


def test_a_made_workload_begins_at_once_and_has_the_length_and_load_asked_for() -> None:
    jobs = made(of_nodes(64), jobs=300, length_s=7200, load=0.9, seed=1)
    assert jobs.submit_s[0] == 0
    assert len(jobs) == 300
    assert 0.6 * 7200 < jobs.submit_s[-1] < 1.4 * 7200


def test_a_trace_is_cut_to_the_length_and_keeps_its_proportions() -> None:
    short, factor = cut(by_hand((100, 1, 1000, 2000), (1100, 2, 500, 500), (9000, 1, 1, 1)), jobs=2, length_s=100)
    assert factor == 0.1
    assert short.submit_s.tolist() == [0, 100]
    assert short.run_s.tolist() == [100, 50]
    assert short.limit_s.tolist() == [200, 50]
    short, factor = cut(by_hand((0, 1, 10, 20), (50, 1, 10, 20)), jobs=300, length_s=100)
    assert factor == 1
    assert short.submit_s.tolist() == [0, 50]


def test_times_count_from_the_origin_in_the_order_of_the_workload() -> None:
    jobs = DONE.format(id=2, state="COMPLETED", start=30) + DONE.format(id=1, state="COMPLETED", start=10)
    found = record({"ids": [1, 2], "origin_s": 1767225660.0, "jobs": jobs}, offset_s=15)
    assert found.submit_s.tolist() == [0, 0]
    assert found.start_s.tolist() == [10, 30]
    assert found.end_s.tolist() == [60, 60]


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        (DONE.format(id=2, state="COMPLETED", start=10), "lacks job 1"),
        (DONE.format(id=1, state="NODE_FAIL", start=10), "job 1 of the real Slurm ended as NODE_FAIL"),
        (DONE.format(id=1, state="COMPLETED", start=10).replace("2026-01-01T00:01:10", "Unknown"), "'Unknown'"),
    ],
)
def test_a_record_that_is_not_whole_is_refused(jobs: str, message: str) -> None:
    with pytest.raises(ReplayFailed, match=message):
        record({"ids": [1], "origin_s": 0.0, "jobs": jobs}, offset_s=0)


def validation(*starts_s: tuple[float, float], offsets: int = 1) -> Validation:
    jobs = by_hand((0, 3, 100, 600), (1, 4, 100, 600))
    plan = ValidationPlan(offsets=offsets, repeats=len(starts_s) // offsets)
    records = tuple(
        Record(offset_s, jobs.submit_s, np.array(start_s, float), np.array(start_s) + jobs.run_s)
        for start_s, offset_s in zip(starts_s, plan.offsets_s, strict=True)
    )
    machine = of_nodes(4)
    return Validation(jobs, machine, plan, replay(jobs, machine, SchedulerSettings()), records, 0.0)


def test_a_jobs_difference_is_the_median_of_the_replays() -> None:
    assert validation((0, 101), (1, 103), (9, 140)).difference_s.tolist() == [1, 3]


def test_slurms_own_spread_is_that_of_replays_from_the_same_place() -> None:
    found = validation((0, 100), (2, 101), (20, 150), (21, 157), offsets=2)
    assert found.spread_s().tolist() == [2, 7]
    assert found.spread_of_offsets_s().tolist() == [21, 57]


def test_offsets_divide_the_cycle_of_backfilling() -> None:
    assert ValidationPlan(offsets=3, repeats=2, interval_s=30).offsets_s == (0, 0, 10, 10, 20, 20)


def test_what_slurm_differs_by_from_run_to_run_is_said_beside_our_difference() -> None:
    found = validation((0, 101), (0, 141))
    text = " ".join(output.lines(found))
    assert "a start of the real Slurm varies by 20 s on average, by 20 s in the median" in text
    assert "our replay is 10 s from the median of its runs on average" in text
    differences, waits = output.tables(found)
    assert differences.rows[0][6] == "10 s"
    assert [row[1] for row in waits.rows] == ["50 s", "50 s", "70 s"]
    assert "--repeats 2" in " ".join(output.lines(validation((0, 101))))


def test_without_an_engine_one_line_says_how_to_make_the_image(tmp_path: Path) -> None:
    with pytest.raises(ReplayFailed, match=r"images/build.sh --only slurm-lab"):
        world.find(engine=f"unix://{tmp_path}/none.sock")


def run(folder: Path, script: str, task: Mapping[str, object], *, longest_s: float = 30) -> dict[str, object]:
    """Run a driver in a world whose programs of Slurm and `faketime` are fakes."""
    for name, text in FAKES.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / name).chmod(0o755)
    world_of_fakes = ("env", f"PATH={folder}:{os.environ['PATH']}", f"TMPDIR={folder}")
    place = world.Place(world_of_fakes, (sys.executable, "-c", script))
    return world.run(place, task, speed=1, longest_s=longest_s, ended=lambda jobs: None)


def test_the_driver_starts_slurm_submits_every_job_and_returns_what_slurm_recorded(tmp_path: Path) -> None:
    job = {"submit_s": 0, "nodes": 1, "minutes": 1, "run_s": 1}
    task = {"nodes": 2, "files": {"slurm.conf": slurm_conf(SlurmSettings(2))}, "jobs": [job, job], "patience_s": 15}
    answer = run(tmp_path, DRIVER, task | {"lead_s": 0, "cycle_s": 1, "offset_s": 0, "wait_s": 10})
    assert answer["ids"] == [1, 2]
    found = record(answer, offset_s=0)
    assert (found.submit_s >= 0).all()
    assert (found.submit_s < 20).all()
    (conf,) = tmp_path.glob("*/slurm.conf")
    assert f"StateSaveLocation={conf.parent}/state" in conf.read_text()


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ('input(); print(\'{"kind": "failed", "why": "no ports"}\')', "no ports"),
        ("input(); import sys; sys.exit('broken')", "broken"),
        ("raise SystemExit('at once')", "at once"),
    ],
)
def test_a_driver_that_fails_is_one_line(tmp_path: Path, script: str, message: str) -> None:
    with pytest.raises(ReplayFailed, match=message):
        run(tmp_path, script, {})


def test_a_driver_that_is_silent_is_ended_in_time(tmp_path: Path) -> None:
    with pytest.raises(ReplayFailed, match="took too long"):
        run(tmp_path, "import sys; sys.stdin.read()", {}, longest_s=0.5)


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
