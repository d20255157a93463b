"""The agent's line to control: HTTP with a token, and an outbox whose reports outlive a silent control program."""

import json
import os
import ssl
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from gleaner.agent.protocol import (
    Ask,
    Assignments,
    Beat,
    Farewell,
    Message,
    Orders,
    Registration,
    Welcome,
)

log = structlog.get_logger()

REFUSED = 400
SERVER_FAULT = 500

Answer = TypeVar("Answer", bound=Message)


class ControlSilent(Exception):
    """Control cannot be reached, or is in no state to answer now: ask again later."""


class ControlRefused(Exception):
    """Control understood, and said no."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class _Problem(BaseModel):
    """The body of every answer that says no."""

    detail: str


class ControlClient:
    """Calls of one agent to control. Blocking; every call has a time-out."""

    def __init__(self, *, url: str, name: str, token: str, ca_file: Path | None, timeout_s: float) -> None:
        self._name = name
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1",
            headers={"Authorization": f"Bearer {token}"},
            verify=_trust(ca_file),
            timeout=timeout_s,
        )

    def register(self, registration: Registration) -> Welcome:
        """Say that this agent has started."""
        return self._ask("register", registration, Welcome)

    def claim(self, ask: Ask) -> Assignments:
        """Ask for work. If the answer gets lost, control takes the jobs back when no beat names them."""
        return self._ask("claim", ask, Assignments)

    def beat(self, beat: Beat) -> Orders:
        """Say that this agent and these attempts live; hear what to do with them."""
        return self._ask("beat", beat, Orders)

    def farewell(self, farewell: Farewell) -> None:
        """Say that this agent is done."""
        self.post(f"/agents/{self._name}/farewell", farewell.model_dump_json())

    def post(self, path: str, body: str) -> str:
        """Send one message; the answer's body. Raises `ControlSilent` or `ControlRefused`."""
        try:
            answer = self._http.post(path, content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            raise ControlSilent(str(error) or type(error).__name__) from error
        if answer.status_code >= SERVER_FAULT:
            raise ControlSilent(f"{answer.status_code}: {_detail(answer)}")
        if answer.status_code >= REFUSED:
            raise ControlRefused(answer.status_code, _detail(answer))
        return answer.text

    def _ask(self, verb: str, message: Message, answer: type[Answer]) -> Answer:
        text = self.post(f"/agents/{self._name}/{verb}", message.model_dump_json())
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            why = f"{where}: {first['msg']}" if where else first["msg"]
            raise ControlSilent(f"the answer to {verb} cannot be read: {why}") from error


@dataclass(frozen=True, slots=True)
class Report:
    """One message that must reach control, whenever that is."""

    path: str
    body: str


class Outbox:
    """Reports in the order in which they were made. Control hears each at least once, and never out of order.

    What is still here at the agent's end goes to `spill_into`, a folder on the shared storage from which control
    takes it: a control program that was away loses nothing.
    """

    def __init__(self, send: Callable[[str, str], str]) -> None:
        self._send = send
        self._waiting: deque[Report] = deque()
        self._sending = threading.Lock()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, path: str, message: Message) -> None:
        """Add one report."""
        self._waiting.append(Report(path, message.model_dump_json()))

    def waits_for(self, prefix: str) -> bool:
        """Whether a report below this path has not been delivered yet."""
        return any(report.path.startswith(prefix) for report in self._waiting.copy())

    def deliver(self) -> None:
        """Send all that waits. Raises `ControlSilent` where control stopped answering; the rest stays."""
        with self._sending:  # a delivery that hangs in another thread must not take what this one sends
            while self._waiting:
                report = self._waiting[0]
                try:
                    self._send(report.path, report.body)
                except ControlRefused as refusal:
                    log.warning("report refused", path=report.path, reason=str(refusal))
                self._waiting.popleft()

    def spill_into(self, folder: Path) -> int:
        """Write what waits into `folder`, each report a whole file, numbered; how many."""
        waiting = self._waiting.copy()
        if not waiting:
            return 0
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for number, report in enumerate(waiting):
            draft = folder / f".{number:06}.json"
            with draft.open("w") as file:
                json.dump({"path": report.path, "body": report.body}, file)
                file.flush()
                os.fsync(file.fileno())
            draft.rename(folder / f"{number:06}.json")
        return len(waiting)


def _trust(ca_file: Path | None) -> bool | ssl.SSLContext:
    return ssl.create_default_context(cafile=str(ca_file)) if ca_file else True


def _detail(answer: httpx.Response) -> str:
    try:
        return _Problem.model_validate_json(answer.content).detail
    except ValidationError:
        return answer.text[:200]
