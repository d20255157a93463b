"""The agent's reading of `scontrol show job`, and the end of its job, which it has Slurm set to the second."""

import os
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

import pytest

from gleaner.agent.node.slurm_job import (
    USUAL_KILL_WAIT_S,
    Allocation,
    Ending,
    kill_wait_s,
    lower_end,
    parse_end_s,
    parse_ending,
    parse_memory_mib,
)

SHOWN = (
    "JobId=11 JobName=gleaner-1795235343-f0152e23 JobState=RUNNING TimeLimit=00:02:00 StartTime=2026-11-21T04:27:35 "
    "EndTime=2026-11-21T04:29:03 Deadline=2026-11-21T04:30:03 Partition=gleaner NumNodes=1 NumCPUs=6 "
    "ReqTRES=cpu=1,mem=4000M,node=1,billing=1 AllocTRES=cpu=6,mem=4000M,node=1,billing=6 MinMemoryNode=0"
)


def test_the_end_is_read_in_this_machines_time_zone() -> None:
    found = parse_end_s(SHOWN)
    assert found == time.mktime(datetime(2026, 11, 21, 4, 29, 3).timetuple())


def test_the_end_is_not_mistaken_for_another_time() -> None:
    assert parse_end_s("SuspendTime=2026-01-01T00:00:00 MyEndTime=2026-01-01T00:00:00") is None


def test_a_preemption_is_told_from_the_warning_of_an_end() -> None:
    """The text is that of Slurm 24.11 for a job in its grace time."""
    preempted = parse_ending(f"{SHOWN} PreemptEligibleTime=2026-11-21T04:27:35 PreemptTime=2026-11-21T04:28:40")
    assert preempted == Ending(parse_end_s(SHOWN), runs=True, is_preempted=True)
    warned = parse_ending(f"{SHOWN} PreemptEligibleTime=2026-11-21T04:27:35 PreemptTime=None")
    assert (warned.runs, warned.is_preempted) == (True, False)
    assert not parse_ending(SHOWN.replace("RUNNING", "COMPLETING")).runs


def test_the_memory_is_that_of_the_allocation() -> None:
    assert parse_memory_mib(SHOWN) == 4000
    assert parse_memory_mib("AllocTRES=cpu=6,node=1") is None


SCONTROL = """#!/bin/sh
cd {place}
echo "$1" >> asked
case "$1" in
show) sed "s/EndTime=[^ ]*/EndTime=$(cat end)/" shown ;;
update) echo "${{3#EndTime=}}" > end ;;
esac
"""


@pytest.fixture
def asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], list[str]]:
    """A `scontrol` that keeps one job's end; what it was asked to do so far."""
    (tmp_path / "shown").write_text(SHOWN + "\n")
    (tmp_path / "end").write_text("2026-11-21T04:29:03\n")
    program = tmp_path / "scontrol"
    program.write_text(SCONTROL.format(place=tmp_path))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return lambda: (tmp_path / "asked").read_text().split()


def at(hour: int, minute: int, second: int) -> float:
    return datetime(2026, 11, 21, hour, minute, second).timestamp()


def test_one_answer_of_slurm_tells_both_the_memory_and_the_end(asked: Callable[[], list[str]]) -> None:
    assert lower_end("11", at(4, 30, 0)) == Allocation(end_s=at(4, 29, 3), memory_mib=4000)
    assert asked() == ["show"]


def test_a_later_end_is_lowered_to_the_second_and_read_back(asked: Callable[[], list[str]]) -> None:
    assert lower_end("11", at(4, 28, 7) + 0.5) == Allocation(end_s=at(4, 28, 7), memory_mib=4000)
    assert asked() == ["show", "update", "show"]


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
    assert lower_end("11", at(4, 28, 7)) == Allocation(end_s=None, memory_mib=None)
