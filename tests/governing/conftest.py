"""One control program that governs a made cluster, on a real database."""

from pathlib import Path

import pytest
from tests.governing.office import Office


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)
