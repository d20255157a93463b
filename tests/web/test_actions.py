"""Acts on the page: allowed to those to whom the API allows them, and asked for twice where they destroy."""

import re
from collections.abc import Mapping
from html import unescape

import pytest
from tests.api.api_harness import ApiHarness, Caller
from tests.web.web_harness import Shown, browser_of

from gleaner.control.queue import lanes, tokens
from gleaner.control.queue.database import transaction

VERBS = ("hold", "release", "cancel", "migrate", "priority")
PEOPLE = ("submitter", "colleague", "manager", "stranger", "admin")


def _person(harness: ApiHarness, who: str) -> Caller:
    if who == "submitter":
        return harness.user
    if who == "admin":
        return harness.admin
    if who == "manager":
        with transaction(harness.state.engine) as db:
            made = tokens.make(db, role="user", name="meg", group="atlas", manager=True, now_s=harness.now_s)
        return Caller(harness.client, {"Authorization": f"Bearer {made.token}"}, "meg")
    return harness.caller("user", "bob", "atlas" if who == "colleague" else "cms")


def _asked(caller: Caller, path: str, verb: str) -> int:
    """The status with which the API answers the same act."""
    if verb == "priority":
        return caller.patch(path, {"priority": 7}).status_code
    return caller.post(f"{path}/{verb}", {} if verb == "migrate" else None).status_code


@pytest.mark.parametrize("who", PEOPLE)
def test_the_page_lets_nobody_do_what_the_api_does_not_let_them(harness: ApiHarness, who: str) -> None:
    person = _person(harness, who)
    browser = browser_of(harness, person)
    for verb in VERBS:
        twins = [harness.user.submit(hold=verb == "release") for _ in range(2)]
        found = browser.send(f"/web/jobs/{twins[0]}/{verb}", confirmed="yes", priority="7").status
        expected = _asked(person, f"/v1/jobs/{twins[1]}", verb)
        assert (verb, found) == (verb, 303 if expected == 200 else expected)
        after = [harness.admin.get(f"/v1/jobs/{job}").json()["job"] for job in twins]
        for row in after:
            row.pop("id")
        assert after[0] == after[1]
    for verb in ("hold", "release", "cancel"):
        harness.user.submit(indices=[0, 1])
        campaign = harness.user.submit(indices=[0, 1]) and 2
        found = browser.send(f"/web/campaigns/{campaign - 1}/{verb}", confirmed="yes").status
        expected = person.post(f"/v1/campaigns/{campaign}/{verb}").status_code
        assert (verb, found) == (verb, 303 if expected == 200 else expected)


@pytest.mark.parametrize("who", PEOPLE)
@pytest.mark.parametrize(
    ("path", "fields"),
    [("nodes/drain", {"nodes": "n1"}), ("nodes/resume", {"nodes": "n1"}), ("nodes/n1/trust", {})],
)
def test_only_admins_touch_nodes(harness: ApiHarness, who: str, path: str, fields: Mapping[str, str]) -> None:
    person = _person(harness, who)
    found = browser_of(harness, person).send(f"/web/{path}", confirmed="yes", **fields).status
    expected = person.post(f"/v1/{path}", {"nodes": ["n2"]} if fields else None).status_code
    assert found == (303 if expected == 202 else expected)
    assert (expected == 403) == (who != "admin")


def test_cancel_asks_first_and_its_page_says_what_ends(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"name": "zmumu"}, indices=[0, 1, 2])
    browser = browser_of(harness, harness.user)
    questions = {f"/web/jobs/{job}/cancel": "zmumu", "/web/campaigns/1/cancel": "campaign 1, zmumu? Its 3 jobs"}
    for path, said in questions.items():
        asked = browser.send(path)
        assert asked.status == 200
        assert said in asked.text
        (form,) = [a["action"] for tag, a in asked.elements if tag == "form" and a.get("action") != "/web/sign-out"]
        assert form == path
        hidden = {str(a["name"]): str(a["value"]) for tag, a in asked.elements if tag == "input"}
        assert hidden["confirmed"] == "yes"
        assert harness.user.get(f"/v1/jobs/{job}").json()["job"]["state"] == "New"
    done = browser.client.post(str(form), data=hidden)
    assert done.status_code == 303
    assert harness.user.get("/v1/status").json()["cancelled"] == 3
    after = browser.good(done.headers["location"])
    assert "Campaign 1, zmumu" in after.text
    assert "Cancelled." in after.text
    assert "Cancel all its jobs" not in after.text  # nothing is left to act on
    assert "?done=" not in "".join(map(str, after.links()))
    assert "done" not in browser.good("/web/campaigns/1?done=<b>paid</b>").text


def test_drain_asks_first_unless_it_is_a_dry_run(harness: ApiHarness) -> None:
    browser = browser_of(harness, harness.admin)
    assert "Resume" in browser.good("/web/drains").text
    asked = browser.send("/web/nodes/drain", nodes="node[1-2] node7", spanning="wait")
    assert "Drain node[1-2], node7?" in asked.text
    assert harness.admin.get("/v1/drains").json() == []
    assert browser.send("/web/nodes/drain", nodes="node9", dry_run="yes").status == 303
    hidden = {str(a["name"]): str(a["value"]) for tag, a in asked.elements if tag == "input"}
    assert browser.client.post("/web/nodes/drain", data=hidden).status_code == 303
    first, second = harness.admin.get("/v1/drains").json()
    assert (first["task"], first["nodes"], second["task"]) == ("drain", ["node1", "node2", "node7"], "dry run")
    assert "node1, node2, node7" in browser.good("/web/drains").text


@pytest.mark.parametrize(
    ("verb", "fields", "status", "said"),
    [
        ("priority", {"priority": "high"}, 422, "priority: input should be a whole number"),
        ("priority", {"priority": "9" * 30}, 422, "priority: input should be less than or equal to 1000000"),
        ("migrate", {"to": "<b>"}, 422, "to: string should match pattern"),
        ("migrate", {"to": "n1"}, 409, "job 1"),
        ("rename", {}, 422, "verb: string should match pattern"),
    ],
)
def test_a_wrong_act_is_refused_in_the_words_of_the_api(
    harness: ApiHarness, verb: str, fields: dict[str, str], status: int, said: str
) -> None:
    harness.user.submit()
    harness.user.post("/v1/jobs/1/cancel")
    shown = browser_of(harness, harness.user).send(f"/web/jobs/1/{verb}", **fields)
    assert shown.status == status
    assert said in shown.text


def _submitted(harness: ApiHarness, who: Caller, text: str) -> Shown:
    return browser_of(harness, who).send("/web/submit", campaign=text)


def test_a_campaign_file_is_submitted(harness: ApiHarness) -> None:
    text = "image: gleaner/pi\r\nname: zmumu\r\ncommand: [run, '{index}']\r\nindices: 0-2\r\n"  # as browsers send it
    assert _submitted(harness, harness.user, text).answer.headers["location"] == "/web/campaigns/1?done=submit"
    shown = harness.user.get("/v1/jobs/2").json()
    found = shown["job"]["name"], shown["job"]["submitter"], shown["spec"]["command"]
    assert found == ("zmumu", "alice", ["run", "1"])
    one = _submitted(harness, harness.admin, "image: gleaner/pi\ngroup: atlas\nhold: true\n")
    assert one.answer.headers["location"] == "/web/jobs/4?done=submit"


def test_a_dry_run_shows_the_first_jobs_and_submits_nothing(harness: ApiHarness) -> None:
    text = "image: gleaner/pi\ncommand: [run, '{mass}', '{seed}']\nparameters: points.csv\n"
    browser = browser_of(harness, harness.user)
    assert "what is in points.csv" in browser.send("/web/submit", campaign=text, dry_run="yes").text
    fields = {"campaign": text, "rows": "mass,seed\r\n" + "".join(f"{n}00,{n}\r\n" for n in range(1, 6))}
    shown = browser.send("/web/submit", dry_run="yes", **fields)
    assert "would take these 5 jobs. Nothing was submitted" in shown.text
    assert ("run 300 3" in shown.text, "run 400 4" in shown.text, "and 2 more" in shown.text) == (True, False, True)
    assert harness.admin.get("/v1/jobs").json()["total"] == 0
    assert browser.send("/web/submit", **fields).status == 303
    assert harness.admin.get("/v1/jobs/5").json()["spec"]["command"] == ["run", "500", "5"]
    other = fields | {"rows": "mass,seed\r\n1,2\r\n"}  # a form to which its reader has gone back
    sent = [browser.send("/web/submit", key="0" * 32, **each).answer.headers["location"] for each in (fields, other)]
    assert sent == ["/web/campaigns/2?done=submit", "/web/campaigns/3?done=submit"]


def test_a_button_that_is_clicked_twice_submits_once(harness: ApiHarness) -> None:
    browser = browser_of(harness, harness.user)

    def clicked(page: str, path: str, **fields: str) -> list[str]:
        (key,) = re.findall('name="key" value="([0-9a-f]{32})"', browser.good(page).answer.text)
        return [browser.send(path, key=key, **fields).answer.headers["location"] for _ in range(2)]

    text = "image: gleaner/pi\n"
    assert clicked("/web/submit", "/web/submit", campaign=text) == ["/web/jobs/1?done=submit"] * 2
    assert clicked("/web/submit", "/web/submit", campaign=text) == ["/web/jobs/2?done=submit"] * 2


@pytest.mark.parametrize(
    ("text", "status", "said"),
    [
        ("image: gleaner/pi\ncpu: 3\n", 422, "the campaign, line 2: unknown key 'cpu'"),
        ("# " + "x" * 70_000, 422, "use glean submit"),
        ("", 422, "must hold keys"),
        ("image: gleaner/pi\ngroup: cms\n", 403, "this token is for group atlas only"),
    ],
)
def test_a_wrong_campaign_is_refused_with_its_line_and_nothing_is_lost(
    harness: ApiHarness, text: str, status: int, said: str
) -> None:
    shown = _submitted(harness, harness.user, text)
    assert shown.status == status
    assert said in shown.text
    assert text.strip() in unescape(shown.answer.text)
    assert ("2: cpu: 3" in shown.text) == ("line 2" in said)
    assert harness.admin.get("/v1/jobs").json()["total"] == 0


def test_what_failed_runs_again_alone_or_with_its_campaign(harness: ApiHarness) -> None:
    harness.user.submit(spec={"retries": 0, "memory_mib": 100, "most_memory_mib": 200}, indices=[4, 5])
    with transaction(harness.state.engine) as db:
        lanes.give_memory(db, 1, 200)
    agent, browser, paths = harness.agent(), browser_of(harness, harness.user), ("/web/jobs/1", "/web/campaigns/1")
    stranger = browser_of(harness, harness.caller("user", "carol", "cms"))

    def offers() -> list[bool]:
        return [f'action="{path}/rerun"' in browser.good(path).answer.text for path in paths]

    assert [browser.send(f"{path}/rerun").status for path in paths] == [409, 409]  # nothing has failed
    for attempt, path in enumerate(paths, start=1):
        assert offers() == [False, False]
        agent.claim(most=2)
        agent.completed(1, attempt, exit_code=3)
        assert (offers(), stranger.send(f"{path}/rerun").status) == ([True, True], 403)
        image = f"lab@sha256:{attempt}" if "campaigns" in path else ""  # the form of a job has no image
        assert browser.send(f"{path}/rerun", image=image).answer.headers["location"] == f"{path}?done=rerun"
        detail = harness.user.get("/v1/jobs/1").json()
        job = detail["job"]
        assert (detail["spec"]["image"] == image) == bool(image)
        assert (job["state"], job["memory_mib"], job["campaign"], job["index"]) == ("New", 200, 1, 4)
