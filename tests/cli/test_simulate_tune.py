"""`glean simulate tune`, the real command on the project's own trace."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests.simulation.shipped import PATH

from gleaner.control.cli import app

FEW = ("--lengths", "30m,1h", "--seeds", "2", "--workers", "1")
TUNE = ("simulate", "tune")


def asked(*options: str) -> int:
    """Its exit code, without a process of its own."""
    return app.run([*TUNE, str(PATH), *FEW, *options])


def test_the_answer_is_a_sentence_a_table_and_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    costs = ("--save", "60", "--restore", "30", "--wait-limit", "1000%", "--seeds", "5")
    files = ("--json", str(tmp_path / "all.json"), "--report", str(tmp_path / "report.html"))
    assert asked(*costs, *files) == 0
    said = capsys.readouterr()
    value = json.loads((tmp_path / "all.json").read_text())
    assert said.out.startswith(value["answer"][0])
    assert "regular jobs wait" in value["answer"][0]
    settings = [(one["agents"]["length_s"], one["agents"]["preemption"]) for one in value["settings"]]
    assert settings == [(1800, True), (3600, True), (1800, False), (3600, False)]
    assert {one["agents"]["margin_s"] for one in value["settings"]} == {10}
    assert said.err.startswith("glean: 2,000 jobs read")
    assert "assumed" not in said.err
    assert value["answer"][0] in (tmp_path / "report.html").read_text()
    assert asked(*costs, "--json", "-") == 0
    assert json.loads(capsys.readouterr().out) == value


def test_what_is_assumed_or_left_out_is_said_and_nothing_may_keep_the_limit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert asked("--wait-limit", "0s", "--lengths", "100s,1h", "--set", "agents.preemption=false") == 1
    said = capsys.readouterr()
    assert said.out.startswith("No setting is sure to harvest and to lengthen the mean wait by at most 0 s")
    assert "glean: --save and --restore not given: 60 s assumed, and the answer depends on it" in said.err
    assert "glean: agents of 100 s would compute nothing and are left out" in said.err


@pytest.mark.parametrize("source", ["distributions", "lublin", "drawn"])
def test_jobs_that_are_made_are_tuned_for_too(source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    scenario = tmp_path / "scenario.toml"
    trace = f'trace = "{PATH}"\n' if source == "drawn" else ""
    scenario.write_text(
        f'[workload]\n{trace}[workload.synthetic]\nsource = "{source}"\njobs = 300\nload = 0.8\n'
        "[machine]\nprocessors = 128\n[agents]\npreemption = true\nmargin_s = 20\n"
    )
    assert app.run([*TUNE, *FEW, "--scenario", str(scenario), "--json", "-"]) in {0, 1}
    value = json.loads(capsys.readouterr().out)
    assert value["histories"].startswith("jobs of its own")
    assert [(one["agents"]["preemption"], one["agents"]["margin_s"]) for one in value["settings"]] == [(True, 20)] * 2
    one, other = value["settings"][0]["trials"]
    assert one["wait_without_s"] != other["wait_without_s"]


@pytest.mark.slow
def test_jobs_that_share_nodes_are_counted_and_agents_are_preempted(capsys: pytest.CaptureFixture[str]) -> None:
    asked("--nodes", "8", "--cores", "16", "--set", "machine.allocation=cores")
    said = capsys.readouterr().out
    assert "of 2,000 jobs are smaller than a node: they were given cores of nodes that they shared" in said
    assert ", with preemption" in said


SHARED = ("--nodes", "8", "--cores", "16", "--set", "machine.allocation=cores")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((*SHARED, "--scheduler", "conservative"), "scheduler conservative needs nodes that are alike"),
        (("--processors", "1000000"), "without agents no regular job waits, so give --wait-limit in seconds"),
        (("--wait-limit=-1%",), "--wait-limit: expected a limit such as 1% or 90s, found '-1%'"),
        (("--lengths", "1h,20s"), "--lengths: control takes no agents below 30 s"),
        (("--seeds", "1"), "'--seeds': must be greater than or equal to 2"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    options: tuple[str, ...], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(*options) == 2
    said = capsys.readouterr()
    assert line in said.err
    assert len(said.err.splitlines()) == 1
    assert said.out == ""


@pytest.mark.parametrize(
    ("table", "line"),
    [
        ("[workload]\nkeep_waiting = 10\n", "tune replays whole traces: leave out until_s and keep_waiting"),
        ("[measure]\nbegin_s = 10\n", "tune measures all of a trace: leave out [measure]"),
    ],
)
def test_a_scenario_of_a_part_is_refused(
    table: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scenario.toml").write_text(table)
    assert asked("--scenario", str(tmp_path / "scenario.toml")) == 2
    assert line in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("bar", ["0/5000", "3/5000"])
def test_ctrl_c_prints_what_is_known(bar: str) -> None:
    """The workers get it too, as from a terminal: while they start, and when some histories are done."""
    glean = str(Path(sys.executable).with_name("glean"))
    command = [glean, *TUNE, str(PATH), "--lengths", "30m", "--seeds", "5000", "--workers", "2"]
    terminal, end = pty.openpty()
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        start_new_session=True,
        env=os.environ | {"COLUMNS": "99"},
    ) as running:
        os.close(end)
        shown = ""
        while bar not in shown:
            shown += os.read(terminal, 1000).decode()
        os.killpg(running.pid, signal.SIGINT)
        with suppress(OSError):  # that is how a terminal ends
            while more := os.read(terminal, 1000).decode():
                shown += more
        out, _ = running.communicate(timeout=200)
    os.close(terminal)
    assert running.returncode == 130
    assert ("Agents of 30 min, with preemption: regular jobs wait" in out) == (bar == "3/5000")
    assert ("of 5000 histories are in this answer" in shown) == (bar == "3/5000")
    assert "Traceback" not in shown
