"""`glean simulate` from the outside: what it prints and writes, and one clear line for whatever is wrong."""

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from gleaner.control.cli import app

TRACE = """\
; Computer: none
; MaxProcs: 4
1 0 -1 100 2 -1 -1 2 200 -1 1 1 1 -1 -1 -1 -1 -1
2 10 -1 100 4 -1 -1 4 100 -1 1 2 1 -1 -1 -1 -1 -1
3 20 -1 50 1 -1 -1 1 60 -1 1 1 2 -1 -1 -1 -1 -1
4 30 -1 80.5 1 -1 -1 1 300 -1 1 3 2 -1 -1 -1 -1 -1
"""
Glean = Callable[..., tuple[int, str, str]]


@pytest.fixture
def glean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Glean:
    """The command in a folder with a trace of four jobs on four processors."""
    (tmp_path / "trace.swf").write_text(TRACE)
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str, str]:
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err):
            code = app.run(["simulate", *arguments])
        return code, out.getvalue(), err.getvalue()

    return run


def refusal(glean: Glean, *arguments: str) -> str:
    """The one line of a command that must be refused."""
    code, out, err = glean(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1), (code, out, err)
    return err.removeprefix("glean: ").rstrip()


@pytest.mark.slow
def test_a_run_writes_the_schedule_with_whole_numbers_as_such(glean: Glean, tmp_path: Path) -> None:
    code, out, err = glean("run", "trace.swf", "--scheduler", "easy", "--schedule", "s.csv")
    assert code == 0
    assert "effective load" in out
    assert "the machine has 4 processors, as the trace says" in err
    # Job 2 needs all four from 200 on by what is promised; 3 and 4 fit before, but only 3 by its limit.
    assert (tmp_path / "s.csv").read_text() == (
        "job,submit,start,end\n1,0,0,100\n2,10,100,200\n3,20,20,70\n4,30,200,280.5\n"
    )


def test_json_has_the_figures_of_the_schedule(glean: Glean, tmp_path: Path) -> None:
    code, out, err = glean("run", "trace.swf", "--processors", "4", "--json", "-", "--schedule", "s.csv")
    assert (code, err) == (0, "")
    value = json.loads(out)
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    waits = [float(row["start"]) - float(row["submit"]) for row in rows]
    assert value["measures"]["waits"]["mean_s"] == pytest.approx(sum(waits) / len(waits))
    assert (value["scheduler"]["kind"], value["machine"]["cores"], value["agents"]) == ("easy", 4, None)
    assert (value["workload"]["jobs"], value["workload"]["read"], value["workload"]["rules"]) == (4, 4, [])


def test_agents_are_compared_with_the_same_trace_without_them(glean: Glean) -> None:
    agents = ("--agents", "60", "--save", "5", "--restore", "5")
    code, out, _ = glean("run", "trace.swf", *agents, "--set", "measure.end_s=200", "--json", "-")
    value = json.loads(out)
    assert code == 0
    measures = value["measures"]
    effect = measures["effect"]
    assert effect["effective_load"]["after"] == measures["effective_load"]
    assert effect["effective_load"]["after"] > effect["effective_load"]["before"]
    assert sum(measures["parts"].values()) == pytest.approx(1)
    assert measures["saving"] > 0


def test_agents_longer_than_what_is_measured_are_remarked(glean: Glean) -> None:
    assert "agents of 1 h are longer than the 30 s that are measured" in glean("run", "trace.swf", "--agents", "1h")[2]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("trace.swf", "--agents", "9" * 400), "--agents': expected a time of at most 15 digits, found '9999"),
        (("trace.swf", "--nodes", "2", "--set", "machine.nodes.all=3"), "--nodes must be a valid integer"),
        (
            ("--set", "workload.conventions.ties=file", "--processors", "4"),
            "conventions are for traces, and none is named",
        ),
        (("trace.swf", "--scheduler", "omfs"), "omfs needs entitlements: --set scheduler.omfs.percent.GROUP=PERCENT"),
        (("trace.swf", "--schedule", "trace.swf"), "trace.swf cannot be written: it is read"),
        (
            ("trace.swf", "--json", "a.out", "--schedule", "./a.out"),
            "a.out cannot be written: two results would go to this one file",
        ),
        (
            ("trace.swf", "--set", "measure.begin_s=1d"),
            "the window would begin 1 d after the first submission and end 30 s",
        ),
        (("trace.swf", "--json", "no/where.json"), "no/where.json: there is no folder no"),
        (("trace.swf", "--report", "."), ". is a folder; name a file"),
    ],
)
def test_what_is_wrong_is_one_line(glean: Glean, arguments: tuple[str, ...], expected: str) -> None:
    assert expected in refusal(glean, "run", *arguments)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (TRACE.replace("4", "9" * 14, 1), "the machine has 99999999999999 processors: give --processors, at most 10"),
        (TRACE.replace("; MaxProcs: 4\n", ""), "trace2.swf does not say how large the machine is: give --processors"),
    ],
)  # fmt: skip
def test_a_trace_that_does_not_say_how_large_the_machine_is_is_one_line(
    glean: Glean, tmp_path: Path, lines: str, expected: str
) -> None:
    (tmp_path / "trace2.swf").write_text(lines)
    assert expected in refusal(glean, "run", "trace2.swf")


@pytest.mark.slow
@pytest.mark.parametrize("library", ["numpy", "numba", "jinja2"])
def test_without_the_libraries_it_says_what_to_install(tmp_path: Path, library: str) -> None:
    (tmp_path / "trace.swf").write_text(TRACE)
    program = (
        f"import sys; sys.modules[{library!r}] = None; from gleaner.control.cli.app import run; "
        "sys.exit(run(['simulate', 'run', 'trace.swf', '--report', 'r.html']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    said = f"glean: {library} is not installed here: pip install 'gleaner-hpc[simulate]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, "", said)
