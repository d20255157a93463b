"""Browsers without scripts: each signs in on the page, follows links and sends forms, as a person does."""

import re
from dataclasses import dataclass, field
from html import unescape
from html.parser import HTMLParser

from fastapi.testclient import TestClient
from httpx import Response
from tests.api.api_harness import ApiHarness, Caller

from gleaner.control.api.app import create_app
from gleaner.control.web.app import with_pages

HERE = {"Origin": "http://testserver"}


class Markup(HTMLParser):
    """The elements and the text of a page, as a browser would read them."""

    def __init__(self) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def markup(text: str) -> Markup:
    """Return the elements of a page."""
    read = Markup()
    read.feed(text)
    read.close()
    return read


@dataclass
class Shown:
    """A page that a browser got."""

    answer: Response
    elements: list[tuple[str, dict[str, str | None]]] = field(init=False)
    text: str = field(init=False)

    def __post_init__(self) -> None:
        read = markup(self.answer.text)
        self.elements = read.elements
        self.text = " ".join(" ".join(read.text).split())

    @property
    def status(self) -> int:
        return int(self.answer.status_code)

    def links(self) -> list[str]:
        return [str(attrs["href"]) for tag, attrs in self.elements if tag == "a" and "href" in attrs]


class Browser:
    """A browser with a cookie jar of its own."""

    def __init__(self, harness: ApiHarness) -> None:
        app = with_pages(create_app(harness.state))
        self.client = TestClient(app, follow_redirects=False)
        self.client.portal = harness.client.portal  # one event loop for all clients of a test

    def get(self, path: str) -> Shown:
        return Shown(self.client.get(path))

    def good(self, path: str) -> Shown:
        """The page, which must be there."""
        shown = self.get(path)
        assert shown.status == 200, (path, shown.status, shown.text)
        return shown

    def sign_in(self, caller: Caller) -> Response:
        """Send the form with somebody's token."""
        token = caller.headers["Authorization"].removeprefix("Bearer ")
        return self.sign_in_with(token=token)

    def sign_in_with(self, **fields: str) -> Response:
        """Send the form."""
        answer: Response = self.client.post("/web/sign-in", data=fields, headers=HERE)
        return answer

    def form_token(self) -> str:
        found = re.search(r'name="form_token" value="([^"]*)"', self.client.get("/web").text)
        assert found
        return unescape(found[1])

    def send(self, path: str, **fields: str) -> Shown:
        """Send a form of one of our pages."""
        return Shown(self.client.post(path, data={"form_token": self.form_token()} | fields, headers=HERE))


def browser_of(harness: ApiHarness, caller: Caller) -> Browser:
    """A browser that is signed in."""
    browser = Browser(harness)
    answer = browser.sign_in(caller)
    assert answer.status_code == 303, answer.text
    return browser
