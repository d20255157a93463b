"""The record of each request: its id, the time until its answer begins, and one line of JSON for each write request.

The id appears in the request's lines in control's log, in its audit line, and in its answer.

A line names the caller, the caller's address, the request and its outcome. A separate thread writes the line before the
answer is sent, so that a disk that hangs delays only writing requests. If a line cannot be written, it goes to
control's log, and the request is still answered. If control is killed after a write and before its answer, the write is
recorded only in the events of its jobs. Unknown callers could fill the log, so only a few of their refused requests
(401) are logged each minute.
"""

import json
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from typing import Any

import structlog
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.contextvars import bind_contextvars

from gleaner.control.api.access import Caller
from gleaner.control.api.instruments import Instruments
from gleaner.control.api.problems import REQUEST, request_id
from gleaner.control.control_state import ControlState
from gleaner.control.settings import AuditSettings

READS = frozenset({"GET", "HEAD", "OPTIONS"})
LOGGER = "gleaner.audit"
"""The logger of the lines if the settings name no file."""
UNKNOWN_A_MINUTE = 20
LONGEST_PATH = 300
ERROR = 400
BUG = 500
UNAUTHORIZED = 401
MIB = 2**20
HEADER = "X-Request-Id"
_PLAIN = re.compile(r"[A-Za-z0-9._-]{1,64}")

_log = structlog.get_logger(__name__)


class AuditFile:
    """The file or the logger to which audit lines are written. Raises `OSError` if the file cannot be opened."""

    def __init__(self, settings: AuditSettings) -> None:
        self._handler: RotatingFileHandler | None = None
        if settings.file is not None:
            handler = _Loud(
                settings.file, maxBytes=settings.largest_mib * MIB, backupCount=settings.keep, encoding="utf-8"
            )
            handler.setFormatter(logging.Formatter("%(message)s"))
            self._handler = handler

    def write(self, line: Mapping[str, Any]) -> None:
        """Add one line. If it cannot be written to the file, it goes to control's log."""
        text = json.dumps(line, separators=(",", ":"))
        if self._handler is None:
            logging.getLogger(LOGGER).info("%s", text)
            return
        try:
            self._handler.handle(logging.LogRecord("audit", logging.INFO, "", 0, text, None, None))
        except OSError as error:
            _log.warning("the audit log cannot be written", reason=str(error), line=text)

    def close(self) -> None:
        """Close the file."""
        if self._handler is not None:
            self._handler.close()


class _Loud(RotatingFileHandler):
    """A file handler that raises its errors, so that we can report them."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        raise  # noqa: PLE0704  # it is called while the error is being handled


class Audit:
    """The audit lines of one app: one for each request that is not a read."""

    def __init__(self, state: ControlState, file: AuditFile) -> None:
        self._state = state
        self.file = file
        self._agents = state.settings.audit.agents
        self._one_by_one = CapacityLimiter(1)
        self._unknown: Counter[int] = Counter()
        """The number of unknown callers in the current minute."""

    async def note(self, scope: Scope, status: int) -> None:
        """Write the line of a request once the status of its answer is known."""
        if scope["method"] in READS:
            return
        caller: Caller | None = scope.get("state", {}).get("caller")
        is_agent = caller is not None and caller.identity.role == "agent"
        if is_agent and status < ERROR and not self._agents:
            return
        now_s = self._state.clock()
        if caller is None:
            minute = int(now_s // 60)
            self._unknown = Counter({minute: self._unknown[minute] + 1})
            if self._unknown[minute] > UNKNOWN_A_MINUTE:
                return
        line = line_of(scope, status, now_s=now_s, caller=caller)
        await run_sync(self.file.write, line, limiter=self._one_by_one)


def line_of(scope: Scope, status: int, *, now_s: float, caller: Caller | None) -> dict[str, Any]:
    """Return the content of one line. `who` is None for an unknown caller."""
    who = caller.identity if caller is not None else None
    host, port = scope.get("client") or ("", 0)
    parameters: Mapping[str, Any] = scope.get("path_params", {})
    about = [f"{noun} {value}" for noun, value in parameters.items()]
    return {
        "at": datetime.fromtimestamp(now_s, UTC).isoformat(timespec="milliseconds"),
        "who": None if who is None else who.name,
        "role": None if who is None else "manager" if who.manager else who.role,
        "group": None if who is None else who.group,
        "by": None if who is None else f"token {who.token}" if who.token else "munge",
        "from": f"{host}:{port}",
        "request": request_id(),
        "what": getattr(scope.get("endpoint"), "__name__", "none"),
        "call": f"{scope['method']} {scope['path'][:LONGEST_PATH]}",
        "about": about + (list(caller.about) if caller is not None else []),
        "status": status,
    }


class RequestRecord:
    """The outermost middleware of an app. It uses the id that the caller has sent, if that is a plain word."""

    def __init__(self, app: ASGIApp, *, audit: Audit, meters: Instruments) -> None:
        self._app = app
        self._audit = audit
        self._meters = meters

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on. Its id stays set until its task ends, because other middleware might answer later."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began_s = time.perf_counter()
        given = Headers(scope=scope).get(HEADER, "")
        id_ = given if _PLAIN.fullmatch(given) else secrets.token_hex(8)
        bind_contextvars(**{REQUEST: id_})
        has_status = False

        async def sending(message: Message) -> None:
            nonlocal has_status
            if message["type"] == "http.response.start":
                has_status = True
                await self._audit.note(scope, message["status"])
                call = getattr(scope.get("endpoint"), "__name__", "none")  # never a path
                self._meters.requests.labels(call, str(message["status"])).observe(time.perf_counter() - began_s)
                MutableHeaders(scope=message)[HEADER] = id_
            await send(message)

        try:
            await self._app(scope, receive, sending)
        except Exception:  # our bug, for which an outer middleware sends the answer
            if not has_status:
                await self._audit.note(scope, BUG)
            raise
