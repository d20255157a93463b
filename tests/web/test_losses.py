"""Nodes that lose slices and agents that fell silent: the lists and the overview say so, and what to do."""

from collections.abc import Mapping

from tests.api.api_harness import ApiHarness
from tests.slurm.records import node, seen
from tests.web.web_harness import browser_of

from gleaner.control.api.nodes import LOST_FRESH_S
from gleaner.control.policy.lossy_nodes import SliceCounts, conspicuous
from gleaner.control.policy.node_time import DAY_S
from gleaner.control.queue import attempt_reports
from gleaner.control.queue.database import transaction


def _lose_one(harness: ApiHarness, name: str) -> int:
    agent = harness.agent(name)
    (claimed,) = agent.claim()
    harness.now_s += 300
    with transaction(harness.state.engine) as db:
        attempt_reports.lose(db, agent.name, now_s=harness.now_s, losses_until_held=99, detail="fell silent")
    agent.ask("farewell", {"ended_s": harness.now_s})
    return int(claimed["job"])


def _save_one(harness: ApiHarness, name: str) -> None:
    agent = harness.agent(name)
    (claimed,) = agent.claim()
    harness.now_s += 100
    job, attempt = claimed["job"], claimed["attempt"]
    assert agent.saved(job, attempt, harness.publish_checkpoint(job, attempt)).status_code == 204
    agent.ask("farewell", {"ended_s": harness.now_s})


def _counts(harness: ApiHarness) -> Mapping[str, tuple[int, int]]:
    harness.now_s += LOST_FRESH_S
    rows = harness.user.get("/v1/nodes").json()["nodes"]
    return {row["name"]: (row["slices_in_day"], row["lost_in_day"]) for row in rows}


def test_the_node_that_loses_jobs_is_named_with_what_it_lost(harness: ApiHarness) -> None:
    harness.state.cluster = seen(harness.now_s, *(node(name, 8, 16384) for name in ("n1", "n2", "n3")))
    job = harness.user.submit()
    for _ in range(3):
        assert _lose_one(harness, "n2") == job
        _save_one(harness, "n1")
    assert _counts(harness) == {"n1": (3, 0), "n2": (3, 3), "n3": (0, 0)}
    browser = browser_of(harness, harness.user)
    shown = browser.good("/web")
    assert "node n2 lost 3 of 3 slices in 24 hours" in shown.text
    assert "node n1" not in shown.text
    names = [link for link in browser.good("/web/nodes?order=-lost_in_day").links() if link.startswith("/web/nodes/n")]
    assert names[0] == "/web/nodes/n2"
    shown = browser.good("/web/nodes/n2")
    assert "Slices that ended in the last 24 hours 3; 3 of them lost" in shown.text
    assert shown.links().count(f"/web/jobs/{job}") == 3
    assert "/web/timeline?text=n2&length=1d" in shown.links()
    stranger = browser_of(harness, harness.caller("user", "eve", "none"))
    assert f"/web/jobs/{job}" not in stranger.good("/web/nodes/n2").links()
    harness.now_s += DAY_S
    assert _counts(harness)["n2"] == (0, 0)


def test_what_its_user_cancelled_is_not_the_nodes_loss(harness: ApiHarness) -> None:
    harness.state.cluster = seen(harness.now_s, node("n1", 8, 16384))
    job = harness.user.submit()
    harness.agent("n1").claim()
    harness.now_s += 100
    assert harness.user.post(f"/v1/jobs/{job}/cancel").status_code == 200
    assert _counts(harness) == {"n1": (1, 0)}


def test_only_a_node_that_is_worse_than_the_others_is_conspicuous() -> None:
    well = {f"n{number}": SliceCounts(40, 1) for number in range(5)}
    assert conspicuous(well) == ()
    assert conspicuous(well | {"a": SliceCounts(40, 10), "b": SliceCounts(40, 30)}) == ("b", "a")
    assert conspicuous(well | {"a": SliceCounts(40, 9)}) == ()  # less than a quarter
    assert conspicuous(well | {"a": SliceCounts(2, 2)}) == ()  # fewer than three
    assert conspicuous({f"n{number}": SliceCounts(40, 30) for number in range(5)}) == ()  # the storage, not a node
    assert conspicuous({"a": SliceCounts(4, 3)}) == ("a",)


def test_agents_that_are_not_heard_of_are_counted_with_what_to_do(harness: ApiHarness) -> None:
    harness.state.cluster = seen(harness.now_s, node("n1", 8, 16384))
    browser = browser_of(harness, harness.user)
    for name in ("n1", "n1", "n2"):
        harness.agent(name)
    harness.agent("n3", registered=False)
    heard = harness.agent("n4")
    harness.now_s += harness.state.settings.queue.lease_s
    assert heard.ask("beat", {"attempts": []}).status_code == 200
    assert "heard of" not in browser.good("/web").text
    harness.now_s += 5
    shown = browser.good("/web")
    assert "3 agents on 2 nodes have not been heard from for 3 min 5 s" in shown.text
    assert "/web/agents?text=silent" in shown.links()
    assert browser.good("/web/agents?text=silent").text.count("silent ") >= 3


def test_a_jobs_page_says_when_it_was_saved_and_what_was_computed_in_vain(harness: ApiHarness) -> None:
    job = harness.user.submit()
    browser = browser_of(harness, harness.user)
    assert "Saved never saved" in browser.good(f"/web/jobs/{job}").text
    _save_one(harness, "n1")
    assert "2027-01-15 08:01:40 on n1 , took 4 s, " in browser.good(f"/web/jobs/{job}").text
    _lose_one(harness, "n2")
    assert "fell silent; computed in vain: 5 min" in browser.good(f"/web/jobs/{job}").text
