"""The month's report as a page and as a file: what the API answers, with links to the months beside."""

import csv

from tests.api.api_harness import ApiHarness
from tests.web.web_harness import browser_of

from gleaner.control.policy.node_time import NodeTime
from gleaner.control.queue import node_history
from gleaner.control.queue.database import transaction


def _fill(harness: ApiHarness) -> None:
    for cpus in (2, 3):
        harness.user.submit(spec={"cpus": cpus})
    agent = harness.agent()
    claimed = agent.claim(most=2)
    harness.now_s += 70
    for each in claimed:
        assert agent.completed(each["job"], each["attempt"]).status_code == 204
    hour_s = int(harness.now_s // 3600 * 3600)
    with transaction(harness.state.engine) as db:
        node_history.add(db, 3600, {hour_s: NodeTime(seen_s=3600, idle_node_s=7200, agent_node_s=1800)})


def test_the_report_says_what_became_of_the_nodes_and_who_got_it(harness: ApiHarness) -> None:
    _fill(harness)
    shown = browser_of(harness, harness.user).good("/web/report")
    for said in ("idle 2.0 node hours", "idle without Gleaner 2.5 node hours", "atlas alice 2 0.083", "80.0 %"):
        assert said in shown.text, said
    assert {attrs.get("class") for tag, attrs in shown.elements if tag == "rect"} >= {"idle", "harvested"}
    beside = [link for link in shown.links() if "/web/report?month=" in link]
    assert len(beside) == 2
    for link in beside:
        assert "No slice ended in this month." in browser_of(harness, harness.user).good(link).text


def test_the_file_has_the_rows_of_the_caller(harness: ApiHarness) -> None:
    _fill(harness)
    answer = browser_of(harness, harness.admin).client.get("/web/report.csv")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    (row,) = csv.DictReader(answer.text.splitlines())
    assert (row["group"], row["user"], row["slices"]) == ("atlas", "alice", "2")
    other = harness.caller("user", "carol", "cms")
    assert len(browser_of(harness, other).client.get("/web/report.csv").text.splitlines()) == 1
    assert browser_of(harness, other).get("/web/report?month=2026-13").status == 422
