"""The end of all that a process has started."""

import subprocess
import sys
from pathlib import Path

from tests.privileged.waiting import wait_until

from gleaner.agent.privileged.common.processes import kill_with_descendants


def test_all_descendants_are_killed_in_whatever_session_they_are(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    script = f"""
import os, time
for _ in range(3):
    open({str(pids)!r}, "a").write(f"{{os.getpid()}}\\n")
    if os.fork():
        time.sleep(60)
        os._exit(0)
    os.setsid()
open({str(pids)!r}, "a").write(f"{{os.getpid()}}\\n")
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", script])
    wait_until(lambda: pids.exists() and len(pids.read_text().split()) == 4, "all four are there")
    kill_with_descendants(process.pid)
    assert process.wait(60) == -9
    for pid in pids.read_text().split():
        wait_until(lambda pid=pid: state(pid) in (None, "Z"), f"{pid} ends")  # type: ignore[misc]


def state(pid: str) -> str | None:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return None
