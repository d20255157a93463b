"""Benchmarks keep and print what they have measured, whatever fails later, and none ends in a traceback."""

import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError
from tests.benchmarks import bench_boundary
from tests.benchmarks.bench_boundary import Case, Row
from tests.benchmarks.stored_figures import StoredFigures, ended

BENCHMARKS = Path(__file__).parent / "benchmarks"


def test_what_was_measured_is_kept_whatever_fails_later(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bench-output" / "it.json"

    def measure() -> None:
        figures = StoredFigures(path, cores=2)
        figures.add("rows", {"save_s": 1.5})
        figures.note(disk_mib_s=100.0)
        raise ValueError("the queue's database\nhas no tables yet")

    assert ended(measure, "make bench-it", path) == 1
    assert json.loads(path.read_text()) == {"cores": 2, "rows": [{"save_s": 1.5}], "disk_mib_s": 100.0}
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.startswith(
        "make bench-it: ValueError: the queue's database has no tables yet (test_benchmarks.py, line "
    )
    assert said.endswith(f"; what was measured is in {path}\n")


@pytest.mark.parametrize(
    ("error", "status"),
    [(KeyboardInterrupt(), 130), (SystemExit("an image is missing"), 1), (SystemExit(0), 0), (RuntimeError(), 1)],
)
def test_a_benchmark_that_is_stopped_says_so_in_one_line(
    error: BaseException, status: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def measure() -> None:
        raise error

    assert ended(measure, "make bench-it", tmp_path / "it.json") == status
    assert capsys.readouterr().err.strip().count("\n") == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "options", "table"),
    [
        ("bench_storage.py", ["--mib", "1", "--rounds", "1", "--folder", "."], "rows"),
    ],
)
def test_a_benchmark_writes_its_rows_and_ends_without_a_traceback(
    program: str, options: list[str], table: str, tmp_path: Path
) -> None:
    command: list[str | Path] = [sys.executable, BENCHMARKS / program, *options]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert "Traceback" not in done.stderr
    (written,) = (tmp_path / "bench-output").glob("*.json")
    assert table in json.loads(written.read_text())


def row_of(case: Case) -> Row:
    return Row(case.nodes, case.oversubscribed, case.storage_mb_s, case.slices, 0, 0.0, 0.9, case.job_mb, case.slice_s)


@pytest.fixture
def boundary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The benchmark of the shared end without its node: a row is measured at once, or `measure` says how."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bench_boundary, "_build", lambda: None)
    monkeypatch.setattr(bench_boundary, "_node", lambda: nullcontext("a node"))

    def run(measure: Callable[[Case], Row], *words: str) -> int:
        def measured(_node: object, case: Case, _advance: object) -> Row:
            return measure(case)

        monkeypatch.setattr(bench_boundary, "_measured", measured)
        return ended(lambda: bench_boundary.main(list(words)), "make bench-boundary", bench_boundary.OUTPUT)

    return run


def rows_kept() -> list[dict[str, Any]]:
    return list(json.loads(bench_boundary.OUTPUT.read_text())["rows"])


@pytest.mark.parametrize(
    "error", [OperationalError("UPDATE job", {}, Exception("database is locked")), KeyError("jobs"), AssertionError()]
)
def test_a_row_of_the_shared_end_that_fails_costs_no_other_and_no_table(
    boundary: Callable[..., int], error: Exception, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = bench_boundary.cases(bench_boundary._options([]))

    def measure(case: Case) -> Row:
        if case == wanted[1]:
            raise error
        return row_of(case)

    assert boundary(measure) == 1
    printed = capsys.readouterr()
    assert "Slices at the shared end" in printed.out
    assert f"{bench_boundary.name_of(wanted[1])}: " in printed.out
    assert printed.err.count("\n") == 1
    assert f"1 of {len(wanted)} rows could not be measured" in printed.err
    assert len(rows_kept()) == len(wanted) - 1
    assert boundary(row_of, "--resume") == 0
    assert len(rows_kept()) == len(wanted)


def test_the_benchmark_of_the_shared_end_keeps_what_it_has_when_it_is_interrupted(
    boundary: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = bench_boundary.cases(bench_boundary._options([]))

    def measure(case: Case) -> Row:
        if case == wanted[2]:
            raise KeyboardInterrupt
        return row_of(case)

    assert boundary(measure) == 130
    printed = capsys.readouterr()
    assert "Slices at the shared end" in printed.out
    assert printed.err.strip().count("\n") == 0
    assert len(rows_kept()) == 2


@pytest.mark.parametrize("content", ["[", "[]", '{"rows": [{"colour": "blue"}]}'])
def test_rows_of_before_that_cannot_be_read_are_one_line(
    boundary: Callable[..., int], content: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bench_boundary.OUTPUT.parent.mkdir()
    bench_boundary.OUTPUT.write_text(content)
    assert boundary(row_of, "--resume") == 1
    assert capsys.readouterr().err.startswith("make bench-boundary: bench-output/boundary.json is no file of this")
    assert bench_boundary.OUTPUT.read_text() == content


def test_a_node_that_cannot_be_made_leaves_the_rows_of_before(
    boundary: Callable[..., int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = bench_boundary.cases(bench_boundary._options([]))
    name = bench_boundary.name_of(wanted[0])
    assert boundary(row_of, "--only", name) == 0
    capsys.readouterr()

    def fail() -> None:
        raise subprocess.CalledProcessError(1, ["deploy/engine.sh", "start"])

    monkeypatch.setattr(bench_boundary, "_build", fail)
    assert boundary(row_of, "--resume") == 1
    printed = capsys.readouterr()
    assert "Slices at the shared end" in printed.out
    assert printed.err.count("\n") == 1
    assert len(rows_kept()) == 1
