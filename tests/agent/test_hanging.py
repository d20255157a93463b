"""A storage that hangs: the agent is gone in time all the same, so Slurm never finds a process that it cannot kill."""

import contextlib
import hashlib
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.agent.control_harness import Control
from tests.privileged.root import only_root

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.probe import PATIENCE_S, Probe
from gleaner.control.queue import agents, queries
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.states import State

pytestmark = pytest.mark.slow

KILL_WAIT_S = 4.0
ROOT = Path(__file__).parents[2]


def expected(control: Control, *more: str) -> tuple[list[str], float]:
    """The words that start an agent process which control expects, and its end."""
    end_s = time.time() + 35  # a busy machine takes its time to start it
    with transaction(control.state.engine) as db:
        token_hash = hashlib.sha256(b"secret-of-a1").hexdigest()
        agents.expect(db, name="a1", end_s=end_s, token_hash=token_hash, now_s=time.time())
    (control.folder / "work").mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.agent.hanging_storage",
        f"http://127.0.0.1:{control.port}",
        str(control.folder),
    ]
    return [*command, str(end_s), str(KILL_WAIT_S), *more], end_s


def lived(control: Control, *more: str) -> tuple[subprocess.CompletedProcess[str], float]:
    """An agent process on a storage that hangs; how it ended, and how long before its end."""
    command, end_s = expected(control, *more)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    return done, end_s - time.time()


@contextlib.contextmanager
def disk(place: Path) -> Iterator[Path]:
    """A file system of its own."""
    image = place.with_suffix(".img")
    with image.open("wb") as file:
        file.truncate(16 * 2**20)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Whoever writes there waits, and nobody can kill it meanwhile."""
    subprocess.run(["fsfreeze", "--freeze", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(place)], check=True)


@only_root
def test_an_agent_that_nobody_can_kill_has_said_so_in_time_and_is_gone_with_what_held_it(control: Control) -> None:
    """All that can be done where a wait is uninterruptible: Slurm drains the node, and nothing else is late."""
    job = control.submit("100000")
    with disk(control.folder / "disk") as place:
        FolderStorage(place).prepare()
        command, end_s = expected(control, "frozen")
        agent = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
        try:
            wait_for(lambda: control.job(job).job.state is State.RUNNING, until_s=end_s - 10)
            with frozen(place):
                wait_for(lambda: bool(reason(control)), until_s=end_s - KILL_WAIT_S + 0.5)
                assert reason(control) == "storage hangs"
                wait_for(lambda: not threads(agent.pid) - {"D", "Z"}, until_s=end_s)
                assert agent.poll() is None
            assert agent.wait(10) == 1
        finally:
            agent.kill()
            agent.wait()
    detail = control.job(job)
    assert (detail.job.state, detail.failures) == (State.NEW, 0)


def threads(process: int) -> set[str]:
    """The states in which its threads are, as the kernel calls them: D is a wait that nobody can end."""
    found = Path(f"/proc/{process}/task").glob("*/stat")
    return {one.read_text().rpartition(")")[2].split()[0] for one in found}


def reason(control: Control) -> str:
    with snapshot(control.state.engine) as db:
        return next(iter(queries.agent_rows(db, now_s=time.time()))).reason


def wait_for(is_so: Callable[[], bool], *, until_s: float) -> None:
    while not is_so():
        assert time.time() < until_s
        time.sleep(0.05)


def test_an_agent_leaves_a_storage_that_hangs_in_time_and_says_why(control: Control) -> None:
    job = control.submit("100000")
    done, early_s = lived(control)
    assert done.returncode == 1, done.stderr
    assert early_s > KILL_WAIT_S - 0.5
    with snapshot(control.state.engine) as db:
        (row,) = queries.agent_rows(db, now_s=time.time())
    assert row.reason == "storage hangs"
    detail = control.job(job)
    assert (detail.job.state, detail.failures) == (State.NEW, 0)


def test_an_agent_of_which_all_hangs_is_gone_in_time_too(control: Control) -> None:
    control.submit("100000")
    done, early_s = lived(control, "stuck")
    assert done.returncode == 1, done.stderr
    assert early_s > KILL_WAIT_S - 0.5


def test_a_probe_tells_a_storage_that_hangs_from_one_that_says_no(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "storage")
    no_storage, good = Probe(storage, "agents/a1/probe"), Probe(storage, "agents/a1/probe")
    no_storage.look()
    time.sleep(0.5)
    assert no_storage.out_for_s == 0
    storage.prepare()
    good.look()
    time.sleep(0.5)
    assert good.out_for_s == 0
    assert not good.hangs
    assert storage.keys("") == []
    assert PATIENCE_S > 0
