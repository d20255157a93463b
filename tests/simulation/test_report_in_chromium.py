"""The report in a browser: it opens without a network, shows its pictures, and fits on paper."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser
from tests import chromium
from tests.simulation.pages import everything
from tests.simulation.shipped import PATH

from gleaner.control.cli import app
from gleaner.control.simulation.metrics.tables import Table
from gleaner.control.simulation.report import write
from gleaner.control.simulation.report.page import Page, Section

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def browser() -> Generator[Browser]:
    with chromium.started() as running:
        yield running


class Shown(chromium.Tab):
    """A file in a tab without a network."""

    def __init__(self, browser: Browser, path: Path, scheme: str) -> None:
        super().__init__(browser, scheme=scheme, width=1100, offline=True)
        self.page.goto(path.as_uri())

    def check(self) -> None:
        """That it asked for nothing but itself, and complained of nothing."""
        assert [url for url in self.asked if not url.startswith(("file:", "data:"))] == []
        assert self.complaints == []


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Of a run with agents, of a comparison, and of every kind of part with nasty names."""
    folder = tmp_path_factory.mktemp("reports")
    agents = ("--save", "60", "--restore", "60")
    assert app.run(["simulate", "run", str(PATH), "--agents", "1h", *agents, "--report", str(folder / "run.html")]) == 0
    compared = ["--schedulers", "fcfs,easy", "--agents", "30m,1h,2h", *agents, "--report", str(folder / "compare.html")]
    assert app.run(["simulate", "compare", str(PATH), *compared]) == 0
    columns = tuple(f"column {place}" for place in range(13))
    wide = Table(columns, ((*columns[:9], *["+146.31 % (+126.96 % to +165.66 %)"] * 4),))
    write(folder / "wide.html", Page("Wide", "", [Section("", [wide])]))
    write(folder / "everything.html", everything())
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("name", ["run", "compare", "everything"])
def test_a_report_opens_offline_and_shows_its_pictures(browser: Browser, reports: dict[str, Path], name: str) -> None:
    shown = Shown(browser, reports[name], "light")
    shown.check()
    pictures = shown.page.locator("figure img").all()
    assert pictures
    for picture in pictures:
        picture.scroll_into_view_if_needed()
        assert picture.evaluate("image => image.complete && image.naturalWidth > 300")
    assert shown.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown.page.context.close()


@pytest.mark.parametrize("name", ["run", "compare", "wide"])
def test_nothing_is_cut_off_on_paper(browser: Browser, reports: dict[str, Path], name: str) -> None:
    shown = Shown(browser, reports[name], "light")
    shown.page.emulate_media(media="print")
    shown.page.set_viewport_size({"width": 690, "height": 1000})  # A4 within its margins
    assert shown.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown.page.context.close()


def test_nasty_names_do_nothing(browser: Browser, reports: dict[str, Path]) -> None:
    shown = Shown(browser, reports["everything"], "light")
    assert shown.page.title().startswith("</script>")
    assert shown.page.title() != "taken"
    assert shown.page.locator("img").count() == shown.page.locator("figure img").count()
    shown.check()
    shown.page.context.close()
