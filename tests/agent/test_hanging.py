"""A storage that hangs: the agent is gone in time all the same, so Slurm never finds a process that it cannot kill."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import uvicorn
from tests.agent.control_harness import Control, control_state, expect_agent, job_spec
from tests.agent.fake_clock import FakeClock, RunIsOver
from tests.privileged.root import only_root
from tests.privileged.waiting import wait_until

from gleaner.agent import main
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.storage_probe import PATIENCE_S, StorageProbe
from gleaner.agent.reporting.client import Outbox
from gleaner.control.api.app import create_app
from gleaner.control.control_state import ControlState
from gleaner.control.models.jobs import JobDetail
from gleaner.control.queue import jobs, queries
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.states import State

KILL_WAIT_S = 4.0
FAR_S = 3600.0
ROOT = Path(__file__).parents[2]


class HangingStorage(FolderStorage):
    """Its drafts never begin."""

    def __init__(self, root: Path, clock: FakeClock) -> None:
        super().__init__(root)
        self._clock = clock

    def draft(self, key: str, before: FolderArchive | None = None) -> AbstractContextManager[FolderDraft]:
        self._clock.wait_until(lambda: False)
        raise AssertionError("nobody waits for ever")


def reason(state: ControlState) -> str:
    with snapshot(state.engine) as db:
        return next(iter(queries.agent_rows(db, now_s=state.clock()))).reason


def test_an_agent_leaves_a_storage_that_hangs_in_time_and_says_why(control: Control) -> None:
    job = control.submit("100000")
    control.storage = HangingStorage(control.folder / "storage", control.clock)
    agent = control.brief("a1", kill_wait_s=KILL_WAIT_S)
    assert control.live(agent) == 1
    assert control.now_s <= agent.exit_by_s == agent.end_s - KILL_WAIT_S
    assert reason(control.state) == "storage hangs"
    detail = control.job(job)
    assert (detail.job.state, detail.failures) == (State.NEW, 0)


def test_an_agent_of_which_all_hangs_is_gone_in_time_too(control: Control, monkeypatch: pytest.MonkeyPatch) -> None:
    control.submit("100000")
    agent = control.agent("a1", lives_s=60, kill_wait_s=KILL_WAIT_S)
    left_s: list[float] = []

    class StuckOutbox(Outbox):
        """Whoever looks at it waits until the process ends, the event loop too."""

        def room_bytes(self, path: str) -> int:
            control.clock.wait_until(lambda: bool(left_s))
            raise RunIsOver

    def leave(status: int) -> None:
        assert status == 1
        left_s.append(control.now_s)
        raise RunIsOver

    agent.outbox = StuckOutbox(agent.client.report, agent.client.token_hash)
    agent._context = replace(agent._context, outbox=agent.outbox)
    monkeypatch.setattr(os, "_exit", leave)
    control.clock.start(main._exit_in_time, agent)
    with pytest.raises(RunIsOver):
        control.live(agent)
    assert left_s == [pytest.approx(agent.end_s - KILL_WAIT_S, abs=0.001)]


def test_a_probe_tells_a_storage_that_hangs_from_one_that_says_no(tmp_path: Path) -> None:
    clock, storage = FakeClock(), FolderStorage(tmp_path / "storage")
    no_storage, good, hanging = (
        StorageProbe(one, "agents/a1/probe", clock)
        for one in (storage, storage, HangingStorage(tmp_path / "storage", clock))
    )
    no_storage.start()
    clock.pause(0)
    assert no_storage.waits_s == 0
    storage.prepare()
    good.start()
    hanging.start()
    clock.pause(PATIENCE_S / 2)
    assert good.waits_s == 0
    assert not good.hangs
    assert not hanging.hangs
    clock.pause(PATIENCE_S / 2)
    assert hanging.waits_s == PATIENCE_S > 0
    assert hanging.hangs
    assert storage.keys("") == []


# ── what only a process shows, in the system's time ──


@dataclass
class AgentProcess:
    """An agent process on a storage that hangs. Its end comes a few seconds after its job has begun to count."""

    state: ControlState
    job: int
    command: list[str]

    def start(self) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self.command, cwd=ROOT)

    def detail(self) -> JobDetail:
        with snapshot(self.state.engine) as db:
            return queries.job_detail(db, self.job)


@contextlib.contextmanager
def agent_process(folder: Path, *more: str) -> Iterator[AgentProcess]:
    """A control program on a real socket, with a job, and an agent process that it expects."""
    state = control_state(folder)
    with transaction(state.engine) as db:
        (job,) = jobs.submit(
            db, job_spec("100000"), group="physics", rules=jobs.SubmissionRules(0), now_s=time.time()
        ).jobs
    end_s = time.time() + FAR_S
    token = expect_agent(state, "a1", end_s=end_s)
    (folder / "work").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(uvicorn.Config(create_app(state), log_level="error"))
        serving = threading.Thread(target=server.run, args=([listener],), daemon=True)
        serving.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        command = [sys.executable, "-m", "tests.agent.hanging_storage", url, str(folder), token, str(end_s), *more]
        try:
            yield AgentProcess(state, job, command)
        finally:
            server.should_exit = True
            serving.join()


@pytest.mark.slow
@pytest.mark.parametrize(("more", "says"), [((), "storage hangs"), (("stuck",), "")], ids=["storage", "all of it"])
def test_a_process_that_hangs_ends_all_the_same_and_takes_its_threads_along(
    tmp_path: Path, more: tuple[str, ...], says: str
) -> None:
    with agent_process(tmp_path, *more) as agent:
        assert agent.start().wait() == 1
        assert reason(agent.state) == says


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
        # The kernel may close a file a moment after its process is gone.
        wait_for(lambda: subprocess.run(["umount", str(place)], check=False).returncode == 0)


@contextlib.contextmanager
def frozen(place: Path) -> Iterator[None]:
    """Whoever writes there waits, and nobody can kill it meanwhile."""
    subprocess.run(["fsfreeze", "--freeze", str(place)], check=True)
    try:
        yield
    finally:
        subprocess.run(["fsfreeze", "--unfreeze", str(place)], check=True)


@pytest.mark.slow
@only_root
def test_an_agent_that_nobody_can_kill_has_said_so_in_time_and_is_gone_with_what_held_it(tmp_path: Path) -> None:
    """All that can be done where a wait is uninterruptible: Slurm drains the node, and nothing else is late."""
    with agent_process(tmp_path, "frozen") as agent, disk(tmp_path / "disk") as place:
        FolderStorage(place).prepare()
        with frozen(place):
            process = agent.start()
            wait_for(lambda: bool(reason(agent.state)))
            assert reason(agent.state) == "storage hangs"
            wait_for(lambda: not threads(process.pid) - {"D", "Z"})
            assert process.poll() is None
        assert process.wait() == 1
        detail = agent.detail()
        assert (detail.job.state, detail.failures) == (State.NEW, 0)


def threads(process: int) -> set[str]:
    """The states in which its threads are, as the kernel calls them: D is a wait that nobody can end."""
    found: set[str] = set()
    for one in Path(f"/proc/{process}/task").glob("*/stat"):
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
            found.add(one.read_text().rpartition(")")[2].split()[0])
    return found


def wait_for(is_so: Callable[[], bool]) -> None:
    wait_until(is_so, "what the test waits for", limit_s=200)
