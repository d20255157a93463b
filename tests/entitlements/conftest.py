"""One control program that enforces entitlements on a made cluster, on a real database."""

from pathlib import Path

import pytest
from tests.entitlements.entitlements_harness import EntitlementsHarness


@pytest.fixture
def harness(tmp_path: Path) -> EntitlementsHarness:
    return EntitlementsHarness(tmp_path)
