"""The pages, filled by a real queue: each shows what the API answers, to those whom the API answers."""

import hashlib
import io
import re
import tarfile
import tomllib
from pathlib import Path
from urllib.parse import quote

import pytest
from tests.api.api_harness import ApiHarness
from tests.slurm.records import node, seen
from tests.web.web_harness import Shown, browser_of, markup

from gleaner.agent.messages import LogLines
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.models.searches import ROWS_A_PAGE
from gleaner.control.queue import decisions, logs, node_health, queries
from gleaner.control.queue.database import transaction
from gleaner.control.settings import EntitlementSettings, SiteSettings
from gleaner.control.web import jobs, rendering

PAGES = (
    "/web",
    "/web/campaigns",
    "/web/jobs",
    "/web/nodes",
    "/web/agents",
    "/web/entitlements",
    "/web/report",
    "/web/timeline",
    "/web/submit",
)
STATIC = Path(rendering.__file__).parent / "static"


@pytest.mark.slow
def test_every_page_is_there_with_an_empty_queue_and_all_links_of_it_lead_somewhere(harness: ApiHarness) -> None:
    for caller, more in ((harness.user, ()), (harness.admin, ("/web/drains",))):
        browser = browser_of(harness, caller)
        links = {link: path for path in (*PAGES, *more) for link in browser.good(path).links() if link != "#main"}
        for link, path in links.items():
            if "accounting" in link:  # this one asks Slurm
                continue
            assert browser.get(link).status == 200, (path, link)


def test_the_life_of_a_job_is_on_its_page(harness: ApiHarness) -> None:
    job = harness.user.submit(spec={"name": "zmumu", "environment": {"SEED": "7"}})
    agent = harness.agent("n17")
    (claimed,) = agent.claim()
    with transaction(harness.state.engine) as db:
        logs.append(db, job, 1, LogLines(first=0, lines=("event 1", "event 2")), most_bytes=10_000)
    harness.now_s += 70
    assert agent.saved(job, claimed["attempt"], harness.publish_checkpoint(job, 1)).status_code == 204
    with transaction(harness.state.engine) as db:
        number = decisions.record(
            db, kind=DecisionKind.START, subjects={f"job {job}": "atlas"}, policy="fair share", given={"cores": 8},
            answer={"because": {f"job {job}": "its group has the least"}}, acted=True, now_s=harness.now_s,
        )  # fmt: skip
    browser = browser_of(harness, harness.user)
    shown = browser.good(f"/web/jobs/{job}")
    for said in ("zmumu", "Saved", "SEED=7", "Waits because", "the beginning", "60.0", "4.0", "1/1", "claim", "event 2",
                 "its group has the least"):  # fmt: skip
        assert said in shown.text, said
    assert "/web/nodes/n17" in shown.links()
    assert {attrs.get("class") for tag, attrs in shown.elements if tag == "rect"} >= {"compute", "save"}
    assert '"cores": 8' in browser.good(f"/web/decisions/{number}").text
    assert browser.good(f"/web/jobs/{job}/log?first=1").text.count("event") == 1


def test_a_log_is_shown_from_its_end_and_turned_back_page_by_page(harness: ApiHarness) -> None:
    job = harness.user.submit()
    agent = harness.agent()
    (claimed,) = agent.claim()
    many = tuple(f"line {number};" for number in range(1200))
    with transaction(harness.state.engine) as db:
        logs.append(db, job, claimed["attempt"], LogLines(first=0, lines=many), most_bytes=10**6)
    browser = browser_of(harness, harness.user)
    on_job = browser.good(f"/web/jobs/{job}").text
    assert ("line 1199;" in on_job, "line 1180;" in on_job, "line 1179;" in on_job) == (True, True, False)
    shown, seen = browser.good(f"/web/jobs/{job}/log"), list[str]()
    while True:
        seen = re.findall(r"line \d+;", shown.text) + seen
        before = [str(a["href"]) for tag, a in shown.elements if a.get("rel") == "prev"]
        if not before:
            break
        shown = browser.good(before[0])
    assert sorted(set(seen), key=many.index) == list(many)


def test_a_log_is_searched_and_downloaded(harness: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "LINES_AT_ONCE", 7)
    job = harness.user.submit()
    (claimed,) = harness.agent().claim()
    many = tuple(f"line {number} of 100%" for number in range(30))
    with transaction(harness.state.engine) as db:
        logs.append(db, job, claimed["attempt"], LogLines(first=0, lines=many), most_bytes=10**6)
    browser = browser_of(harness, harness.user)
    found = browser.good(f"/web/jobs/{job}/log?text=INE 2")
    assert re.findall(r"line \d+", found.text) == [f"line {number}" for number in (2, *range(20, 30))]
    assert {f"/web/jobs/{job}/log?first=9", f"/web/jobs/{job}/log.txt"} <= set(found.links())
    assert "0 lines have" in browser.good(f"/web/jobs/{job}/log?text=1_0").text  # no pattern of SQL's
    assert browser.good(f"/web/jobs/{job}/log.txt").answer.text.splitlines() == list(many)
    stranger = browser_of(harness, harness.caller("user", "carol", "cms"))
    assert [stranger.get(f"/web/jobs/{job}/log{rest}").status for rest in (".txt", "?text=line")] == [403, 403]


def test_results_of_a_job_and_of_a_campaign_are_downloaded(
    harness: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queries, "RESULTS_AT_ONCE", 2)
    first = harness.user.submit(spec={"name": "mu"}, indices=[4, 5, 6])
    agent = harness.agent()
    for job in agent.claim(most=3):
        left = None if job["job"] == first else harness.publish_output(job["job"], job["attempt"], b"%d" % job["job"])
        assert agent.completed(job["job"], job["attempt"], left).status_code == 204
    browser = browser_of(harness, harness.user)
    assert browser.good(f"/web/jobs/{first + 1}/results.tar").answer.content == b"%d" % (first + 1)
    assert "/web/campaigns/1/results.tar" in browser.good("/web/campaigns/1").links()
    with tarfile.open(fileobj=io.BytesIO(browser.good("/web/campaigns/1/results.tar").answer.content)) as archive:
        files = {name: file.read() for name in archive.getnames() if (file := archive.extractfile(name))}
    assert files == {"mu-5.tar": b"%d" % (first + 1), "mu-6.tar": b"%d" % (first + 2)}
    stranger = browser_of(harness, harness.caller("user", "carol", "cms"))
    paths = ("campaigns/1", f"jobs/{first + 1}")
    assert [stranger.get(f"/web/{path}/results.tar").status for path in paths] == [403, 403]


def test_the_overview_begins_with_the_campaigns_of_its_reader(harness: ApiHarness) -> None:
    harness.user.submit(spec={"name": "zmumu"}, indices=[1, 2])
    harness.caller("user", "bob", "atlas").submit(spec={"name": "of-bob"}, indices=[1, 2])
    shown = browser_of(harness, harness.user).good("/web")
    assert ("zmumu" in shown.text, "of-bob" in shown.text) == (True, False)
    assert [link for link in shown.links() if "/campaigns/" in link] == ["/web/campaigns/1"] * 2
    assert "/web/entitlements" not in shown.links()  # they are off
    site = SiteSettings(name="Hill cluster", documentation="https://docs.example.org/")
    on = EntitlementSettings(mode="dry-run", partitions=("main",))
    harness.state.settings = harness.state.settings.model_copy(update={"site": site, "entitlements": on})
    shown = browser_of(harness, harness.user).good("/web")
    assert {"/web/entitlements", "https://docs.example.org/faq.md"} <= {*shown.links()}
    assert "Hill cluster" in shown.text


def test_a_user_sees_what_the_users_token_may_see(harness: ApiHarness) -> None:
    mine = harness.user.submit()
    other = harness.caller("user", "carol", "cms")
    theirs = other.submit(spec={"name": "secret"}, indices=[3, 4])
    browser = browser_of(harness, harness.user)
    assert browser.get(f"/web/jobs/{theirs}").status == 403
    assert browser.get(f"/web/jobs/{theirs}/log").status == 403
    assert browser.get("/web/campaigns/1").status == 403
    assert browser.get("/web/drains").status == 403
    for path in (*PAGES, "/web/jobs?group=cms", "/web/campaigns?group=cms", f"/web/jobs?text={theirs}"):
        shown = browser.good(path)
        assert "secret" not in shown.text, path
        assert "cms" not in re.sub(r'value="cms"', "", shown.text), path
    assert f"/web/jobs/{mine}" in browser.good("/web/jobs").links()
    admin = browser_of(harness, harness.admin)
    assert f"/web/jobs/{theirs}" in admin.good("/web/jobs").links()
    assert "secret" in admin.good("/web/campaigns").text


def _ids(shown: Shown) -> list[int]:
    return [int(link.rpartition("/")[2]) for link in shown.links() if re.fullmatch(r"/web/jobs/\d+", link)]


def test_jobs_are_searched_sorted_and_paged(harness: ApiHarness) -> None:
    first = harness.user.submit(spec={"name": "alpha", "priority": 5})
    harness.user.submit(spec={"name": "beta"}, indices=list(range(ROWS_A_PAGE)))
    harness.user.submit(spec={"name": "ofx50"})
    held = harness.user.submit(spec={"name": "of_50"}, hold=True)
    browser = browser_of(harness, harness.user)
    page_1 = browser.good("/web/jobs")
    assert _ids(page_1) == list(range(held, held - ROWS_A_PAGE, -1))
    (next_page,) = [str(a["href"]) for tag, a in page_1.elements if a.get("rel") == "next"]
    assert _ids(browser.good(next_page)) == [3, 2, 1]
    assert _ids(browser.good("/web/jobs?order=-priority"))[0] == first
    assert _ids(browser.good("/web/jobs?text=f_5")) == [held]  # no pattern of SQL's
    assert _ids(browser.good("/web/jobs?held=true&state=&outcome=&group=")) == [held]
    assert _ids(browser.good("/web/campaigns/1?order=id"))[:2] == [2, 3]
    assert "/web/jobs?order=name" in page_1.links()


@pytest.mark.parametrize("query", ["page=0", "order=hash", "state=Gone", "text=a%00b", "x=1"])
def test_a_wrong_search_is_refused_in_one_line(harness: ApiHarness, query: str) -> None:
    shown = browser_of(harness, harness.user).get(f"/web/jobs?{query}")
    assert shown.status == 422
    assert "This did not work" in shown.text


def test_nodes_say_what_is_wrong_and_what_to_do(harness: ApiHarness) -> None:
    harness.state.cluster = seen(harness.now_s, node("n1", 8, 16384), node("n2", 8, 16384))
    harness.state.wrong_clocks = {"n2": 90.0}
    with transaction(harness.state.engine) as db:
        node_health.record_fault(db, "n1", now_s=harness.now_s, faults_until_excluded=1)
    browser = browser_of(harness, harness.admin)
    overview = browser.good("/web").text
    assert "node n1 is excluded: agents failed here 1 times in a row" in overview
    assert "node n2" in overview
    assert "excluded until" in browser.good("/web/nodes?text=n1&order=-name").text
    assert "n2" not in browser.good("/web/nodes?text=n1").text
    assert "/web/nodes/n2" in browser.good("/web/nodes?use=idle").links()
    assert "/web/nodes/n2" not in browser.good("/web/nodes?use=agent").links()
    assert browser.send("/web/nodes/n1/trust").status == 303
    assert "excluded until" not in browser.good("/web/nodes/n1").text
    assert browser.get("/web/nodes/n9").status == 404


def test_vendored_files_are_as_they_were_published_with_their_licence() -> None:
    files = tomllib.loads((STATIC / "VENDORED.toml").read_text())["file"]
    assert {file["name"] for file in files} == {path.name for path in STATIC.glob("*.min.*")}
    for file in files:
        assert hashlib.sha256((STATIC / file["name"]).read_bytes()).hexdigest() == file["sha256"]
        assert (STATIC / file["licence_file"]).read_text().strip()


WORDS = (
    "<script>alert(1)</script>", '"><img src=x onerror=alert(1)>', "' onmouseover='x", "&lt;b&gt;", "{{ 7*7 }}",
    "{% raw %}", "</pre><b>", "\x1b[2Jgone", "\u202egnp.exe", "javascript:alert(1)", "-->", "]]>",
)  # fmt: skip
OUR_OWN = re.compile(r"/web(/[A-Za-z0-9._~/?&=%+:-]*)?|#main")


def _pages_with(harness: ApiHarness, word: str) -> list[str]:
    """Return pages that show the word as a command, in the environment, in the log, as reasons and as a search."""
    job = harness.user.submit(spec={"command": [word, word], "environment": {"E": word}})
    agent = harness.agent("n1")
    agent.claim()
    with transaction(harness.state.engine) as db:
        logs.append(db, job, 1, LogLines(first=0, lines=(word, word)), most_bytes=10_000)
    assert agent.report(job, 1, "return", {"why": "node fault", "detail": word}).status_code == 204
    agent.ask("farewell", {"ended_s": harness.now_s, "reason": word})
    harness.user.post(f"/v1/jobs/{job}/cancel")
    harness.state.cluster = seen(harness.now_s, node("n1", 8, 16384, word))
    paths = (f"/web/jobs/{job}", f"/web/jobs/{job}/log", f"/web/jobs/{job}/log?text={quote(word)}",
             "/web/nodes", f"/web/agents?text={agent.name}")  # fmt: skip
    browser = browser_of(harness, harness.user)
    return [browser.good(path).answer.text for path in paths]


def test_whatever_is_written_anywhere_stays_text(harness: ApiHarness) -> None:
    """A page has the elements of the one with plain words, their attributes, and no control characters."""

    def skeleton(page: str) -> list[tuple[str, tuple[str, ...]]]:
        return [(tag, tuple(sorted(attrs))) for tag, attrs in markup(page).elements]

    plain = _pages_with(harness, "plain")
    for word in WORDS:
        pages = _pages_with(harness, word)
        assert list(map(skeleton, pages)) == list(map(skeleton, plain)), word
        for page in pages:
            assert all(c.isprintable() or c == "\n" for c in page), word
            for _tag, attrs in markup(page).elements:
                for name in ("href", "src", "action", "hx-get"):
                    assert name not in attrs or OUR_OWN.fullmatch(str(attrs[name])), attrs
