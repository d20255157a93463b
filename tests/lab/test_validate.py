"""Our replay and the real Slurm: what is told to Slurm, what is read from it, and why two starts differ."""

import os
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.lab.validation_harness import FULL, MACHINE, WIDE, really, why, workload

from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.model import Schedule, of_nodes
from gleaner.control.simulation.replay.dispatch import replay
from gleaner.control.simulation.settings import SchedulerSettings
from gleaner.lab.real_slurm import output, world
from gleaner.lab.real_slurm.configuration import SlurmSettings, limits_s, slurm_conf
from gleaner.lab.real_slurm.explain import judge
from gleaner.lab.real_slurm.record import Pass, ReplayFailed, record
from gleaner.lab.real_slurm.validation import Plan, Validation, distribution, validate
from gleaner.lab.real_slurm.workloads import as_slurm_has_it, cut, made

DONE = (
    "JobId={id} UserId=lab(4200) JobState={state} TimeLimit=5 StartTime=2026-01-01T00:01:{start:02} "
    "EndTime=2026-01-01T00:02:00 NodeList=n[1-4] SubmitTime=2026-01-01T00:01:00 EligibleTime=2026-01-01T00:01:00\n"
)


# ── what is told to Slurm ─────────────────────────────────────────────────────────────────────────────────


def test_slurm_is_told_to_do_easy_on_whole_nodes_in_order_of_submission() -> None:
    lines = slurm_conf(SlurmSettings(64, interval_s=20)).splitlines()
    assert "PriorityType=priority/basic" in lines
    assert any("OverSubscribe=EXCLUSIVE" in line for line in lines)
    (parameters,) = (line for line in lines if line.startswith("SchedulerParameters="))
    assert "bf_job_part_count_reserve=1," in parameters
    assert "bf_interval=20," in parameters


def test_slurm_looks_further_ahead_than_any_limit() -> None:
    (parameters,) = (line for line in slurm_conf(SlurmSettings(4, longest_s=7 * 86400)).splitlines() if "bf_w" in line)
    window = int(parameters.partition("bf_window=")[2].partition(",")[0])
    assert window * 60 > 7 * 86400


def test_every_placeholder_of_the_configuration_is_one_that_the_driver_fills() -> None:
    driver = Path(world.__file__).with_name("driver.py").read_text(encoding="utf-8")
    words = slurm_conf(SlurmSettings(4)).split("@")[1::2]
    assert words
    assert all(f'"@{word}@"' in driver for word in words)


def test_a_machine_of_one_node_has_no_range() -> None:
    assert "NodeName=n1 " in slurm_conf(SlurmSettings(1))


@given(st.lists(st.integers(1, 10**6), min_size=1))
def test_slurms_limits_are_whole_minutes_and_never_shorter(asked_s: list[int]) -> None:
    given_s = limits_s(workload(*((0, 1, 1, limit_s) for limit_s in asked_s)))
    assert (given_s % 60 == 0).all()
    assert (given_s >= np.array(asked_s)).all()
    assert (given_s < np.array(asked_s) + 60).all()


def test_a_made_workload_begins_at_once_and_has_the_length_and_load_asked_for() -> None:
    machine = of_nodes(64)
    jobs = made(machine, jobs=300, length_s=7200, load=0.9, seed=1)
    assert jobs.submit_s[0] == 0
    assert len(jobs) == 300
    assert 0.6 * 7200 < jobs.submit_s[-1] < 1.4 * 7200


def test_a_trace_is_cut_to_the_length_and_keeps_its_proportions() -> None:
    short, factor = cut(workload((100, 1, 1000, 2000), (1100, 2, 500, 500), (9000, 1, 1, 1)), jobs=2, length_s=100)
    assert factor == 0.1
    assert short.submit_s.tolist() == [0, 100]
    assert short.run_s.tolist() == [100, 50]
    assert short.limit_s.tolist() == [200, 50]


def test_a_trace_that_is_short_enough_keeps_its_times() -> None:
    short, factor = cut(workload((0, 1, 10, 20), (50, 1, 10, 20)), jobs=300, length_s=100)
    assert factor == 1
    assert short.submit_s.tolist() == [0, 50]


# ── what is read from it ──────────────────────────────────────────────────────────────────────────────────


def answer(**changes: object) -> dict[str, object]:
    jobs = DONE.format(id=2, state="COMPLETED", start=30) + DONE.format(id=1, state="COMPLETED", start=10)
    log = (
        "[2026-01-01T00:01:20.500] sched/backfill: _attempt_backfill: beginning\n"
        "[2026-01-01T00:01:20.600] sched/backfill: _dump_job_sched: BACKFILL: JobId=3 to start at 2026-01-01T00:02:30, "
        "end at 2026-01-01T00:08:00 on nodes n[1-2,4] in partition all\n"
        "[x] sched: Allocate JobId=1 NodeList=n1\n"
        "[x] sched/backfill: _start_job: Started JobId=2 in all on n2\n"
    )
    return {"ids": [1, 2], "origin_s": 1767225660.0, "jobs": jobs, "log": log} | changes


def test_times_count_from_the_origin_in_the_order_of_the_workload() -> None:
    found = record(answer(), offset_s=15)
    assert found.submit_s.tolist() == [0, 0]
    assert found.start_s.tolist() == [10, 30]
    assert found.end_s.tolist() == [60, 60]
    assert found.by_backfill.tolist() == [False, True]
    assert found.passes == (Pass(20.5, 90, frozenset({1, 2, 4})),)
    assert found.nodes == (frozenset({1, 2, 3, 4}),) * 2
    assert found.offset_s == 15


@pytest.mark.parametrize(
    ("jobs", "said"),
    [
        (DONE.format(id=1, state="COMPLETED", start=10), "lacks job 2"),
        (DONE.format(id=1, state="NODE_FAIL", start=10), "job 1 of the real Slurm ended as NODE_FAIL"),
        (DONE.format(id=1, state="COMPLETED", start=10).replace("2026-01-01T00:01:10", "Unknown"), "'Unknown'"),
    ],
)
def test_a_record_that_is_not_whole_is_refused(jobs: str, said: str) -> None:
    ids = [1, 2] if "lacks" in said else [1]
    with pytest.raises(ReplayFailed, match=said):
        record(answer(jobs=jobs, ids=ids), offset_s=0)


# ── what is reported ──────────────────────────────────────────────────────────────────────────────────────


def validation(*starts_s: tuple[float, ...], offsets: int = 1) -> Validation:
    told = workload(FULL, WIDE)
    simulated: Schedule = replay(told, MACHINE, SchedulerSettings())
    plan = Plan(offsets=offsets, repeats=len(starts_s) // offsets)
    records = tuple(
        replace(really(told, *start_s), offset_s=offset_s)
        for start_s, offset_s in zip(starts_s, plan.offsets_s, strict=True)
    )
    verdicts = tuple(judge(told, MACHINE, one) for one in records)
    names = tuple(tuple(why(told, one)) for one in records)
    return Validation(told, MACHINE, plan, "paper", simulated, records, verdicts, names, 0.0)


def test_a_jobs_difference_is_the_median_of_the_replays() -> None:
    found = validation((0, 101), (1, 103), (9, 140))
    assert found.difference_s.tolist() == [1, 3]


def test_slurms_own_spread_is_that_of_replays_from_the_same_place() -> None:
    found = validation((0, 100), (2, 101), (20, 150), (21, 157), offsets=2)
    assert found.spread_s().tolist() == [2, 7]
    assert found.spread_of_offsets_s().tolist() == [21, 57]


def test_offsets_divide_the_cycle_of_backfilling() -> None:
    assert Plan(offsets=3, repeats=2, interval_s=30).offsets_s == (0, 0, 10, 10, 20, 20)


def test_a_distribution_has_its_quantiles_in_order() -> None:
    told = distribution(np.array([5.0, -3.0, 0.0, 1.0]))
    assert list(told.quantiles_s) == sorted(told.quantiles_s)
    assert (told.least_s, told.most_s, told.median_s, told.mean_absolute_s) == (-3, 5, 0.5, 2.25)


def test_tables_and_json_speak_of_every_reason_and_every_job() -> None:
    found = validation((0, 101), (0, 140))
    assert all(isinstance(one, Table) for one in output.tables(found))
    value = output.as_json(found)
    assert sum(one["starts"] for one in value["reasons"].values()) == 4  # type: ignore[attr-defined]
    assert [one["job"] for one in value["jobs"]] == [1, 2]  # type: ignore[attr-defined]


def test_what_slurm_differs_by_from_run_to_run_is_said_beside_our_difference() -> None:
    said = " ".join(output.lines(validation((0, 101), (0, 141))))
    assert "a start of the real Slurm varies by 20 s on average, by 20 s in the median" in said
    assert "our replay is 10 s from the median of its runs on average" in said
    assert "--repeats 2" in " ".join(output.lines(validation((0, 101))))


# ── where it runs ─────────────────────────────────────────────────────────────────────────────────────────


def test_without_slurm_and_without_a_container_one_line_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(world.NoSlurm, match=r"not found on this machine|a container was asked for"):
        world.find(engine=f"unix://{tmp_path}/none.sock")


def test_a_machine_that_has_the_programs_needs_no_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in world.PROGRAMS:
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    place = world.find()
    assert place.name == "on this machine"
    assert place.command(20)[:6] == (
        "env", "FAKETIME_DONT_RESET=1", "faketime", "-m", "-f", "@2026-01-01 00:00:00 x20"
    )  # fmt: skip


def place_of(script: str, *options: str) -> world.Place:
    """A place whose driver is this text, in a world without faketime."""
    return world.Place("a test", ("env", f"PATH={os.environ['FAKES']}"), sys.executable, ("-c", script, *options))


@pytest.fixture
def fakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A `faketime` that fakes nothing, first on the PATH."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    (folder / "faketime").write_text('#!/bin/sh\nshift 3\nexec "$@"\n')
    (folder / "faketime").chmod(0o755)
    monkeypatch.setenv("FAKES", f"{folder}:{os.environ['PATH']}")
    return folder


def run(script: str, *, longest_s: float = 30) -> dict[str, object]:
    return world.run(place_of(script), {"a": 1}, speed=1, longest_s=longest_s, ended=lambda jobs: None)


def test_what_the_driver_says_last_is_the_answer(fakes: Path) -> None:
    assert run('import json; print(json.dumps({"kind": "done", "got": json.loads(input())}))')["got"] == {"a": 1}


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ('input(); print(\'{"kind": "failed", "why": "no ports"}\')', "no ports"),
        ("input(); import sys; sys.exit('broken')", "broken"),
        ("raise SystemExit('at once')", "at once"),
    ],
)
def test_a_driver_that_fails_is_one_line(fakes: Path, script: str, said: str) -> None:
    with pytest.raises(ReplayFailed, match=said):
        run(script)


def test_a_driver_that_is_silent_is_ended_in_time(fakes: Path) -> None:
    with pytest.raises(ReplayFailed, match="took too long"):
        run("import sys; sys.stdin.read()", longest_s=0.5)


def test_the_driver_ends_all_it_started_when_whoever_started_it_is_gone(tmp_path: Path) -> None:
    """Fakes of Slurm's programs: a daemon that starts another one which leaves the process group."""
    folder = tmp_path / "fakes"
    folder.mkdir()
    mark = f"600.{os.getpid()}"
    for name in ("munged", "slurmctld", "slurmd"):
        (folder / name).write_text(f"#!/bin/sh\nsetsid sleep {mark} &\nexec sleep {mark}\n")
        (folder / name).chmod(0o755)
    driver = Path(world.__file__).with_name("driver.py")
    process = subprocess.Popen(
        [sys.executable, str(driver)], stdin=subprocess.PIPE, text=True,
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.stdin is not None
    process.stdin.write('{"nodes": 2, "patience_s": 60, "files": {}}\n')
    process.stdin.flush()
    assert until(lambda: len(sleeping(mark)) == 2), "the daemon and what it started"
    process.stdin.close()
    process.wait(20)
    assert sleeping(mark) == []
    assert list(tmp_path.glob("gleaner-lab-*")) == []


def sleeping(mark: str) -> list[str]:
    return subprocess.run(
        ["pgrep", "-f", f"^sleep {mark}$"], capture_output=True, text=True, check=False
    ).stdout.split()


def until(is_so: object, longest_s: float = 20) -> bool:
    end_s = time.monotonic() + longest_s
    while not is_so():  # type: ignore[operator]
        if time.monotonic() > end_s:
            return False
        time.sleep(0.05)
    return True


# ── the real thing ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.nodes
@pytest.mark.extended
def test_the_real_slurm_starts_the_median_job_when_our_replay_does() -> None:
    """40 jobs on 16 nodes, 60 times faster than the clock."""
    if shutil.which("slurmctld") is None:
        build = Path(__file__).parents[2] / "images" / "build.sh"
        subprocess.run([str(build), "--only", "slurm-lab"], check=True, timeout=280)
    machine = of_nodes(16)
    jobs = as_slurm_has_it(made(machine, jobs=40, length_s=1800, load=0.8, seed=3))
    found = validate(jobs, machine, Plan(speed=60, offsets=1, repeats=1), world.find())
    (real,) = found.records
    assert (real.start_s >= jobs.submit_s).all()
    assert (real.end_s >= real.start_s + jobs.run_s).all()
    assert abs(distribution(found.difference_s).median_s) <= 30
    explained = found.counts()
    assert sum(count for count, _ in explained.values()) == 40
