from pathlib import Path

import pytest

from gleaner.agent.checkpoints.folder_storage import FolderStorage


@pytest.fixture
def storage(tmp_path: Path) -> FolderStorage:
    """An empty storage, which several nodes may share."""
    made = FolderStorage(tmp_path / "storage")
    made.prepare()
    return made
