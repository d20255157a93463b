"""The child process: its limits, its end, and what of it others see."""

import itertools
import os
import signal
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from tests.transfer.bad_server import BadServer
from tests.transfer.processes import children, shown_to_others

from gleaner.agent.common.clock import SystemClock
from gleaner.agent.transfer import process
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.fetch import FetchRequest
from gleaner.agent.transfer.process import Limits, TemporaryFailure, TransferStopped
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import REPORTS_WHILE_SILENT, SLOWEST_BYTES_PER_S, Progress

pytestmark = pytest.mark.slow
LIMITS = Limits(600, 300, "https://host/", "[inputs] fetch_s")
HANGS = (sys.executable, "-c", "import signal; signal.pause()")


def run(request: object, limits: Limits = LIMITS, *, stop: threading.Event, hangs: bool = False) -> list[int]:
    program = HANGS if hangs else process.PROGRAM
    return process.run(request, limits, stop=stop, clock=SystemClock(), program=program)


def test_a_child_that_hangs_ends_at_a_stop_or_at_a_limit() -> None:
    before, stop = children(), threading.Event()
    with pytest.raises(TemporaryFailure, match="https://host/: nothing was sent or taken for 0 s"):
        run(None, replace(LIMITS, silent_s=0.1), stop=stop, hangs=True)
    with pytest.raises(TemporaryFailure, match=r"not done within .* \(\[inputs\] fetch_s\)"):
        run(None, replace(LIMITS, total_s=0.1), stop=stop, hangs=True)
    stop.set()
    with pytest.raises(TransferStopped):
        run(None, stop=stop, hangs=True)
    assert children() <= before


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_child_shows_a_credential_to_nobody_writes_no_core_file_and_may_be_killed(
    server: BadServer, tmp_path: Path, is_killed: bool
) -> None:
    stop, before, seen, cores = threading.Event(), children(), list[bytes](), list[str]()
    access = Access((server.url(""),), (), 300, Credential(server.url(""), "t0ken"))

    def looking() -> None:
        assert server.hangs.wait(120)
        for child in children() - before:
            seen.extend(shown_to_others(child))
            limits = Path(f"/proc/{child}/limits").read_text().splitlines()
            cores.extend(line for line in limits if line.startswith("Max core file size"))
            if is_killed:
                os.kill(int(child), signal.SIGKILL)
        if not is_killed:
            stop.set()

    threading.Thread(target=looking).start()
    with pytest.raises(TemporaryFailure if is_killed else TransferStopped):
        run(FetchRequest(server.url("stuck"), access, tmp_path / "a", None, 2**30, 0), stop=stop)
    assert server.credentials == [("/stuck", "Bearer t0ken")]
    assert [line.split()[4:6] for line in cores] == [["0", "0"]]
    assert len(seen) == 2
    assert all(seen)
    assert not any(b"t0ken" in content for content in seen)
    assert children() <= before


def test_a_long_call_is_not_silent_and_one_that_hangs_is() -> None:
    """It is reported as often as its size allows."""
    reports, enough = itertools.count(1), threading.Event()

    def report() -> None:
        if next(reports) == 3:
            enough.set()

    Progress(report, 0.01 * REPORTS_WHILE_SILENT).work(lambda: enough.wait(60), 3 * SLOWEST_BYTES_PER_S // 100)
    assert enough.is_set()
    assert next(reports) == 4
