"""A storage in a folder, ready for use."""

from pathlib import Path

import pytest

from gleaner.agent.checkpoints.folder_storage import FolderStorage


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """The storage's folder."""
    return tmp_path / "storage"


@pytest.fixture
def storage(root: Path) -> FolderStorage:
    """An empty storage."""
    walk_and_make = FolderStorage(root)
    walk_and_make.prepare()
    return walk_and_make
