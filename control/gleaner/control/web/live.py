"""News for open pages: a stream of server-sent events for each, which reports only that something has changed.

The page then reloads its content. It also does so regularly without news. A stream needs no thread and little memory,
and one database query serves all streams. A stream ends after some minutes, and the browser opens it again. So a user
who has signed out does not stay connected.
"""

import asyncio
from collections.abc import AsyncGenerator
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response, StreamingResponse
from starlette.concurrency import run_in_threadpool

from gleaner.agent.job_spec import MAX_ID
from gleaner.control.api import jobs
from gleaner.control.api.access import Caller, User
from gleaner.control.control_state import ControlState
from gleaner.control.queue import logs, queries
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import QueueError
from gleaner.control.web.gate import EVENTS

router = APIRouter()

EVERY_S = 2.0
LONGEST_S = 300.0
"""The time after which a stream ends."""
SILENT_S = 20.0
"""The interval in which a stream without news sends something, so that a lost connection is noticed."""


class News:
    """The last known change, shared by all streams."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._lock = asyncio.Lock()
        self._ask_at_s = 0.0
        self._stamp = ""

    async def stamp(self) -> str:
        """Return a text that changes whenever something has changed."""
        async with self._lock:
            now_s = asyncio.get_running_loop().time()
            if now_s >= self._ask_at_s:
                self._stamp = await run_in_threadpool(self._read)
                self._ask_at_s = now_s + EVERY_S
            return self._stamp

    def _read(self) -> str:
        state = self._state
        try:
            with snapshot(state.engine) as db:
                event = queries.latest_event(db)
        except QueueError:
            return self._stamp  # the page itself shows the error when it is requested
        cluster, owners = state.cluster, state.entitlements.view
        return f"{event}-{cluster.read_s if cluster else 0:.0f}-{owners.now_s if owners else 0:.0f}"


@router.get(EVENTS)
async def events(request: Request, caller: User, job: Annotated[int | None, Query(ge=1, le=MAX_ID)] = None) -> Response:
    """Return the stream of news. With a job, it includes news of that job's log."""
    if job is not None:
        await run_in_threadpool(jobs.show, caller, job)  # raises an error unless the caller is allowed to see it
    news: News = request.app.state.news
    stream = _stream(news, caller, job)
    return StreamingResponse(stream, media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})


async def _stream(news: News, caller: Caller, job: int | None) -> AsyncGenerator[str]:
    loop = asyncio.get_running_loop()
    ends_s, speaks_s, last = loop.time() + LONGEST_S, 0.0, ""
    yield "retry: 2000\n\n"
    while loop.time() < ends_s:
        stamp = await news.stamp()
        if job is not None:
            stamp += f"-{await run_in_threadpool(_last_line, caller, job)}"
        if stamp != last:
            yield f"event: news\ndata: {stamp}\n\n"
        elif loop.time() >= speaks_s:
            yield ": nothing new\n\n"
        if stamp != last or loop.time() >= speaks_s:
            last, speaks_s = stamp, loop.time() + SILENT_S
        await asyncio.sleep(EVERY_S)


def _last_line(caller: Caller, job: int) -> int | None:
    try:
        with caller.reading() as db:
            return logs.last_number(db, job)
    except QueueError:
        return None
