"""The page in a browser: signing in by a code, every page for everybody's eyes, an act, and a restart of control."""

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, FilePayload, expect
from sqlalchemy import update
from tests import chromium
from tests.cli.cli_harness import CliHarness, Service
from tests.cli.conftest import admin, service
from tests.slurm.records import node, seen
from tests.web.made_history import MadeHistory

from gleaner.control.queue.database import transaction
from gleaner.control.queue.tables import AGENT

__all__ = ["admin", "service"]

pytestmark = [pytest.mark.slow, pytest.mark.extended]
TAKES_PICTURES = os.environ.get("GLEANER_TESTS") == "pictures"
DOCS = Path(__file__).parents[2] / "docs"
LATEST_MS = 60_000
"""An event that takes longer never comes; the browser waits for each."""
TOO_WIDE = """[...document.querySelectorAll("body *")]
    .filter(each => each.getBoundingClientRect().right > window.innerWidth && !each.closest(".wide, svg"))
    .map(each => each.outerHTML.slice(0, 100))"""
"""The elements that a narrow window does not show as a whole, but for those that scroll by themselves."""
SCROLLS = """[...document.querySelectorAll("div.wide")]
    .filter(each => each.scrollWidth > each.clientWidth && !each.closest("details"))
    .map(each => each.outerHTML.slice(0, 100))"""
PAGES = ("", "/campaigns", "/campaigns/1", "/jobs", "/jobs/1", "/jobs/1/log", "/jobs/1/log?text=1",
         "/nodes", "/nodes/node1", "/agents", "/entitlements", "/report", "/timeline", "/drains", "/submit",
         "/jobs/99")  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium.started() as running:
        yield running


class Tab(chromium.Tab):
    """A tab that waits long enough for each event."""

    def __init__(self, browser: Browser, *, scheme: str = "light", width: int = 1200) -> None:
        super().__init__(browser, scheme=scheme, width=width)
        self.page.set_default_timeout(LATEST_MS)


def _fill(admin: CliHarness) -> None:
    """Jobs that wait, run and have ended, a campaign, and two nodes."""
    admin.good("submit", "--image", "gleaner/pi", "--group", "atlas", "--array", "0-2", "--", "<b>markup</b>")
    (first, _second, third) = admin.node.claim(most=3)
    admin.node.write(first, 0, "event 1", "<script>alert(1)</script>")
    admin.node.complete(third, exit_code=3)
    admin.good("submit", "--image", "gleaner/pi", "--group", "atlas", "--hold", "--name", "waits", "--", "run")
    nodes = (node("node1", 64, 65536), node("node2", 64, 65536, "ALLOCATED"))
    admin.state.cluster = seen(admin.state.clock(), *nodes)


def test_a_person_looks_at_everything_and_acts(browser: Browser, admin: CliHarness, service: Service) -> None:
    _fill(admin)
    home = f"http://127.0.0.1:{service.port}/web"
    for scheme, width in (("light", 1280), ("dark", 390)):
        tab = Tab(browser, scheme=scheme, width=width)
        tab.page.goto(f"{home}/sign-in")
        found = Axe().run(tab.page)
        assert found.violations_count == 0, found.generate_report()
        tab.page.goto(admin.good("web").strip())
        tab.page.wait_for_url(home)
        assert [url for url in tab.asked if "#" in url] == []
        for path in PAGES:
            tab.page.goto(home + path)
            expect(tab.page.locator("h1")).to_be_visible()
            found = Axe().run(tab.page)
            assert found.violations_count == 0, f"{path}, {scheme}: {found.generate_report()}"
            assert tab.page.evaluate(TOO_WIDE) == [], path
            assert tab.page.evaluate(SCROLLS) == [], path  # on a phone, rows are cards
        missing = [line for line in tab.complaints if "404" in line]
        assert (len(missing), tab.complaints) == (1, missing)  # /jobs/99 alone, which is not there
        assert [url for url in tab.asked if not url.startswith(f"http://127.0.0.1:{service.port}/")] == []
        tab.page.get_by_role("button", name="Sign out").click()
        expect(tab.page.get_by_role("heading", name="Sign in")).to_be_visible()
        tab.page.context.close()


def test_a_past_is_drawn_and_a_click_leads_to_what_was_there(
    browser: Browser, admin: CliHarness, service: Service
) -> None:
    """With GLEANER_TESTS=pictures it takes the pictures in docs/."""
    made = MadeHistory(nodes=16, hours=30, jobs=300, now_s=admin.state.clock())
    made.write(admin.state.engine)
    nodes, ours = made.slurm()
    admin.state.cluster = seen(admin.state.clock(), *nodes, jobs=ours)
    home = f"http://127.0.0.1:{service.port}/web"
    for scheme in ("light", "dark"):
        tab = Tab(browser, scheme=scheme)
        tab.page.goto(admin.good("web").strip())
        tab.page.wait_for_url(home)
        for path, name in (("", "overview"), ("/timeline?length=6h", "timeline"), ("/report", "report")):
            tab.page.goto(home + path)
            expect(tab.page.locator("#main svg").first).to_be_visible()
            found = Axe().run(tab.page)
            assert found.violations_count == 0, f"{path}, {scheme}: {found.generate_report()}"
            if TAKES_PICTURES and scheme == "light":
                tab.page.screenshot(path=DOCS / f"web-{name}.png")
        tab.page.goto(f"{home}/timeline")
        stripe = tab.page.locator("#stripes a rect").first
        stripe.click(position={"x": 5, "y": 5})  # an hour ago
        tab.page.wait_for_url(re.compile(r"/web/(jobs/\d+|nodes/node1)$"))
        assert tab.complaints == []
        tab.page.context.close()


def test_a_page_hears_of_a_new_job_at_once(browser: Browser, admin: CliHarness, service: Service) -> None:
    tab = Tab(browser)
    tab.page.goto(admin.good("web").strip())
    tab.page.get_by_role("link", name="Jobs", exact=True).click()
    expect(tab.page.get_by_text("No job that you may see matches.")).to_be_visible()
    tab.page.wait_for_function("() => known !== undefined")  # it has heard how things stand
    # Only news can show the job: nothing asks by the clock any more.
    tab.page.evaluate("document.getElementById('live').setAttribute('hx-trigger', 'news from:body')")
    tab.page.evaluate("htmx.process(document.getElementById('live'))")
    admin.good("submit", "--image", "gleaner/pi", "--group", "atlas", "--name", "fresh", "--", "run")
    expect(tab.page.get_by_role("row", name="fresh")).to_be_visible(timeout=LATEST_MS)
    tab.page.context.close()


def test_a_campaign_file_is_uploaded_gets_an_image_and_shows_its_wrong_line(
    browser: Browser, admin: CliHarness, service: Service
) -> None:
    _fill(admin)
    with transaction(admin.state.engine) as db:
        db.execute(update(AGENT).values(facts={"images": {"names": ["site/pythia:8.3"]}}))
    tab = Tab(browser)
    tab.page.goto(admin.good("web").strip())
    tab.page.get_by_role("link", name="Submit", exact=True).click()
    file = FilePayload(name="runs.yaml", mimeType="text/yaml", buffer=b"image: a\ncpu: 3\ngroup: atlas\n")
    upload = tab.page.get_by_label("Upload it").first
    expect(upload).to_be_visible()  # the page's script has begun
    upload.set_input_files([file])
    field = tab.page.locator("#campaign")
    expect(field).to_have_value("image: a\ncpu: 3\ngroup: atlas\n")
    tab.page.get_by_label("Image").select_option("site/pythia:8.3")
    expect(field).to_have_value("image: site/pythia:8.3\ncpu: 3\ngroup: atlas\n")
    tab.page.get_by_role("button", name="Submit").click()
    expect(tab.page.get_by_role("alert")).to_contain_text("line 2")
    chosen = "const f = document.activeElement; return f.value?.slice(f.selectionStart, f.selectionEnd) === 'cpu: 3';"
    tab.page.wait_for_function(f"() => {{ {chosen} }}")
    tab.page.context.close()


def test_a_job_is_cancelled_and_a_restart_of_control_and_the_end_of_a_token_are_said(
    browser: Browser, admin: CliHarness, service: Service
) -> None:
    _fill(admin)
    tab = Tab(browser)
    tab.page.goto(admin.good("web").strip())
    tab.page.get_by_role("link", name="Jobs", exact=True).click()
    tab.page.get_by_role("row", name="waits").get_by_role("link").first.click()
    tab.page.get_by_role("button", name="Cancel").click()
    tab.page.get_by_role("button", name="Yes, do it").click()
    expect(tab.page.locator("dl.facts")).to_contain_text("cancelled")
    tab.page.get_by_role("link", name="Overview", exact=True).click()
    expect(tab.page.locator("dl.cards")).to_be_visible()
    service.stop()
    expect(tab.page.locator("#away")).to_be_visible(timeout=LATEST_MS)
    service.start()
    expect(tab.page.locator("#away")).to_be_hidden(timeout=LATEST_MS)
    expect(tab.page.get_by_role("heading", name="Overview")).to_be_visible()
    admin.good("token", "revoke", "own")
    expect(tab.page.get_by_role("heading", name="Sign in")).to_be_visible(timeout=LATEST_MS)
    tab.page.context.close()
