"""The month's report: the nodes' time as control saw it, and who got what."""

import os
import sys
from datetime import datetime
from pathlib import Path

import pytest
from tests.api.api_harness import ApiHarness, Caller

from gleaner.control.policy.harm import Delay
from gleaner.control.policy.node_time import NodeTime
from gleaner.control.queue import node_history
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
        of_agents = {"agent_node_s": 1800, "agent_core_s": 14400, "harvested_core_s": 7200, "start_core_s": 3600}
        node_history.add(db, 3600, {hour_s: NodeTime(seen_s=3600, idle_node_s=7200, regular_node_s=900, **of_agents)})
        node_history.record_delays(db, [Delay("7", harness.now_s - 60, 12.0)])
    found = harness.admin.get("/v1/report", month=_month(harness)).json()
    assert [(row["group"], row["user"], row["slices"]) for row in found["rows"]] == [
        ("atlas", "alice", 1), ("cms", "carol", 1),
    ]  # fmt: skip
    assert found["harvested_core_h"] == pytest.approx((2 + 3) * 60 / 3600)
    assert found["saving_core_h"] == pytest.approx((2 + 3) * 4 / 3600)
    assert (found["seen_h"], found["idle_node_h"], found["idle_without_node_h"]) == (1, 2, 2.5)
    assert (found["harvested_node_h"], found["starting_node_h"], found["unused_node_h"]) == (0.25, 0.125, 0.125)
    assert found["harm_day"] == found["harm_month"] == {"jobs": 1, "sum_s": 12.0, "largest_s": 12.0, "late_s": 12.0}
    assert found["summary"].endswith(
        "10 % of the time in which nodes would have been idle, and 1 regular job waited for agents to leave,"
        " at least 12 s in all, and 12 s for the longest."
    )
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
    harness.change(history=HistorySettings(watts_per_core=9))
    wanted = 2 * (1.5 + 60 + 4) / 3600 * 9 / 1000
    assert harness.admin.get("/v1/report").json()["energy_kwh"] == pytest.approx(wanted)


def _sacct(path: Path, monkeypatch: pytest.MonkeyPatch, *does: str) -> None:
    """Put a program of that name on PATH, which does as these lines of Python say, and notes that it was asked."""
    program = path / "sacct"
    lines = (f"#!{sys.executable}", "import sys", f"open('{path}/asked', 'a').write('.')", *does)
    program.write_text("\n".join(lines))
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(path))


def test_slurms_accounting_tells_the_waits_of_regular_jobs_and_the_measured_energy(
    harness: ApiHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at_s = int(harness.now_s)
    told = [
        f"1001|{at_s}|{at_s}|{at_s + 60}|0",
        f"1001|{at_s}|{at_s + 40}|{at_s + 60}|",  # it was to begin later
        f"1001|{at_s}|Unknown|Unknown|0",  # it has not started
        f"1001|{at_s - 10**8}|{at_s - 10**8}|{at_s - 10**7}|0",  # it started in another month
        f"{os.geteuid()}|{at_s}|{at_s}|{at_s + 1}|3600000",
        f"{os.geteuid()}|{at_s}|{at_s}|{at_s + 1}|18446744073709551614",  # Slurm has not measured it
        "what|is|that",
    ]
    (tmp_path / "told").write_bytes("\n".join(told).encode() + b"\ncaf\xe9|")
    _sacct(tmp_path, monkeypatch, f"sys.stdout.buffer.write(open('{tmp_path}/told', 'rb').read())")
    found = [harness.admin.get("/v1/report", accounting="true").json() for _ in range(2)]
    assert found[0]["regular"] == {"jobs": 2, "mean_wait_s": 40.0, "median_wait_s": 40.0, "late_wait_s": 60.0}
    assert (found[0]["energy_kwh"], found[0]["energy_is_measured"]) == (1.0, True)
    assert found[1]["regular"] == found[0]["regular"]
    assert (tmp_path / "asked").read_text() == ".", "the second answer is the first one"
    assert harness.admin.get("/v1/report").json()["regular"] is None


def test_accounting_is_asked_for_admins_only_and_its_silence_is_one_line(
    harness: ApiHarness, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _sacct(tmp_path, monkeypatch, "sys.exit('sacct: error: slurmdbd: Connection refused')")
    assert harness.user.get("/v1/report", accounting="true").status_code == 403
    assert not (tmp_path / "asked").exists()
    answer = harness.admin.get("/v1/report", accounting="true")
    assert (answer.status_code, answer.json()["detail"].count("\n")) == (503, 0)
    assert "Connection refused" in answer.json()["detail"]
