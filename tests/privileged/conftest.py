"""A node's helper that serves users, for every test that asks one."""

from pathlib import Path

import pytest
from tests.privileged.users_harness import Node

from gleaner.agent.privileged.common import user_jobs


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Node:
    """One that lets nobody wait for having asked wrongly. For root only."""
    tmp_path.chmod(0o755)
    monkeypatch.setattr(user_jobs, "WRONG_S", 0)
    return Node(tmp_path)
