"""The alert rules, the Grafana page of deploy/monitoring and the admin's page name what control's /metrics has."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.api.api_harness import ApiHarness

PAGE = Path(__file__).parents[2] / "docs" / "admin" / "operate.md"
FOLDER = Path(__file__).parents[2] / "deploy" / "monitoring"
NAME = re.compile(r"gleaner_[a-z_]+")


def _rules() -> list[dict[str, Any]]:
    return yaml.safe_load((FOLDER / "gleaner.rules.yml").read_text())["groups"][0]["rules"]


def test_all_that_is_named_is_among_the_metrics(harness: ApiHarness) -> None:
    harness.admin.get("/metrics")
    text = harness.admin.get("/metrics").text
    families = list(text_string_to_metric_families(text))
    known = {sample.name for family in families for sample in family.samples}
    known |= {family.name + ("_total" if family.type == "counter" else "") for family in families}
    known |= {"gleaner_last_poll_age_seconds"}  # once control has looked at Slurm
    page = json.loads((FOLDER / "grafana.json").read_text())
    shown = [target["expr"] for panel in page["panels"] for target in panel["targets"]]
    named = set(NAME.findall(" ".join([rule["expr"] for rule in _rules()] + shown)))
    assert named - known == set()
    of_the_page = set(re.findall(r"`(gleaner_[a-z_]+)`", PAGE.read_text()))
    assert of_the_page - known - {name.removesuffix("_total") for name in known} == set()
    assert 'gleaner_agent_lateness_seconds_bucket{le="0.0"}' in text


def test_each_alert_says_what_it_means() -> None:
    for rule in _rules():
        assert rule["annotations"].keys() == {"summary", "description"}, rule["alert"]
        assert rule["labels"]["severity"] in {"warning", "critical"}


@pytest.mark.extended
def test_the_rules_fire_when_something_is_wrong_and_only_then() -> None:
    done = subprocess.run(
        ["promtool", "test", "rules", "gleaner.rules.test.yml"],
        cwd=FOLDER, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
