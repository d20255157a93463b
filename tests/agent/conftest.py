from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.agent.control_harness import Control, controlled


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Control]:
    with controlled(tmp_path) as made:
        yield made
