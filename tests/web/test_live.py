"""News by server-sent events: told when something changes, to those who may hear it."""

import asyncio
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.api.api_harness import ApiHarness
from tests.slurm.records import node, seen
from tests.web.web_harness import Browser, browser_of

from gleaner.agent.messages import LogLines
from gleaner.control.queue import logs
from gleaner.control.queue.database import snapshot, transaction
from gleaner.control.web import live
from gleaner.control.web.gate import EVENTS


def test_each_change_is_told(harness: ApiHarness, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "EVERY_S", 0.01)
    job = harness.user.submit()
    (claimed,) = harness.agent().claim()
    caller = cast(Any, SimpleNamespace(reading=partial(snapshot, harness.state.engine)))

    def write() -> None:
        with transaction(harness.state.engine) as db:
            logs.append(db, job, claimed["attempt"], LogLines(first=0, lines=("event 1",)), most_bytes=1000)

    def look() -> None:
        harness.state.cluster = seen(harness.now_s, node("n1"))

    changes: tuple[Callable[[], object], ...] = (harness.user.submit, look, write)

    async def hear() -> list[str]:
        stream = live._stream(live.News(harness.state), caller, job)
        told = [await anext(stream), await anext(stream)]
        for change in changes:
            await asyncio.to_thread(change)
            told.append(await asyncio.wait_for(anext(stream), 60))
        return told

    _retry, *news = asyncio.run(hear())
    assert len(set(news)) == 1 + len(changes)
    assert all(one.startswith("event: news") for one in news)


def test_a_stream_ends_after_a_while_and_strangers_hear_nothing(
    harness: ApiHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "LONGEST_S", 0.0)
    job = harness.user.submit()
    assert browser_of(harness, harness.user).get(EVENTS).text == "retry: 2000"
    other = browser_of(harness, harness.caller("user", "carol", "cms"))
    assert other.get(f"{EVENTS}?job={job}").status == 403
    assert Browser(harness).get(EVENTS).answer.headers["location"].startswith("/web/sign-in")
