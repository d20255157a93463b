"""`glean simulate tune`, the real command on the project's own trace."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from tests.effort import a_few
from tests.simulation.shipped import PATH

from gleaner.control.cli import app

GLEAN = str(Path(sys.executable).with_name("glean"))
PATIENCE_S = 200
FEW = ("--lengths", "30m,1h", "--margins", "30", "--synchronised", "--seeds", "2", "--workers", "1")


def tune(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [GLEAN, "simulate", "tune", str(PATH), "--state", str(folder / "state"), *options]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def asked(folder: Path, *options: str) -> int:
    """Its exit code, without a process of its own."""
    return app.run(["simulate", "tune", "--state", str(folder / "state"), *FEW, *options])


def test_the_answer_is_a_table_its_reasons_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = ("--save", "60", "--restore", "30", "--wait-limit", "1000%")
    files = ("--json", str(tmp_path / "all.json"), "--report", str(tmp_path / "report.html"))
    assert asked(tmp_path, str(PATH), *costs, *files) in {0, 1}
    said = capsys.readouterr()
    assert "without agents: load" in said.out
    assert "2,000 jobs read" in said.err
    value = json.loads((tmp_path / "all.json").read_text())
    assert [one["length_s"] for one in value["settings"]] == [1800, 3600]
    assert " ".join(value["recommendation"]["reasons"][0].split()) in " ".join(said.out.split())
    assert (tmp_path / "report.html").read_text().startswith("<!doctype html>")
    asked(tmp_path, str(PATH), *costs, "--json", "-")
    assert json.loads(capsys.readouterr().out) == value


def test_what_is_assumed_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert asked(tmp_path, str(PATH)) in {0, 1}
    assert "glean: --restore and --save not given: 60 s assumed" in capsys.readouterr().err


@pytest.mark.parametrize(("limit", "code"), [("0%", 1), ("1000%", 0)])
def test_settings_are_written_where_something_is_recommended(
    limit: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "gleaner.toml"
    options = ("--seeds", "10", "--wait-limit", limit, "--settings", str(path))
    assert asked(tmp_path, str(PATH), *options) == code
    assert path.exists() == (code == 0)
    assert (f"{path}: not written, since nothing is recommended" in capsys.readouterr().err) == (code == 1)


def test_asked_again_the_same_is_said_from_the_journal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    first = asked(tmp_path, str(PATH)), capsys.readouterr().out
    (journal,) = (tmp_path / "state").iterdir()
    kept = journal.read_bytes()
    assert (asked(tmp_path, str(PATH)), capsys.readouterr().out) == first
    assert journal.read_bytes() == kept
    asked(tmp_path, str(PATH), "--save-spread", "0.5")
    assert journal.read_bytes() == kept
    assert len(list((tmp_path / "state").iterdir())) == 2


def test_a_damaged_journal_is_one_line_that_says_which_file_to_remove(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked(tmp_path, str(PATH))
    (journal,) = (tmp_path / "state").iterdir()
    journal.write_text("nonsense\n")
    capsys.readouterr()
    assert asked(tmp_path, str(PATH)) == 2
    assert capsys.readouterr().err == f"glean: {journal}, line 1: not an outcome of a sweep; remove the file\n"


@pytest.mark.parametrize("source", ["distributions", "lublin", "drawn"])
def test_jobs_that_are_made_are_tuned_for_too(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "scenario.toml"
    trace = f'trace = "{PATH}"\n' if source == "drawn" else ""
    scenario.write_text(
        f'[workload]\n{trace}[workload.synthetic]\nsource = "{source}"\njobs = 300\nload = 0.8\n'
        "[machine]\nprocessors = 128\n"
    )
    assert asked(tmp_path, "--scenario", str(scenario), "--json", "-") in {0, 1}
    value = json.loads(capsys.readouterr().out)
    assert value["seeds"]["variants"].startswith("each with jobs of its own")
    waits = value["settings"][0]["by_seed"]["mean_wait_s"]
    assert waits[0] != waits[1]


def test_agents_are_preempted_as_shipped_unless_somebody_wants_otherwise_or_nodes_differ(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shared = ("--nodes", "8", "--cores", "16", "--allocation", "cores")
    for options, is_preempted in (((), True), (("--no-preemption",), False), (shared, False)):
        asked(tmp_path, str(PATH), *options, "--json", str(tmp_path / "all.json"))
        settings = json.loads((tmp_path / "all.json").read_text())["settings"]
        assert {one["preemption"] for one in settings} == {is_preempted}
        assert ("agents keep their nodes until their end" in capsys.readouterr().err) == (options is shared)


@pytest.mark.slow
def test_jobs_that_can_never_start_are_counted_and_the_others_tuned_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, str(PATH), "--scheduler", "omfs", "--entitlement", "1=50") in {0, 1}
    assert "never start under omfs; the waits are those of the others" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--allocation", "cores", "--preemption"), "preemption of agents needs nodes that are alike"),
        (("--allocation", "cores", "--scheduler", "conservative"), "scheduler conservative needs nodes that are alike"),
    ],
)
def test_what_such_a_machine_cannot_do_is_one_line(
    options: tuple[str, ...], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(tmp_path, str(PATH), "--nodes", "8", "--cores", "16", *options) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"glean: {line}")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (("--wait-limit", "much"), "glean: --wait-limit: expected a time such as"),
        (("--wait-limit=-1%",), "glean: --wait-limit: expected a limit such as 1% or 90s, found '-1%'"),
        (("--lengths", "1h,soon"), "glean: --lengths: expected a time such as"),
        (("--lengths", "1m"), "glean: no agent would compute: the longest has 60 s, the shortest slice is 4 min"),
        (("--seeds", "4", "--time", "1m"), "glean: --seeds replays that many variants, however long it takes"),
        (("--time", "soon"), "glean: --time: expected a time such as"),
        (("--seeds", "1"), "glean: --seeds 1: an interval needs at least two"),
        (("--confidence", "95"), "glean: --confidence 95: it lies between 0 and 1"),
        (("--shortest-slice", "2h", "--lengths", "1h"), "glean: no agent would compute"),
        (("--json", "nowhere/out.json"), "glean: nowhere/out.json: there is no folder nowhere"),
        (("--processors", "16", "--nodes", "2"), "glean: [machine]: processors is a pool without nodes"),
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


def test_a_scenario_that_stops_early_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "scenario.toml").write_text("[workload]\nkeep_waiting = 10\n")
    assert asked(tmp_path, str(PATH), "--scenario", str(tmp_path / "scenario.toml")) == 2
    assert (
        capsys.readouterr().err
        == "glean: tune replays whole traces: leave out until_s and keep_waiting of [workload]\n"
    )


@pytest.mark.slow
@pytest.mark.parametrize("workers", a_few(["2", "1"], 1))
def test_ctrl_c_is_one_line_and_the_same_command_goes_on(tmp_path: Path, workers: str) -> None:
    state = tmp_path / "state"
    grid = ("--lengths", "30m,1h", "--margins", "30", "--workers", workers)
    command = [GLEAN, "simulate", "tune", str(PATH), "--state", str(state), *grid, "--seeds", "4000"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        _wait_until(running, lambda: _lines(state) >= 3)
        os.killpg(running.pid, signal.SIGINT)  # as a terminal does: the workers get it too
        out, err = running.communicate(timeout=PATIENCE_S)
    assert running.returncode == 130
    assert out == ""
    assert len(err.splitlines()) == 1
    assert err.startswith("glean: stopped: ")
    assert f"replays are kept in {state}; the same command goes on from there" in err
    kept = _lines(state)
    assert int(err.split()[2]) in {kept, kept - 1}  # the last may have been written before it was counted
    assert tune(tmp_path, *grid, "--seeds", "2").returncode in {0, 1}
    assert kept <= _lines(state) < kept + 10  # five replays a seed, and those of the first seeds were there


@pytest.mark.slow
def test_ctrl_c_while_workers_start_is_one_line_too(tmp_path: Path) -> None:
    """They have not even loaded what they need; one is started after the other."""
    command = [GLEAN, "simulate", "tune", str(PATH), "--state", str(tmp_path / "state"), "--seeds", "4000"]
    with subprocess.Popen(
        [*command, "--workers", "2"], stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as running:
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        _wait_until(running, lambda: len(children.read_text().split()) >= 3)  # one tracks what they share
        os.killpg(running.pid, signal.SIGINT)
        _, err = running.communicate(timeout=PATIENCE_S)
    assert (running.returncode, len(err.splitlines())) == (130, 1), err


def _wait_until(running: "subprocess.Popen[str]", has_come: Callable[[], bool]) -> None:
    """Wait for the program; fail, and end it with its workers, if it ends before or takes very long."""
    until_s = time.monotonic() + PATIENCE_S
    while not has_come():
        if running.poll() is not None or time.monotonic() > until_s:
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)
            pytest.fail(f"what is waited for has not come; the program's status is {running.poll()}")
        time.sleep(0.02)


def _lines(state: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in state.glob("*.jsonl"))
