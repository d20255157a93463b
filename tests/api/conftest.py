"""The real app with a real database and a real storage folder, for each test."""

import math
from collections.abc import Generator
from pathlib import Path

import pytest
from tests.api.house import House

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.queue.engine import connect
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site


@pytest.fixture
def house(tmp_path: Path, sqlite_url: str) -> Generator[House]:
    """Control that leads, with an empty queue on SQLite, and no cluster seen yet."""
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    settings = Settings(queue=QueueSettings(url=sqlite_url), storage=StorageSettings(folder=tmp_path / "storage"))
    engine = connect(sqlite_url)
    opened = House(Site(settings, engine, storage, leads_until_s=math.inf), storage)
    yield opened
    opened.close()
    engine.dispose()
