"""A run that is ended at any moment, in any way, leaves nothing; two runs do not meet."""

import fcntl
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
run.Run.set_up_environment = lambda self: self.step("whole", "true", whole=True)
sys.exit(run.main())
"""
ENDLESS = """
import subprocess, sys, time
from pathlib import Path

def test_it(tmp_path):
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    world = Path(__file__).parent
    (world / "pid").write_text(str(sleeper.pid))
    (world / "pid").rename(world / "began")
    time.sleep(600)
"""


@dataclass(frozen=True, slots=True)
class World:
    """A place with a lock, an output and one test of its own."""

    place: Path

    def run(self, test: str = ENDLESS) -> "subprocess.Popen[bytes]":
        """Start a run."""
        (self.place / "test_it.py").write_text(test)
        with (self.place / "said").open("ab") as said:
            return subprocess.Popen(
                [sys.executable, "-c", WORLD, str(self.place), "--only", "unit", "--", "-p", "no:schemathesis"],
                cwd=ROOT, stdout=said, stderr=said, start_new_session=True,
            )  # fmt: skip

    @property
    def said(self) -> str:
        """Return what the runs have printed."""
        return (self.place / "said").read_text()

    def wait_until_it_began(self) -> None:
        """Wait for the endless test."""
        wait_until((self.place / "began").exists, f"began; {self.said}", limit_s=200)

    def left(self) -> list[Path]:
        """Return what is there after the run and its cleaner have ended."""
        with (self.place / "lock").open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # the test's own time-out is the limit
        sleeper = Path("/proc", (self.place / "began").read_text(), "fd/0")
        return [*(self.place / "tmp").iterdir(), *([sleeper] if sleeper.exists() else [])]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """The test's world."""
    (tmp_path / "tmp").mkdir()
    yield World(tmp_path)
    cleaner.unmount(tmp_path)


@pytest.mark.parametrize("how", ["killed with its group", "ended twice"])
def test_a_run_that_is_ended_leaves_nothing(world: World, how: str) -> None:
    run = world.run()
    world.wait_until_it_began()
    if how == "ended twice":
        run.send_signal(signal.SIGINT)
        run.terminate()
    else:
        os.killpg(run.pid, signal.SIGKILL)
    assert run.wait(200) != 0
    assert world.left() == [], world.said


def test_a_second_run_does_not_begin_and_does_the_first_no_harm(world: World) -> None:
    first = world.run()
    world.wait_until_it_began()
    assert world.run().wait(200) == 2
    assert world.said.endswith("error: another run of the tests goes on on this machine; wait for its end\n")
    assert first.poll() is None
    assert len([*(world.place / "tmp").iterdir()]) == 1
    first.terminate()
    assert first.wait(200) == 1
    assert world.left() == []


@pytest.mark.parametrize(
    ("test", "reason"),
    [
        ("def test_it():\n    assert 1 == 2", "E       assert 1 == 2"),
        ("import no_module_at_all", "E   ModuleNotFoundError"),
        ("import os\ndef test_it():\n    os._exit(0)", "FAILED: unit ended with 0"),
    ],
    ids=["failed", "not collected", "broken off"],
)
def test_a_run_is_red_and_says_why(world: World, test: str, reason: str) -> None:
    assert world.run(test).wait(200) == 1
    assert reason in world.said
    assert "the whole run: red" in world.said
