"""News by server-sent events: told when something changes, to those who may hear it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from tests.api.api_harness import ApiHarness
from tests.slurm.records import node, seen
from tests.web.web_harness import Browser, browser_of

from gleaner.agent.messages import LogLines
from gleaner.control.queue import logs
from gleaner.control.queue.database import transaction
from gleaner.control.web.gate import EVENTS

LATEST_S = 60


@dataclass
class Listener:
    """A browser that listens to one stream, without a network."""

    browser: Browser
    path: str = EVENTS
    query: str = ""
    said: "asyncio.Queue[Any]" = field(default_factory=asyncio.Queue)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def listen(self) -> None:
        cookie = "; ".join(f"{name}={value}" for name, value in self.browser.client.cookies.items())
        scope = {
            "type": "http", "method": "GET", "path": self.path, "raw_path": self.path.encode(), "root_path": "",
            "query_string": self.query.encode(), "headers": [(b"host", b"testserver"), (b"cookie", cookie.encode())],
            "client": ("testclient", 1), "server": ("testserver", 80), "scheme": "http", "http_version": "1.1",
        }  # fmt: skip

        async def receive() -> dict[str, Any]:
            await self.gone.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            await self.said.put(message)

        await self.browser.client.app(scope, receive, send)

    async def status(self) -> int:
        return int((await asyncio.wait_for(self.said.get(), LATEST_S))["status"])

    async def news(self) -> str:
        """The next news."""
        while True:
            text = bytes((await asyncio.wait_for(self.said.get(), LATEST_S))["body"]).decode()
            if text.startswith("event: news"):
                return text


def test_each_change_is_told(harness: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gleaner.control.web.live.EVERY_S", 0.01)
    job = harness.user.submit()
    (claimed,) = harness.agent().claim()

    def write() -> None:
        with transaction(harness.state.engine) as db:
            logs.append(db, job, claimed["attempt"], LogLines(first=0, lines=("event 1",)), most_bytes=1000)

    def look() -> None:
        harness.state.cluster = seen(harness.now_s, node("n1"))

    changes: tuple[Callable[[], object], ...] = (harness.user.submit, look, write)

    async def hear() -> None:
        listener = Listener(browser_of(harness, harness.user), query=f"job={job}")
        listening = asyncio.create_task(listener.listen())
        assert await listener.status() == 200
        last = await listener.news()
        for change in changes:
            await asyncio.to_thread(change)
            told = await listener.news()
            assert told != last
            last = told
        listener.gone.set()
        await asyncio.wait_for(listening, LATEST_S)

    asyncio.run(hear())


def test_a_stream_ends_after_a_while_and_strangers_hear_nothing(
    harness: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gleaner.control.web.live.LONGEST_S", 0.0)
    job = harness.user.submit()
    assert browser_of(harness, harness.user).get(EVENTS).text == "retry: 2000"
    other = browser_of(harness, harness.caller("user", "carol", "cms"))
    assert other.get(f"{EVENTS}?job={job}").status == 403
    assert Browser(harness).get(EVENTS).answer.headers["location"].startswith("/web/sign-in")
