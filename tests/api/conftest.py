"""The real app with a real database and a real storage folder, for each test."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.api.api_harness import ApiHarness, control_on

from gleaner.control.queue.database import connect


@pytest.fixture
def harness(tmp_path: Path, sqlite_url: str) -> Iterator[ApiHarness]:
    """Control that leads, with an empty queue on SQLite, and no cluster seen yet."""
    with control_on(connect(sqlite_url), tmp_path) as opened:
        yield opened
