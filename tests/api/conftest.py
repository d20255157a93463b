"""The real app with a real database and a real storage folder, for each test."""

from collections.abc import Generator
from pathlib import Path

import pytest
from tests.api.house import House

from gleaner.agent.storage.folder import FolderStorage
from gleaner.control.queue.engine import connect, migrate
from gleaner.control.settings import QueueSettings, Settings, StorageSettings
from gleaner.control.site import Site


@pytest.fixture
def house(tmp_path: Path) -> Generator[House]:
    """Control that leads, with an empty queue on SQLite, and no cluster seen yet."""
    url = f"sqlite:///{tmp_path / 'queue.db'}"
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    settings = Settings(queue=QueueSettings(url=url), storage=StorageSettings(folder=tmp_path / "storage"))
    engine = connect(url)
    migrate(engine)
    opened = House(Site(settings, engine, storage, is_leader=True), storage)
    yield opened
    opened.close()
    engine.dispose()
