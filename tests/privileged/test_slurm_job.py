"""The end of a Slurm job of our own account, which Slurm is to set to the second, and what Slurm tells of the job."""

import json
import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from tests.privileged import slurm

from gleaner.agent.privileged.common.slurm_job import (
    USUAL_KILL_WAIT_S,
    JobHandle,
    SlurmJobRecord,
    Unknown,
    kill_wait_s,
    parse,
)

SCONTROL = """#!/bin/sh
cd {place}
echo "$1" >> asked
case "$1" in
show) sed "s/2000000000/$(cat end)/" 66.json ;;
update) [ ! -e refused ] && date -d "${{3#EndTime=}}" +%s > end ;;
esac
"""


def job(**changes: Any) -> SlurmJobRecord:
    return parse(json.dumps({"jobs": [slurm.job(**changes)]}), "66")


def test_a_preemption_is_told_from_the_warning_of_an_end() -> None:
    assert (job().is_running, job().is_preempted) == (True, False)
    preempted = job(preempt_time=slurm.number(1_999_999_000))
    assert (preempted.is_running, preempted.is_preempted) == (True, True)
    assert not job(job_state=["COMPLETING"]).is_running


def test_the_memory_is_that_of_the_allocation() -> None:
    assert job().memory_mib == 1000
    assert job(parts=[(slurm.NODE, 2, 0)]).memory_mib is None


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A `scontrol` that keeps one job's end, 04:29:03; what it was asked to do so far."""
    program = Path(slurm.answering(tmp_path, slurm.job()))
    (tmp_path / "end").write_text(f"{at(4, 29, 3)}\n")
    program.write_text(SCONTROL.format(place=tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: (tmp_path / "asked").read_text().split()


def at(hour: int, minute: int, second: int) -> int:
    return int(datetime(2026, 11, 21, hour, minute, second).timestamp())


def test_one_answer_of_slurm_tells_both_the_memory_and_the_end(asked: Callable[[], list[str]]) -> None:
    found = JobHandle("66").lower_end(at(4, 30, 0))
    assert (found.end_s, found.memory_mib) == (at(4, 29, 3), 1000)
    assert asked() == ["show"]


def test_a_later_end_is_lowered_to_the_second_and_read_back(asked: Callable[[], list[str]]) -> None:
    found = JobHandle("66").lower_end(at(4, 28, 7) + 0.5)
    assert (found.end_s, found.memory_mib) == (at(4, 28, 7), 1000)
    assert asked() == ["show", "update", "show"]


@pytest.mark.parametrize("end_s", [1792888200, 1792891800], ids=["summer time", "winter time"])
def test_an_end_in_the_hour_that_comes_twice_is_the_right_one_of_the_two(
    asked: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end_s: int
) -> None:
    """Both are 02:30:00 in Berlin, on 25 October 2026. An hour too early, Slurm would end the job at once."""
    (tmp_path / "end").write_text(f"{end_s + 7200}\n")
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        assert JobHandle("66").lower_end(end_s).end_s == end_s
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
    assert asked() == ["show", "update", "show"]


def test_an_end_that_slurm_does_not_lower_is_tried_again_and_stays(
    asked: Callable[[], list[str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.agent.privileged.common.slurm_job._AGAIN_S", 0.01)
    (tmp_path / "refused").touch()
    assert JobHandle("66").lower_end(at(4, 28, 7)).end_s == at(4, 29, 3)
    assert asked() == ["show", "update", "update", "update"]


def test_the_kill_wait_is_slurms_own_or_else_the_usual_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho 'KillOnBadExit           = 0'\necho 'KillWait                = 7 sec'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert kill_wait_s() == 7
    program.write_text("#!/bin/sh\nexit 1\n")
    assert kill_wait_s() == USUAL_KILL_WAIT_S


def test_without_slurms_answer_nothing_is_known_and_nothing_is_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Unknown, match="scontrol"):
        JobHandle("66").lower_end(at(4, 28, 7))
    assert JobHandle("66").look() is None
