"""The report in a browser: it opens without a network, draws its plots, and shows figures under the pointer."""

from collections.abc import Generator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page
from tests import chromium
from tests.simulation.pages import everything
from tests.simulation.shipped import PATH

from gleaner.control.cli import app
from gleaner.control.simulation.report import write

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
    write(folder / "everything.html", everything())
    return {path.stem: path for path in folder.iterdir()}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["run", "compare", "everything"])
def test_a_report_opens_offline_and_draws_its_plots(
    browser: Browser, reports: dict[str, Path], name: str, scheme: str
) -> None:
    shown = Shown(browser, reports[name], scheme)
    shown.check()
    plots = shown.page.locator("figure svg").all()
    assert len(plots) >= 4
    for plot in plots:
        plot.scroll_into_view_if_needed()
        box = plot.bounding_box()
        assert box is not None
        assert min(box["width"] / 500, box["height"] / 80) >= 1
        assert _colours(shown.page, plot.screenshot()) >= 3
    assert shown.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown.page.context.close()


def test_light_and_dark_differ(browser: Browser, reports: dict[str, Path]) -> None:
    papers: list[str] = []
    for scheme in ("light", "dark"):
        shown = Shown(browser, reports["run"], scheme)
        papers.append(shown.page.evaluate("getComputedStyle(document.body).backgroundColor"))
        shown.page.context.close()
    assert papers[0] == "rgb(255, 255, 255)"
    assert papers[1] != papers[0]


def test_the_figures_show_under_the_pointer(browser: Browser, reports: dict[str, Path]) -> None:
    shown = Shown(browser, reports["compare"], "light")
    page, tip = shown.page, shown.page.locator("#tip")
    assert not tip.is_visible()
    _point_at(page.locator("figure", has_text="Effective load against").locator(".hit").first)
    assert tip.is_visible()
    assert tip.inner_text().splitlines()[0] == "length of agents: 30 min"
    assert "%" in tip.inner_text()
    page.mouse.move(5, 5)
    assert not tip.is_visible()
    shown.check()
    page.context.close()


def test_the_gantt_chart_names_what_is_pointed_at(browser: Browser, reports: dict[str, Path]) -> None:
    shown = Shown(browser, reports["run"], "light")
    blocks = shown.page.locator("figure", has_text="Who had which").locator(".block")
    sizes: list[float] = blocks.evaluate_all(
        "all => all.map(one => one.width.baseVal.value * one.height.baseVal.value)"
    )
    _point_at(blocks.nth(sizes.index(max(sizes))))  # others may be too small to be hit in their middle
    said = shown.page.locator("#tip").inner_text()
    assert said.startswith(("job ", "agent"))
    assert "processor" in said
    shown.page.context.close()


def test_nasty_names_do_nothing(browser: Browser, reports: dict[str, Path]) -> None:
    shown = Shown(browser, reports["everything"], "light")
    assert shown.page.title().startswith("</script>")
    _point_at(shown.page.locator(".hit").first)
    assert shown.page.title() != "taken"
    assert shown.page.locator("img").count() == 0
    shown.check()
    shown.page.context.close()


def test_a_narrow_screen_has_it_all_without_scrolling_sideways(browser: Browser, reports: dict[str, Path]) -> None:
    shown = Shown(browser, reports["compare"], "light")
    shown.page.set_viewport_size({"width": 400, "height": 800})
    assert shown.page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    shown.page.context.close()


def _point_at(thing: Locator) -> None:
    """Scroll there, and when the page has taken notice of it, as it hides figures then, move the pointer there."""
    thing.scroll_into_view_if_needed()
    thing.page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    thing.hover()


def _colours(page: Page, png: bytes) -> int:
    """Return the number of clearly different colours in a picture, counted by the browser itself."""
    counting = """
    async (bytes) => {
      const bitmap = await createImageBitmap(new Blob([new Uint8Array(bytes)], { type: "image/png" }));
      const canvas = new OffscreenCanvas(bitmap.width, bitmap.height).getContext("2d");
      canvas.drawImage(bitmap, 0, 0);
      const data = canvas.getImageData(0, 0, bitmap.width, bitmap.height).data;
      const counts = new Map();
      for (let i = 0; i < data.length; i += 4) {
        const colour = (data[i] >> 5) * 64 + (data[i + 1] >> 5) * 8 + (data[i + 2] >> 5);
        counts.set(colour, (counts.get(colour) ?? 0) + 1);
      }
      return [...counts.values()].filter((count) => count > 100).length;
    }
    """
    return int(page.evaluate(counting, list(png)))
