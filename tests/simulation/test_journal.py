"""The journal of a sweep, and what becomes of it when its writer is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gleaner.control.simulation.tuning.sweep import BadState, Journal, key_of

WRITER = """
import sys
from pathlib import Path
from gleaner.control.simulation.tuning.sweep import Journal
with Journal(Path(sys.argv[1])) as journal:
    for number in range(10**9):
        journal.add(f"key{number}", {"value": [number / 3]})
        print(number, flush=True)
"""


def test_what_was_added_is_there_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "new" / "sweep.jsonl") as journal:
        journal.add("a", {"value": [0.1, 1e-300, 1 / 3]})
    with Journal(tmp_path / "new" / "sweep.jsonl") as journal:
        assert journal.outcomes == {"a": {"value": [0.1, 1e-300, 1 / 3]}}


@pytest.mark.slow
def test_a_writer_that_is_killed_leaves_all_it_said_was_kept(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True) as writer:
        assert writer.stdout is not None
        told = [writer.stdout.readline() for _ in range(200)][-1]
        os.kill(writer.pid, signal.SIGKILL)
    with Journal(path) as journal:
        kept = len(journal.outcomes)
        assert kept > int(told)
        assert all(journal.outcomes[f"key{number}"] == {"value": [number / 3]} for number in range(kept))


def test_half_a_line_is_taken_away_before_the_next_is_written(tmp_path: Path) -> None:
    path = tmp_path / "sweep.jsonl"
    with Journal(path) as journal:
        journal.add("a", {"value": [1.0]})
        journal.add("b", {"value": [2.0]})
    whole = path.read_bytes()
    for cut in range(1, len(whole)):
        path.write_bytes(whole[:cut])
        with Journal(path) as journal:
            assert len(journal.outcomes) == whole[:cut].count(b"\n")
            journal.add("c", {"value": [3.0]})
        with Journal(path) as journal:
            assert journal.outcomes["c"] == {"value": [3.0]}


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    with Journal(tmp_path / "sweep.jsonl"), pytest.raises(BadState, match="running already"):
        Journal(tmp_path / "sweep.jsonl")
    Journal(tmp_path / "sweep.jsonl").__exit__(None, None, None)


@pytest.mark.parametrize("line", [b"nonsense", b"[]", b'{"key": "a"}', b'{"key":"a","outcome":[1]}', b"\xff"])
def test_a_file_that_is_no_journal_is_refused_with_its_line(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "sweep.jsonl"
    path.write_bytes(b'{"key":"a","outcome":{"value":[1.0]}}\n' + line + b"\n")
    with pytest.raises(BadState, match=r"sweep\.jsonl, line 2: not an outcome"):
        Journal(path)


def test_a_folder_that_cannot_be_written_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(BadState, match="--state names another folder"):
        Journal(tmp_path / "file" / "sweep.jsonl")


def test_keys_tell_every_input_apart() -> None:
    keys = {key_of(seed=seed, length=length) for seed in range(3) for length in (1.0, 1.5, "1.0", None, [1.0])}
    assert len(keys) == 15
