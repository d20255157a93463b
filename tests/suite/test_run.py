"""A run that is ended at any moment, in any way, leaves nothing; two runs do not meet."""

import fcntl
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.privileged.waiting import wait_until
from tests.suite import cleaner
from tests.suite.cleaner import ROOT

pytestmark = pytest.mark.slow

WORLD = """
import sys
from pathlib import Path
from tests.suite import run
world = Path(sys.argv.pop(1))
run.LOCK, run.OUTPUT, run.PLACE = world / "lock", world / "output", world / "tmp"
run.PARTS = (run.Part("unit", "not cluster", (f"{world}/test_it.py",)),)
run.Run.set_up_environment = lambda self: self.step("whole", f"{world}/step", whole=True)
sys.exit(run.main())
"""
TEST = """
import json, subprocess, sys, time
from pathlib import Path

def test_it(tmp_path):
    words = [sys.executable, "-c", "import time; time.sleep(600)"]
    marked = subprocess.Popen(words)
    hidden = subprocess.Popen(words, env={}, cwd="/", start_new_session=True)
    (tmp_path / "mount").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "mount"], check=True)
    world = Path(__file__).parent
    (world / "pids").write_text(json.dumps([marked.pid, hidden.pid]))
    (world / "pids").rename(world / "began")
    time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class World:
    """A place with a lock, an output and one test of its own, which never ends by itself."""

    place: Path

    def run(self) -> "subprocess.Popen[bytes]":
        """Start a run."""
        with (self.place / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-c", WORLD, str(self.place), "--only", "unit", "--", "-p", "no:schemathesis"],
                cwd=ROOT, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """Return what the runs have printed."""
        return (self.place / "said").read_text()

    def wait_until_it_is(self, name: str) -> None:
        """Wait for a file."""
        wait_until((self.place / name).exists, f"{name}; {self.said}", limit_s=200)

    def left(self) -> list[object]:
        """Return what is there after the run and its cleaner have ended."""
        with (self.place / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the test's own time-out is the limit
        began = self.place / "began"
        processes: list[int] = json.loads(began.read_text()) if began.exists() else []
        return [*(self.place / "tmp").iterdir(), *(one for one in processes if Path(f"/proc/{one}/fd/0").exists())]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The test's world; its step of the set-up ends at once."""
    (tmp_path / "tmp").mkdir()
    (tmp_path / "test_it.py").write_text(TEST)
    (tmp_path / "step").write_text("#!/bin/sh\n")
    (tmp_path / "step").chmod(0o755)
    yield World(tmp_path)
    cleaner.unmount(tmp_path)


def cleaner_of(run: "subprocess.Popen[bytes]") -> int:
    """Return its process."""
    children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
    (found,) = [one for one in children if b"tests.suite.cleaner" in Path(f"/proc/{one}/cmdline").read_bytes()]
    return int(found)


@pytest.mark.parametrize("how", ["killed with its group", "ended twice", "its cleaner is killed before"])
def test_a_run_that_is_ended_leaves_nothing(world: World, how: str) -> None:
    run = world.run()
    world.wait_until_it_is("began")
    match how:
        case "killed with its group":
            os.killpg(run.pid, signal.SIGKILL)
        case "ended twice":
            run.send_signal(signal.SIGINT)
            run.terminate()
        case _:
            os.kill(cleaner_of(run), signal.SIGKILL)
            run.terminate()
    assert run.wait(200) != 0
    assert world.left() == [], world.said


def test_a_second_run_does_not_begin_and_does_the_first_no_harm(world: World) -> None:
    first = world.run()
    world.wait_until_it_is("began")
    assert world.run().wait(200) == 2
    assert world.said.endswith("error: another run of the tests goes on on this machine; wait for its end\n")
    assert first.poll() is None
    assert len([*(world.place / "tmp").iterdir()]) == 1
    first.terminate()
    assert first.wait(200) == 1
    assert world.left() == []
