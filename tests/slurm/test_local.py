"""An agent that is a process of this machine is found whatever it just does."""

import contextlib
import os
import signal
import time
from pathlib import Path

import pytest
from tests.slurm import slurm_harness

from gleaner.control.slurm.interface import SchedulerId


@pytest.mark.slow
def test_an_agent_that_just_begins_another_program_is_found_by_control_and_by_the_next_one(tmp_path: Path) -> None:
    """The kernel shows no command line meanwhile. A withdrawal was lost by that, and the agent stayed to its end."""
    program = tmp_path / "again"
    program.write_text('#!/bin/sh\nexec "$0" "$@"\n')
    program.chmod(0o755)
    place = slurm_harness.local(tmp_path, agent=(str(program),))
    request = place.request()
    place.submit(request)
    pid = int((tmp_path / "local" / f"{request.name}.pid").read_text())
    until_s = time.monotonic() + 60
    try:
        for cluster in (place.cluster, place.again()):
            between = 0
            while between < 20:
                assert time.monotonic() < until_s
                between += Path(f"/proc/{pid}/cmdline").read_bytes() == b""
                assert [job.name for job in cluster.read(time.time()).jobs] == [request.name]
        cluster.withdraw([SchedulerId(request.name)])
        place.eventually(lambda view: not view.jobs)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
