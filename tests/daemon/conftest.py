"""A control program's parts on a real database, with faked Slurm programs."""

from pathlib import Path

import pytest
from tests.daemon.daemon_harness import DaemonHarness
from tests.slurm.slurm_harness import FakedSlurm


@pytest.fixture
def harness(sqlite_url: str, tmp_path: Path, faked: FakedSlurm) -> DaemonHarness:
    """A program that leads, three idle nodes, nothing in the queue."""
    return DaemonHarness(url=sqlite_url, folder=tmp_path / "storage")
