"""A control program's parts on a real database, with faked Slurm programs."""

from pathlib import Path

import pytest
from tests.control.stage import Stage
from tests.gateway.places import FakedSlurm


@pytest.fixture
def stage(sqlite_url: str, tmp_path: Path, faked: FakedSlurm) -> Stage:
    """A program that leads, three idle nodes, nothing in the queue."""
    return Stage(url=sqlite_url, folder=tmp_path / "storage")
