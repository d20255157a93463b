"""`glean simulate tune`, and each command of the simulator that a page shows, on the project's own trace."""

import json
import os
import pty
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from tests import doc_pages
from tests.simulation.shipped import PATH

from gleaner.control.cli import app
from gleaner.control.simulation.workloads.traces import read

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
    assert value["mean_wait_in_log_s"] == pytest.approx(read(PATH).wait_s.mean())
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


SHARED = ("--nodes", "8", "--cores", "16", "--set", "machine.allocation=cores")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ((*SHARED, "--scheduler", "conservative"), "scheduler conservative needs nodes that are alike"),
        (("--processors", "1000000"), "without agents no regular job waits, so give --wait-limit in seconds"),
        (("--wait-limit=-1%",), "--wait-limit: expected a limit such as 1% or 90s, found '-1%'"),
        (("--lengths", "1h,20s"), "--lengths: control accepts no agents shorter than 30 s"),
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


@pytest.mark.slow
def test_ctrl_c_prints_what_is_known() -> None:
    """The workers get it too, as from a terminal."""
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
        while "3/5000" not in shown:
            shown += os.read(terminal, 1000).decode()
        os.killpg(running.pid, signal.SIGINT)
        with suppress(OSError):  # that is how a terminal ends
            while more := os.read(terminal, 1000).decode():
                shown += more
        out, _ = running.communicate(timeout=200)
    os.close(terminal)
    assert running.returncode == 130
    assert "Agents of 30 min, with preemption: regular jobs wait" in out
    assert "of 5000 histories are in this answer" in shown
    assert "Traceback" not in shown


@pytest.mark.extended
def test_the_commands_of_the_pages_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part of our trace stands for each log. Where no job waits in it, `tune` needs a limit in seconds."""
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    pages = [page.read_text() for page in doc_pages.PAGES]
    typed = {each for page in pages for each in doc_pages.commands(page, "(?:zcat|glean simulate)") if ".gz" in each}
    assert len(typed) == 8
    for command in typed:
        log = next(word for word in command.split() if word.endswith(".gz"))
        few = " --wait-limit 1h --lengths 1h --seeds 2 --workers 1" if " tune " in command else ""
        script = f"zcat {PATH} | head -n 300 | gzip >{log}\n{command}{few}"
        subprocess.run(["bash", "-ec", script], cwd=tmp_path, check=True, timeout=300)


@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_page_for_admins_installs_what_the_simulator_needs(tmp_path: Path) -> None:
    page = (doc_pages.ROOT / "docs" / "admin" / "evaluate.md").read_text()
    (install,) = doc_pages.commands(page, "python3.11 -m venv")
    install = install.replace("python3.11", sys.executable).replace(".[", f"{doc_pages.ROOT}[")
    subprocess.run(["bash", "-ec", f"{install}\nglean simulate run {PATH}"], cwd=tmp_path, check=True, timeout=600)
