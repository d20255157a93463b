"""Periodic timers after a restore: a timer that had expired goes on."""

import os
import signal
import subprocess
import sys

from tests.privileged.root import only_root

from gleaner.agent.privileged.shim import timers
from gleaner.agent.privileged.shim.timers import period_of_expired

# As CRIU leaves it: an expiry to be read, a period, and no time to the next expiry. The second timer was off.
PROGRAM = """
import ctypes, fcntl, os, select, struct
libc = ctypes.CDLL(None)
expired, off = libc.timerfd_create(1, 0), libc.timerfd_create(1, 0)
for timer in (expired, off):
    libc.timerfd_settime(timer, 0, struct.pack("4l", 0, 10_000_000, 0, 0), None)
fcntl.ioctl(expired, 0x40085400, struct.pack("Q", 1))  # TFD_IOC_SET_TICKS
os.kill(os.getpid(), 19)
for _ in range(5):
    ready, _, _ = select.select([expired, off], [], [], 60)
    os.read(ready[0], 8)
    print(ready == [expired], flush=True)
"""


@only_root
def test_a_timer_that_had_expired_fires_in_each_period_and_one_that_was_off_never() -> None:
    words = [sys.executable, "-c", PROGRAM]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        os.waitid(os.P_PID, found.pid, os.WSTOPPED | os.WNOWAIT)
        timers.start_again(found.pid)
        found.send_signal(signal.SIGCONT)
        assert found.stdout.read() == "True\n" * 5


def facts(ticks: int, value: str, interval: str) -> str:
    return f"pos:\t0\nclockid: 1\nticks: {ticks}\nsettime flags: 00\nit_value: ({value})\nit_interval: ({interval})\n"


def test_only_a_periodic_timer_that_has_expired_is_started_again() -> None:
    assert period_of_expired(facts(1, "0, 0", "2, 5")) == (2, 5)
    for other in (facts(1, "0, 0", "0, 0"), facts(0, "0, 0", "2, 5"), facts(1, "0, 9", "2, 5"), "pos:\t0\n"):
        assert period_of_expired(other) is None
