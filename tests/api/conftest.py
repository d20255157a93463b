"""The real app with a real database and a real storage folder, for each test."""

import math
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.api.api_harness import ApiHarness

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.control.control_state import ControlState
from gleaner.control.queue.database import connect
from gleaner.control.settings import QueueSettings, Settings, StorageSettings


@pytest.fixture
def harness(tmp_path: Path, sqlite_url: str) -> Generator[ApiHarness]:
    """Control that leads, with an empty queue on SQLite, and no cluster seen yet."""
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    settings = Settings(
        queue=QueueSettings(url=sqlite_url, secret_key_file=tmp_path / "secrets.key"),
        storage=StorageSettings(folder=tmp_path / "storage"),
    )
    engine = connect(sqlite_url)
    opened = ApiHarness(ControlState(settings, engine, storage, leads_until_s=math.inf), storage)
    yield opened
    opened.close()
    engine.dispose()
