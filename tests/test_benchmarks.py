"""Benchmarks keep and print what they have measured, whatever fails later, and none ends in a traceback."""

import json
from pathlib import Path

import pytest
from tests.benchmarks.stored_figures import StoredFigures, ended


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
