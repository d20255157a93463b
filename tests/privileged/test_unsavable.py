"""Before CRIU saves: processes that it cannot stop. The kinds of programs (tests/runtime) show all that is refused."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.privileged.root import only_root

from gleaner.agent.privileged.shim import unsavable


@only_root
def test_a_stopped_process_can_be_saved_with_cgroups_of_version_2(tmp_path: Path) -> None:
    words = [sys.executable, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"]
    with subprocess.Popen(words) as found:
        try:
            os.waitid(os.P_PID, found.pid, os.WSTOPPED | os.WNOWAIT)
            assert unsavable.refused(found.pid, str(tmp_path)) is None
            (tmp_path / "freezer.state").touch()
            assert "is stopped" in str(unsavable.refused(found.pid, str(tmp_path)))
        finally:
            found.send_signal(signal.SIGKILL)


@only_root
def test_a_process_that_cannot_be_looked_at_is_not_saved(tmp_path: Path) -> None:
    assert "cannot be looked at" in str(unsavable.refused(2**22 + 1, str(tmp_path)))
