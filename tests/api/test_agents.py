"""The agents' requests to control, and the counts that control keeps of them."""

import pytest
from tests.api.api_harness import FACTS, SLICE, START_S, ApiHarness, detail
from tests.slurm.records import node, seen

from gleaner.agent.messages import NodeRates
from gleaner.control.queue import attempt_reports
from gleaner.control.queue.database import transaction


def _metrics(harness: ApiHarness) -> dict[str, float]:
    answer = harness.admin.get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=")
    lines = [line for line in answer.text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def test_a_registered_agent_learns_its_lease_claims_and_completes(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent(registered=False)
    answer = agent.ask("register", {"facts": FACTS, "end_s": START_S + 600})
    assert answer.json() == {
        "version": 1,
        "heartbeat_s": 20.0,
        "lease_s": 180.0,
        "rates": NodeRates().model_dump(mode="json"),
        "node_mtbf_s": 30 * 86400.0,
    }
    (claimed,) = agent.claim()
    assert claimed["job"] == job
    assert agent.claim() == []
    assert agent.ask("beat", {"attempts": [{"job": job, "attempt": 1}]}).json() == {
        "version": 1, "now_s": harness.now_s, "deliveries": False, "orders": ["go-on"], "vacate": False,
    }  # fmt: skip
    assert agent.completed(job, 1).status_code == 204
    assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["outcome"] == "succeeded"


def test_an_older_attempts_report_is_refused_and_counted(harness: ApiHarness) -> None:
    job = harness.user.submit()
    slow, quick = harness.agent("n1"), harness.agent("n2")
    slow.claim()
    with transaction(harness.state.engine) as db:
        attempt_reports.lose(db, slow.name, now_s=harness.now_s, losses_until_held=3, detail="silent")
    assert quick.claim()[0]["attempt"] == 2
    assert "attempt 2 is the latest" in detail(slow.completed(job, 1), 409)
    assert "attempt 2 is the latest" in detail(slow.report(job, 1, "log", {"first": 0, "lines": ["x"]}), 409)
    counted = _metrics(harness)
    assert counted['gleaner_reports_refused_total{report="completed"}'] == 1
    assert counted['gleaner_reports_refused_total{report="log"}'] == 1


def test_a_clock_that_is_wrong_is_named_and_counted_until_it_is_mended(harness: ApiHarness) -> None:
    nodes = [node(name, 8, 16384) for name in ("n1", "n2", "n3")]
    harness.state.cluster = seen(harness.now_s, *nodes)
    first, second, third = (harness.agent(node.name) for node in nodes)

    def wrong() -> tuple[list[list[str]], float]:
        rows = harness.user.get("/v1/nodes").json()["nodes"]
        return [row["wrong"] for row in rows], _metrics(harness)["gleaner_nodes_clock_wrong"]

    assert wrong() == ([[], [], []], 0)
    for agent, ahead_s in ((first, 1.5), (second, -90.0), (third, -1.0)):
        assert agent.ask("beat", {"clock_ahead_s": ahead_s}).status_code == 200
    advice = "control's: let both follow one time server (chrony or NTP)"
    ahead, behind = f"its clock is 1.5 s or more ahead of {advice}", f"its clock is 90.0 s or more behind {advice}"
    assert wrong() == ([[ahead], [behind], []], 2)
    first.ask("beat", {})
    second.ask("beat", {"clock_ahead_s": 0.0})
    assert wrong() == ([[ahead], [], []], 1)


@pytest.mark.slow
def test_a_report_with_too_many_words_is_cut_not_refused(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"retries": 0})
    agent = harness.agent()
    agent.claim()
    body = {"exit_code": 127, "reason": "no such \0 file \ud800" * 1000, "slice": SLICE}
    assert agent.report(job, 1, "completed", body).status_code == 204
    shown = harness.user.get(f"/v1/jobs/{job}").json()["attempts"][0]["detail"]
    assert shown.startswith("exit code 127: no such \ufffd file")
    assert len(shown) == 2000 + len("exit code 127: ")


def test_metrics_count_jobs_agents_claims_saves_restores_and_lateness(harness: ApiHarness) -> None:
    jobs = [harness.user.submit() for _ in range(3)]
    agent = harness.agent()
    harness.agent(registered=False)
    agent.claim(most=2)
    agent.saved(jobs[0], 1, harness.publish_checkpoint(jobs[0], 1))
    agent.completed(jobs[1], 1)
    agent.ask("farewell", {"ended_s": START_S + 3600 + 7})
    counted = _metrics(harness)
    assert counted['gleaner_jobs{state="new"}'] == 1
    assert counted['gleaner_jobs{state="saved"}'] == 1
    assert counted['gleaner_jobs{state="succeeded"}'] == 1
    assert counted['gleaner_agents{phase="submitted"}'] == 1
    assert counted["gleaner_jobs_claimed_total"] == 2
    assert counted["gleaner_save_seconds_sum"] == SLICE["save_s"]
    assert counted["gleaner_restore_seconds_count"] == 2
    assert counted['gleaner_agent_lateness_seconds_bucket{le="5.0"}'] == 0
    assert counted['gleaner_agent_lateness_seconds_bucket{le="10.0"}'] == 1
    assert counted['gleaner_request_seconds_count{call="claim",status="200"}'] == 1
    assert counted["gleaner_leader"] == 1
    assert not any("alice" in name or "n1" in name for name in counted)
    assert counted['gleaner_stored_bytes{group="atlas"}'] > 0
    assert counted['gleaner_regular_delay_day{figure="jobs"}'] == 0
    assert counted['gleaner_node_seconds_day{use="starting"}'] == 0


def test_measured_saves_and_restores_are_counted_once_and_told_to_the_nodes_next_agent(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent("n1")
    agent.claim()
    published = harness.publish_checkpoint(job, 1)
    made = {"attempt": 1, "number": 1, "digest": published.digest, "size_bytes": 5, "log_lines": 0}
    measured = {"memory_bytes": 200 * 2**20, "stored_bytes": 70, "took_s": 2.0, "expected_s": 1.6, "way": "shim"}
    restored = {"stored_bytes": 90, "took_s": 0.5, "way": "shim"}
    body = {"checkpoint": made, "slice": SLICE | {"restored": restored}, "measured": measured | {"failed": 2}}
    for _ in range(2):
        assert agent.report(job, 1, "saved", body).status_code == 204
    counted = _metrics(harness)
    assert (counted["gleaner_save_seconds_count"], counted["gleaner_save_seconds_sum"]) == (1, 2.0)
    assert counted['gleaner_save_error_ratio_bucket{le="1.1"}'] == 0
    assert counted['gleaner_save_error_ratio_bucket{le="1.25"}'] == 1
    assert counted['gleaner_saved_bytes_total{of="memory"}'] == 200 * 2**20
    assert counted['gleaner_saved_bytes_total{of="stored"}'] == 70
    assert counted["gleaner_restored_bytes_total"] == 90
    assert counted["gleaner_saves_failed_total"] == 2
    told = harness.agent("n1", registered=False).ask("register", {"facts": FACTS, "end_s": START_S + 3600}).json()
    assert (told["rates"]["saves"], told["rates"]["restores"]) == ([[200, 2.0]], [[16, 0.5]])


@pytest.mark.parametrize(
    ("why", "computed_s", "failed", "too_late"),
    [
        ("save failed", 50.0, 1, 0),
        ("too late", 50.0, 0, 1),
        ("storage fault", 50.0, 1, 0),
        ("storage fault", 0.0, 0, 0),
    ],
)
def test_a_slice_that_was_not_saved_is_counted_once(
    harness: ApiHarness, why: str, computed_s: float, failed: int, too_late: int
) -> None:
    job = harness.user.submit()
    agent = harness.agent()
    agent.claim()
    for _ in range(2):
        report = {"why": why, "slice": SLICE | {"compute_s": computed_s}}
        assert agent.report(job, 1, "return", report).status_code == 204
    counted = _metrics(harness)
    assert (counted["gleaner_saves_failed_total"], counted["gleaner_saves_too_late_total"]) == (failed, too_late)


def test_a_farewell_told_twice_is_late_once(harness: ApiHarness) -> None:
    agent = harness.agent()
    for _ in range(2):
        agent.ask("farewell", {"ended_s": START_S + 3590})
    assert _metrics(harness)['gleaner_agent_lateness_seconds_bucket{le="-10.0"}'] == 1
    assert _metrics(harness)["gleaner_agent_lateness_seconds_count"] == 1
