"""The admin's page says nothing of the metrics that is false."""

import re
from pathlib import Path

from tests.api.api_harness import ApiHarness

from gleaner.control.slurm.snapshot import Snapshot

PAGE = Path(__file__).parents[2] / "docs" / "admin" / "operate.md"


def test_the_metrics_in_the_admins_page_exist(harness: ApiHarness) -> None:
    harness.user.get("/v1/status")
    harness.state.cluster = Snapshot(harness.now_s)
    answer = harness.admin.get("/metrics")
    named = set(re.findall(r"`(gleaner_[a-z_]+)`", PAGE.read_text()))
    found = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\w+)", answer.text, re.MULTILINE)}
    assert len(named) >= 5
    assert named - found == set()
