"""What the admin's page says of the metrics is true."""

import re
from pathlib import Path

from tests.api.house import House

from gleaner.control.cluster.gateway import ClusterView

PAGE = Path(__file__).parents[2] / "docs" / "admin.md"


def test_the_metrics_in_the_admins_page_exist(house: House) -> None:
    house.user.get("/v1/status")
    house.site.cluster = ClusterView(house.now_s, (), (), frozenset())
    answer = house.admin.get("/metrics")
    named = set(re.findall(r"`(gleaner_[a-z_]+)`", PAGE.read_text()))
    found = {name.removesuffix("_total") for name in re.findall(r"^# TYPE (\w+)", answer.text, re.MULTILINE)}
    assert len(named) >= 5
    assert named - found == set()
