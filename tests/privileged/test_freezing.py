"""Processes that are held back in a real cgroup, of whatever version this machine has."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.common import freezing

VERSION_1 = Path("/sys/fs/cgroup/freezer")
CONTROLLER, ROOT = ("freezer", VERSION_1) if VERSION_1.is_dir() else ("", VERSION_1.parent)

pytestmark = only_root


@pytest.fixture
def folder() -> Iterator[Path]:
    place = ROOT / f"gleaner-tests-{os.getpid()}"
    place.mkdir()
    yield place
    wait_until(lambda: not members(place), "it is empty")
    place.rmdir()


def members(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "cgroup.procs").read_text().splitlines()]


def is_frozen(folder: Path) -> bool:
    if CONTROLLER:
        return (folder / "freezer.state").read_text() == "FROZEN\n"
    return "frozen 1" in (folder / "cgroup.events").read_text()


def test_all_but_the_containers_own_processes_leave_its_cgroup_before_it_is_frozen(folder: Path) -> None:
    """CRIU is there, and what asks for the freeze: runc has put both there."""
    words = ["sleep", "60"]
    with subprocess.Popen(words) as job, subprocess.Popen(words) as other, subprocess.Popen(words) as runc:
        for one in (job, other):
            (folder / "cgroup.procs").write_text(str(one.pid))
        found = {CONTROLLER: str(folder)}
        try:
            freezing.hold(found, [job.pid], beside=runc.pid)
            assert members(folder) == [job.pid]
            wait_until(lambda: is_frozen(folder), "it is frozen")
            other.kill()
            assert other.wait(20) == -9
            job.kill()
            freezing.let_go(found)
            assert job.wait(20) == -9
        finally:
            freezing.let_go(found)
            for one in (job, other, runc):
                one.kill()


def test_what_cannot_be_frozen_is_an_error_and_what_is_gone_goes_on(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="no cgroup"):
        freezing.hold({}, [], beside=os.getpid())
    with pytest.raises(FileNotFoundError):
        freezing.hold({CONTROLLER: str(tmp_path)}, [], beside=os.getpid())
    freezing.let_go({})
    freezing.let_go({CONTROLLER: str(tmp_path)})
