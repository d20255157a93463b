"""`glean simulate tune`, the real command on the project's own trace."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.simulation.shipped import PATH

from gleaner.control.cli import app

GLEAN = str(Path(sys.executable).with_name("glean"))
FEW = ("--lengths", "30m,1h", "--margins", "30", "--synchronised", "--seeds", "2", "--save", "60", "--restore", "30")


def tune(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [GLEAN, "simulate", "tune", str(PATH), "--state", str(folder / "state"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_answer_is_a_table_its_reasons_and_files(tmp_path: Path) -> None:
    files = ("--json", str(tmp_path / "all.json"), "--report", str(tmp_path / "report.html"))
    said = tune(tmp_path, "--wait-limit", "1000%", *FEW, *files)
    assert said.returncode in {0, 1}, said.stderr
    assert "without agents: load" in said.stdout
    assert "2,000 jobs read" in said.stderr
    value = json.loads((tmp_path / "all.json").read_text())
    assert [one["length_s"] for one in value["settings"]] == [1800, 3600]
    assert value["recommendation"]["reasons"][0] in said.stdout
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    again = tune(tmp_path, "--wait-limit", "1000%", *FEW, "--json", "-")
    assert json.loads(again.stdout) == value


def test_what_is_assumed_is_said(tmp_path: Path) -> None:
    said = tune(tmp_path, "--lengths", "1h", "--margins", "30", "--seeds", "2", "--workers", "1")
    assert "glean: --restore and --save not given: 60 s assumed" in said.stderr


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--wait-limit", "much"), "glean: --wait-limit: expected a time such as"),
        (("--wait-limit=-1%",), "glean: --wait-limit: expected a limit such as 1% or 90s, found '-1%'"),
        (("--lengths", "1h,soon"), "glean: --lengths: expected a time such as"),
        (("--lengths", "1m"), "glean: no agent would compute: the longest has 60 s, the shortest slice is 4 min"),
        (("--seeds", "1"), "glean: --seeds 1: an interval needs at least two"),
        (("--confidence", "95"), "glean: --confidence 95: it lies between 0 and 1"),
        (("--shortest-slice", "2h", "--lengths", "1h"), "glean: no agent would compute"),
        (("--json", "nowhere/out.json"), "glean: nowhere/out.json: there is no folder nowhere"),
        (("--processors", "16", "--nodes", "2"), "glean: machine: processors is a pool without nodes"),
        (("--state", "/dev/null/state"), "glean: /dev/null/state"),
    ],
)
def test_options_that_make_no_sense_are_one_line(
    tmp_path: Path, options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert app.run(["simulate", "tune", str(PATH), "--state", str(tmp_path), *options]) == 2
    said = capsys.readouterr()
    assert said.err.startswith(line)
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


def test_a_scenario_that_stops_early_is_refused(tmp_path: Path) -> None:
    (tmp_path / "scenario.toml").write_text("[workload]\nkeep_waiting = 10\n")
    said = tune(tmp_path, "--scenario", str(tmp_path / "scenario.toml"))
    assert said.stderr == "glean: tune replays whole traces: leave out until_s and keep_waiting of [workload]\n"


@pytest.mark.parametrize("workers", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_ctrl_c_is_one_line_and_the_same_command_goes_on(tmp_path: Path, workers: str) -> None:
    state = tmp_path / "state"
    command = [GLEAN, "simulate", "tune", str(PATH), "--state", str(state), "--workers", workers, "--seeds", "2000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        _wait_for_lines(state, 3)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        out, err = running.communicate(timeout=20)
    assert running.returncode == 130
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("glean: stopped: ")
    assert f"replays are kept in {state}; the same command goes on from there" in err
    kept = _lines(state)
    assert int(err.split()[2]) in {kept, kept - 1}  # the last may have been written before it was counted
    assert tune(tmp_path, "--seeds", "2", "--workers", "2").returncode in {0, 1}
    assert _lines(state) < kept + 42  # 21 replays a seed, and those of the first seeds were there


def _wait_for_lines(state: Path, lines: int) -> None:
    until_s = time.monotonic() + 60
    while _lines(state) < lines:
        assert time.monotonic() < until_s, "the sweep did not begin"
        time.sleep(0.02)


def _lines(state: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in state.glob("*.jsonl"))
