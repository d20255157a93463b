"""The overview's band and the timeline, of a made past: all is shown, nothing is too large, and a click leads on."""

import pytest
from tests.api.api_harness import ApiHarness
from tests.slurm.records import seen
from tests.web.made_history import MadeHistory
from tests.web.web_harness import browser_of

from gleaner.control.policy.node_time import DAY_S
from gleaner.control.queue import node_history
from gleaner.control.queue.database import transaction


def _past(harness: ApiHarness, nodes: int, hours: int, jobs: int = 60) -> MadeHistory:
    harness.now_s += 2400  # within a round
    made = MadeHistory(nodes, hours, jobs, harness.now_s)
    made.write(harness.state.engine)
    found, ours = made.slurm()
    harness.state.cluster = seen(harness.now_s, *found, jobs=ours)
    return made


@pytest.mark.slow
def test_the_overview_shows_the_band_over_hours_days_and_weeks(harness: ApiHarness) -> None:
    _past(harness, 4, 30)
    browser = browser_of(harness, harness.user)
    for which in ("hours", "days", "weeks"):
        shown = browser.good(f"/web?band={which}")
        drawn = {attrs.get("class") for tag, attrs in shown.elements if tag == "path"}
        assert drawn >= {"regular", "harvested", "saving", "restoring", "idle"}, which
        assert "Core hours" in shown.text
    assert browser.get("/web?band=years").status == 422
    begin_s = (harness.now_s // DAY_S - 1) * DAY_S
    with transaction(harness.state.engine) as db:
        times = node_history.times(db, begin_s=begin_s, end_s=begin_s + DAY_S, step_s=3600).values()
    harvested_core_h = sum(each.harvested_core_s for each in times) / 3600
    assert f"{harvested_core_h:,.1f} core hours were harvested" in shown.text
    harness.now_s -= 3 * DAY_S
    assert "were harvested" not in browser.good("/web").text  # nothing is known of the day before


def test_the_timeline_shows_every_node_and_finds_some(harness: ApiHarness) -> None:
    _past(harness, 12, 8)
    browser = browser_of(harness, harness.user)
    for length in ("10m", "1h", "6h", "1d", "1w"):
        shown = browser.good(f"/web/timeline?length={length}")
        drawn = {attrs.get("class") for tag, attrs in shown.elements if tag == "path"}
        assert drawn >= {"regular", "harvested"}, length
    assert {"saving", "restoring", "ends"} <= drawn
    titles = [link for link in browser.good("/web/timeline").links() if link.startswith("/web/nodes/node")]
    assert titles[:3] == ["/web/nodes/node1", "/web/nodes/node2", "/web/nodes/node3"]  # in the picture, by number
    found = browser.good("/web/timeline?text=node12&length=6h")
    assert {link for link in found.links() if "/nodes/node" in link} == {"/web/nodes/node12"}
    earlier = next(str(attrs["href"]) for _tag, attrs in found.elements if attrs.get("rel") == "prev")
    assert "node12" in browser.good(earlier).text
    assert "Nothing is known of this time." in browser.good("/web/timeline?end=1000").text


def test_a_place_leads_to_the_job_that_was_there_or_to_the_node(harness: ApiHarness) -> None:
    made = _past(harness, 6, 3)
    ended = next(row for row in made.rows["attempt"] if row["ended_s"] is not None)
    running = next(row for row in made.rows["attempt"] if row["ended_s"] is None)
    admin, stranger = browser_of(harness, harness.admin), browser_of(harness, harness.caller("user", "eve", "none"))
    for row in (ended, running):
        place = f"/web/timeline/at?node={row['node']}&at={int(row['claimed_s']) + 30}"
        at_s = int(row["claimed_s"]) + 30
        here = [each for each in made.rows["attempt"] if each["node"] == row["node"]]
        there = [each["job"] for each in here if each["claimed_s"] <= at_s <= (each["ended_s"] or 9e9)]
        assert admin.get(place).answer.headers["location"] in [f"/web/jobs/{job}" for job in there]
        assert stranger.get(place).answer.headers["location"] == f"/web/nodes/{row['node']}"
    assert admin.get("/web/timeline/at?node=node1&at=1000").answer.headers["location"] == "/web/nodes/node1"
