"""Limits of a restored process."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import pytest
from tests.privileged.root import only_root

from gleaner.agent.privileged.common.processes import family, status
from gleaner.agent.privileged.shim import credential_check
from gleaner.agent.privileged.shim.credential_check import beyond, has_ended, stop_if_beyond

JOB = {
    "Uid": ["4200"] * 4,
    "Gid": ["4200"] * 4,
    "Groups": ["4200"],
    "NoNewPrivs": ["1"],
    **{name: ["0000000000000000"] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")},
}


def test_a_job_is_let_go_on() -> None:
    assert beyond(JOB, 4200) is None
    assert beyond(JOB | {"Groups": []}, 4200) is None


@pytest.mark.parametrize("at", range(4))
def test_each_of_its_four_uids_must_be_the_accounts(at: int) -> None:
    uids = ["4200"] * 4
    uids[at] = "0"
    assert beyond(JOB | {"Uid": uids}, 4200) == "it would run as uid 0"


@pytest.mark.parametrize(
    "more",
    [
        {"Gid": ["4200", "0", "4200", "4200"]},
        {"Groups": ["4200", "0"]},
        *({name: ["0000000000000001"]} for name in JOB if name.startswith("Cap")),
        {"NoNewPrivs": ["0"]},
        *({name: []} for name in ("NoNewPrivs",)),
    ],
)
def test_nothing_more_is_let_through(more: dict[str, list[str]]) -> None:
    assert beyond(JOB | more, 4200) is not None


@pytest.mark.parametrize("missing", [name for name in JOB if name != "Groups"])
def test_what_the_kernel_does_not_say_counts_as_the_worst(missing: str) -> None:
    assert beyond({name: value for name, value in JOB.items() if name != missing}, 4200) is not None


@pytest.fixture
def process() -> Iterator["subprocess.Popen[bytes]"]:
    found = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield found
    found.kill()
    found.wait()


def test_a_process_with_the_wrong_uid_is_killed(process: "subprocess.Popen[bytes]") -> None:
    assert stop_if_beyond(process.pid, os.getuid() + 1) == f"it would run as uid {os.getuid()}"
    assert process.wait(10) == -signal.SIGKILL


# As CRIU leaves it: the process is the job's, and its child, which has ended, is root's.
CHILD_ENDED = """
import ctypes, os, time
child = os.fork()
if child == 0:
    os._exit(3)
os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
prctl = ctypes.CDLL(None).prctl
for capability in range(64):
    prctl(24, capability, 0, 0, 0)  # out of the bounding set
prctl(38, 1, 0, 0, 0)  # no new privileges
os.setgroups([])
os.setresgid(4200, 4200, 4200)
os.setresuid(4200, 4200, 4200)
os.write(1, b"up\\n")
time.sleep(60)
"""
FIRST_THREAD_ENDED = """
import ctypes, os, threading, time
def other():
    with open("/proc/self/stat") as stat:
        while stat.read().rpartition(")")[2].split()[0] != "Z":
            stat.seek(0)
            time.sleep(0.01)
    os.write(1, b"up\\n")
    time.sleep(60)
threading.Thread(target=other).start()
ctypes.CDLL(None).syscall({"x86_64": 60, "aarch64": 93}[os.uname().machine], 0)  # this thread alone
"""


@contextmanager
def running(program: str) -> Iterator["subprocess.Popen[bytes]"]:
    words = [sys.executable, "-c", program]
    with subprocess.Popen(words, stdout=subprocess.PIPE, start_new_session=True) as found:
        assert found.stdout is not None
        assert found.stdout.readline() == b"up\n"
        try:
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.killpg(found.pid, signal.SIGKILL)


@only_root
def test_a_child_that_has_ended_has_no_rights_that_count() -> None:
    with running(CHILD_ENDED) as found:
        assert [has_ended(status(f"/proc/{pid}/status")) for pid in family(found.pid)] == [
            False,
            True,
        ]
        assert stop_if_beyond(found.pid, 4200) is None
        assert found.poll() is None
        assert stop_if_beyond(found.pid, 4201) == "it would run as uid 4200"
        assert found.wait(10) == -signal.SIGKILL


def test_a_thread_that_lives_counts_though_the_first_one_has_ended() -> None:
    with running(FIRST_THREAD_ENDED) as found:
        assert has_ended(status(f"/proc/{found.pid}/status"))
        assert stop_if_beyond(found.pid, os.getuid() + 1) == f"it would run as uid {os.getuid()}"
        assert found.wait(10) == -signal.SIGKILL


def test_no_child_is_overlooked() -> None:
    program = "import os, time; os.fork() or os.fork(); os.write(1, b'up\\n'); time.sleep(20)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, start_new_session=True) as first:
        assert first.stdout is not None
        assert [first.stdout.readline() for _ in range(3)] == [b"up\n"] * 3
        found = family(first.pid)
        assert found[0] == first.pid
        assert len(found) == 3
        os.killpg(first.pid, signal.SIGKILL)


def test_what_cannot_be_looked_at_is_killed(
    process: "subprocess.Popen[bytes]", monkeypatch: pytest.MonkeyPatch
) -> None:
    """CRIU would let it go on: at that point it only notes that its script has failed."""

    def lost(_path: str) -> dict[str, list[str]]:
        raise FileNotFoundError("status")

    monkeypatch.setattr(credential_check, "status", lost)
    assert "cannot be looked at" in str(stop_if_beyond(process.pid, os.getuid()))
    assert process.wait(10) == -signal.SIGKILL
