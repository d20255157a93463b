"""The system's Chromium for tests, and tabs that write down what a page asks for and complains of."""

import shutil
from collections.abc import Generator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, Page, sync_playwright


@contextmanager
def started() -> Generator[Browser]:
    """Chromium of the system, which deploy/setup.sh --tests installs; nothing is downloaded."""
    chromium = shutil.which("chromium")
    if chromium is None:
        pytest.fail('there is no chromium: run deploy/setup.sh --tests, or leave these tests out with -m "not slow"')
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


class Tab:
    """A tab, with what its page asked the network for, and what it complained of."""

    def __init__(self, browser: Browser, *, scheme: str, width: int, offline: bool = False) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []
        size = {"width": width, "height": 900}
        context = browser.new_context(offline=offline, color_scheme=scheme, viewport=size)  # type: ignore[arg-type]
        self.page: Page = context.new_page()
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.on("console", lambda message: self.complaints.append(message.text))
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
