"""The month's report: the nodes' time as control saw it, and who got what."""

from datetime import datetime

import pytest
from tests.api.api_harness import ApiHarness, Caller

from gleaner.control.policy.node_time import NodeTime
from gleaner.control.queue import node_time
from gleaner.control.queue.database import transaction
from gleaner.control.settings import HistorySettings


def _month(harness: ApiHarness) -> str:
    return datetime.fromtimestamp(harness.now_s).astimezone().strftime("%Y-%m")


def _ran(harness: ApiHarness, who: Caller, cpus: int) -> None:
    """A job of theirs has run for a minute on a node that was idle for an hour before."""
    who.submit(spec={"cpus": cpus})
    agent = harness.agent()
    (claimed,) = agent.claim()
    harness.now_s += 70
    assert agent.completed(claimed["job"], claimed["attempt"]).status_code == 204


def test_each_sees_the_nodes_and_the_rows_of_the_own_group(harness: ApiHarness) -> None:
    carol = harness.caller("user", "carol", "cms")
    _ran(harness, harness.user, 2)
    _ran(harness, carol, 3)
    hour_s = int(harness.now_s // 3600 * 3600)
    with transaction(harness.state.engine) as db:
        node_time.add(
            db, 3600, {hour_s: NodeTime(seen_s=3600, idle_node_s=7200, agent_node_s=1800, regular_node_s=900)}
        )
    found = harness.admin.get("/v1/report", month=_month(harness)).json()
    assert [(row["group"], row["user"], row["slices"]) for row in found["rows"]] == [
        ("atlas", "alice", 1), ("cms", "carol", 1),
    ]  # fmt: skip
    assert found["harvested_core_h"] == pytest.approx((2 + 3) * 60 / 3600)
    assert found["saving_core_h"] == pytest.approx((2 + 3) * 4 / 3600)
    assert (found["seen_h"], found["idle_node_h"], found["idle_without_node_h"]) == (1, 2, 2.5)
    own = harness.user.get("/v1/report").json()
    assert (own["group"], own["idle_node_h"]) == ("atlas", 2)
    assert [row["group"] for row in own["rows"]] == ["atlas"]
    assert own["harvested_core_h"] == pytest.approx(2 * 60 / 3600)


def test_other_months_are_empty_and_no_month_is_refused(harness: ApiHarness) -> None:
    _ran(harness, harness.user, 2)
    assert harness.admin.get("/v1/report", month="1999-12").json()["rows"] == []
    for wrong in ("2026-13", "2026-1", "0000-01", "october"):
        answer = harness.admin.get("/v1/report", month=wrong)
        assert answer.status_code == 422, wrong
        assert "month" in answer.json()["detail"]


def test_energy_is_an_estimate_if_the_settings_have_the_power_of_a_core(harness: ApiHarness) -> None:
    _ran(harness, harness.user, 2)
    assert harness.admin.get("/v1/report").json()["energy_kwh"] is None
    harness.state.settings = harness.state.settings.model_copy(update={"history": HistorySettings(watts_per_core=9)})
    wanted = 2 * (1.5 + 60 + 4) / 3600 * 9 / 1000
    assert harness.admin.get("/v1/report").json()["energy_kwh"] == pytest.approx(wanted)
