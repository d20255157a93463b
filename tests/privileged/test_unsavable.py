"""Before CRIU saves: processes that it could not stop, or would restore as something else, are named."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.privileged.root import only_root
from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.shim import unsavable

VERSION_1 = Path("/sys/fs/cgroup/freezer")
PROGRAMS = {
    "stopped": "os.kill(os.getpid(), signal.SIGSTOP)",
    "traced": "child = os.fork(); child or time.sleep(60); ctypes.CDLL(None).ptrace(0x4206, child, None, None)",
    "semaphore": "held = os.eventfd(3, os.EFD_SEMAPHORE)",
    "in no file": (
        "f = os.memfd_create('x'); os.write(f, open('/bin/sleep', 'rb').read());"
        " os.posix_spawn(f'/proc/self/fd/{f}', ['sleep', '60'], {})"
    ),
    "nothing": "held = os.eventfd(3), os.fork()",
}


@pytest.fixture
def freezer(tmp_path: Path) -> Path:
    """A cgroup's folder of version 1, as far as it is looked at."""
    (tmp_path / "freezer.state").touch()
    return tmp_path


@contextlib.contextmanager
def running(program: str, *, stops: bool = False) -> Iterator[int]:
    words = [sys.executable, "-c", f"import ctypes, os, signal, time; {program}; print(flush=True); time.sleep(60)"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as found:
        assert found.stdout is not None
        try:
            if stops:
                os.waitid(os.P_PID, found.pid, os.WSTOPPED | os.WNOWAIT)
            else:
                found.stdout.readline()
            yield found.pid
        finally:
            os.killpg(found.pid, signal.SIGKILL)


@only_root
@pytest.mark.parametrize(
    ("kind", "why", "lasts"),
    [
        ("stopped", "is stopped", False),
        ("traced", "is traced", False),
        ("semaphore", "an eventfd with EFD_SEMAPHORE", True),
        ("in no file", "in no file (memfd)", True),
    ],
)
def test_such_a_process_is_named_with_the_reason_and_what_to_do(
    freezer: Path, kind: str, why: str, *, lasts: bool
) -> None:
    with running(PROGRAMS[kind], stops=kind == "stopped") as pid:
        reason = unsavable.refused(pid, str(freezer))
    assert reason is not None
    assert reason.text.startswith("its process ")
    assert why in reason.text
    assert "it can be saved " in reason.text
    assert "\n" not in reason.text
    assert reason.lasts is lasts


@only_root
def test_any_other_process_may_be_saved(freezer: Path) -> None:
    with running(PROGRAMS["nothing"]) as pid:
        assert unsavable.refused(pid, str(freezer)) is None


@only_root
def test_a_stopped_process_can_be_saved_with_cgroups_of_version_2(tmp_path: Path) -> None:
    with running(PROGRAMS["stopped"], stops=True) as pid:
        assert unsavable.refused(pid, str(tmp_path)) is None


@only_root
@pytest.mark.skipif(not VERSION_1.is_dir(), reason="this machine has no cgroups of version 1")
def test_a_stopped_process_is_known_while_it_is_frozen() -> None:
    """Linux says then that it waits for a disk."""
    freezer = VERSION_1 / f"gleaner-tests-{os.getpid()}"
    freezer.mkdir()
    try:
        with running(PROGRAMS["stopped"], stops=True) as pid:
            (freezer / "cgroup.procs").write_text(str(pid))
            (freezer / "freezer.state").write_text("FROZEN")
            try:
                wait_until(lambda: (freezer / "freezer.state").read_text() == "FROZEN\n", "it is frozen")
                assert "is stopped" in str(unsavable.refused(pid, str(freezer)))
            finally:
                (freezer / "freezer.state").write_text("THAWED")
    finally:
        wait_until(lambda: (freezer / "cgroup.procs").read_text() == "", "it is empty")
        freezer.rmdir()


@only_root
def test_a_process_that_cannot_be_looked_at_is_not_saved(freezer: Path) -> None:
    assert "cannot be looked at" in str(unsavable.refused(2**22 + 1, str(freezer)))
