"""The agent's way to control: an HTTP client with a token, and an outbox whose reports outlive a silent control."""

import asyncio
import itertools
import json
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from gleaner.agent.common.clock import Clock
from gleaner.agent.common.tls import trusted_authorities
from gleaner.agent.messages import (
    Ask,
    Assignments,
    Checkpointed,
    Farewell,
    Heartbeat,
    LogLines,
    Message,
    Orders,
    Registration,
    Welcome,
)
from gleaner.agent.system import atomic

log = structlog.get_logger()

SPILL_S = 10.0
"""The storage may take so long for the reports that control has not heard."""

REFUSED = 400
SERVER_FAULT = 500
HEARD = 204
"""Control's answer to every report that it has taken; anything else comes from something in between."""
FORBIDDEN, CONFLICT = 403, 409
TOO_LARGE, UNPROCESSABLE = 413, 422
_FINAL = frozenset({FORBIDDEN, CONFLICT})
"""Only these say that a report will never count, whoever sends it and when."""
_FOR_ALL = frozenset({401, 407, 429, 511})
"""These are said to the agent, and not to the one report: nothing else is tried until the next time."""
LOG_BYTES = 16 * 2**20
LOG_BYTES_A_JOB = 2 * 2**20
"""Lines of output that wait for control take so much memory at most, of all jobs and of each; the rest stays in the
jobs' own buffers, and then in the containers' logs."""
KEPT = "00000-"
"""So begin the names of the files that `Outbox.keep` writes: control takes them before those of the agent's end."""
PERIODIC_AT_MOST = 16
"""The newest so many periodic saves of an attempt are reported after a silence of control; older ones are not."""

Answer = TypeVar("Answer", bound=Message)


class ControlSilent(Exception):
    """Control cannot be reached, or is in no state to answer now: ask again later."""


class ControlRefused(Exception):
    """Control understood, and said no."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status = status


class _Problem(BaseModel):
    """The body of every refusal."""

    detail: str


class ControlClient:
    """Calls of one agent to control. Blocking; every call has a time-out. `transport`: another way than the network."""

    def __init__(
        self,
        *,
        url: str,
        name: str,
        token: str,
        ca_file: Path | None,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._name = name
        self._http = httpx.Client(
            base_url=url.rstrip("/") + "/v1",
            headers={"Authorization": f"Bearer {token}"},
            verify=trusted_authorities(url, ca_file),
            timeout=timeout_s,
            transport=transport,
        )

    def register(self, registration: Registration) -> Welcome:
        """Say that this agent has started."""
        return self._ask("register", registration, Welcome)

    def claim(self, ask: Ask) -> Assignments:
        """Ask for work. If the answer gets lost, control takes the jobs back when no beat names them."""
        return self._ask("claim", ask, Assignments)

    def beat(self, beat: Heartbeat) -> Orders:
        """Say that this agent and these attempts live; return what to do with them."""
        return self._ask("beat", beat, Orders)

    def report(self, path: str, body: str) -> None:
        """Send one report. Raises `ControlSilent` or `ControlRefused`; no other answer than control's own counts."""
        answer = self._post(path, body)
        if answer.status_code != HEARD:
            raise ControlSilent(f"{answer.status_code} is no answer of control's: is a proxy in between?")

    def _post(self, path: str, body: str) -> httpx.Response:
        """Send one message. Raises `ControlSilent` or `ControlRefused`."""
        try:
            answer = self._http.post(path, content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            raise ControlSilent(str(error) or type(error).__name__) from error
        if answer.status_code < REFUSED and not answer.is_success:
            raise ControlSilent(f"{answer.status_code}: {_detail(answer)}")
        if answer.status_code >= SERVER_FAULT:
            raise ControlSilent(f"{answer.status_code}: {_detail(answer)}")
        if answer.status_code in _FINAL and not _is_controls(answer):
            raise ControlSilent(f"{answer.status_code} is no answer of control's: is a proxy in between?")
        if answer.status_code >= REFUSED:
            raise ControlRefused(answer.status_code, _detail(answer))
        return answer

    def _ask(self, verb: str, message: Message, answer: type[Answer]) -> Answer:
        text = self._post(f"/agents/{self._name}/{verb}", message.model_dump_json()).text
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            why = f"{where}: {first['msg']}" if where else first["msg"]
            raise ControlSilent(f"the answer to {verb} cannot be read: {why}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """One message that must reach control, whenever that is. `log_bytes` is what its lines of output take, if any."""

    path: str
    message: Message
    log_bytes: int = 0

    @property
    def body(self) -> str:
        """The text that is sent: made anew each time, since it may be several times as large as the message."""
        return self.message.model_dump_json()

    @property
    def sequence(self) -> str:
        """The name of the report's sequence, in which no report overtakes another: an attempt's, or its output's."""
        return self.path if self.is_log else self.path.rpartition("/")[0]

    @property
    def is_log(self) -> bool:
        """True for lines of output: they may come late, and after the attempt's end."""
        return isinstance(self.message, LogLines)

    def is_final(self, status: int) -> bool:
        """Return True if this answer says that the report will never count, and not only that it does not now.

        >>> [Report("/jobs/7/attempts/1/saved", Message()).is_final(status) for status in (403, 409, 404, 422)]
        [True, True, False, False]
        """
        return status in _FINAL or (self.is_log and status == UNPROCESSABLE)

    def halves(self) -> "tuple[Report, Report] | None":
        """Return the same lines of output as two reports; None for anything else, and for a single line."""
        told = self.message
        if not isinstance(told, LogLines) or len(told.lines) <= 1:
            return None
        half = len(told.lines) // 2
        lower = LogLines(first=told.first, lines=told.lines[:half])
        upper = LogLines(first=told.first + half, lines=told.lines[half:])
        return Report(self.path, lower, self.log_bytes // 2), Report(self.path, upper, -(-self.log_bytes // 2))


@dataclass(slots=True)
class Outbox:
    """Reports in the order in which they were made. Control hears each at least once, an attempt's in their order.

    `send` raises `ControlSilent` or `ControlRefused`. Only a final answer ends a report without control having taken
    it; what has another answer, or none, stays and is tried again. It holds up what its own attempt reports after it,
    and the agent's farewell, which would have control give the attempt to others; no other attempt's, and lines of
    output nothing but the lines after them.

    What is still here at the agent's end goes to `spill_into`, a folder on the shared storage from which control
    takes it: a control program that was away loses nothing. What must not be lost with the agent is put there earlier
    (`keep`). Control may hear a report both ways, and the second time changes nothing.
    """

    send: Callable[[str, str], object]
    _waiting: list[Report] = field(default_factory=list[Report])
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _keeping: threading.Lock = field(default_factory=threading.Lock)
    _kept: dict[Report, Path] = field(default_factory=dict[Report, Path])
    """The files of reports that `keep` has written."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, path: str, message: Message, *, log_bytes: int = 0) -> None:
        """Add one report."""
        report = Report(path, message, log_bytes)
        with self._changing:
            if isinstance(message, Checkpointed):
                told = [one for one in self._waiting if one.path == path]
                for one in told[: max(0, len(told) + 1 - PERIODIC_AT_MOST)]:
                    self._waiting.remove(one)
            self._waiting.append(report)

    def waits_for(self, prefix: str) -> bool:
        """Return True if a report below this path has not been delivered yet."""
        return any(report.path.startswith(prefix) for report in self._waiting.copy())

    def room_bytes(self, path: str) -> int:
        """Return the bytes that a job's lines of output may still take here. `path` is the address of their reports."""
        waiting = self._waiting.copy()
        free_bytes = LOG_BYTES - sum(report.log_bytes for report in waiting)
        return min(free_bytes, LOG_BYTES_A_JOB - sum(report.log_bytes for report in waiting if report.path == path))

    def deliver(self) -> None:
        """Send all that waits. Raises `ControlSilent` where something of it stays."""
        with self._sending:  # a delivery that hangs in another thread must not take what this one sends
            held_up: dict[str, str] = {}
            while (report := self._next(held_up)) is not None:
                try:
                    self.send(report.path, report.body)
                except ControlRefused as refusal:
                    if refusal.status == TOO_LARGE and (halves := report.halves()):
                        self._replace(report, halves)
                        continue
                    if refusal.status in _FOR_ALL:
                        raise ControlSilent(str(refusal)) from refusal
                    if not report.is_final(refusal.status):
                        held_up[report.sequence] = f"{report.path}: {refusal}"
                        continue
                    log.warning("report refused", path=report.path, reason=str(refusal))
                self._replace(report, ())
            if held_up:
                raise ControlSilent(f"not taken, to be tried again: {next(iter(held_up.values()))}")

    def _next(self, held_up: Collection[str]) -> Report | None:
        """Return the first report that may be sent now."""
        is_held_up = False
        for report in self._waiting.copy():
            if isinstance(report.message, Farewell) and is_held_up:
                return None
            if report.sequence not in held_up:
                return report
            is_held_up = is_held_up or not report.is_log
        return None

    def _replace(self, report: Report, others: Collection[Report]) -> None:
        with self._changing:
            if report in self._waiting:  # else it was overtaken by newer ones while it was sent
                at = self._waiting.index(report)
                self._waiting[at : at + 1] = others

    def keep(self, prefix: str, folder: Path) -> None:
        """Write what waits below the path `prefix` into `folder`, unless it is there by now. Raises `OSError`.

        All of it is on the disk when this returns: control takes it from there if this agent is killed. Of one sequence
        nothing is written before what precedes it, or control would refuse that as too old. Lines of output go along:
        the job goes on behind them, and does not write them again.
        """
        with self._keeping:
            waiting = self._waiting.copy()
            for report in self._kept.keys() - set(waiting):  # told, or overtaken by newer ones
                self._kept.pop(report).unlink(missing_ok=True)
            new = [report for report in waiting if report.path.startswith(prefix) and report not in self._kept]
            for report in new:
                name = f"{KEPT}{next(self._numbers):09}.json"
                atomic.make_folders(folder)  # control removes it when it has taken all that was there
                atomic.write(folder / name, _as_file(report), with_folder=False)
                self._kept[report] = folder / name
            if new:
                atomic.sync_folder(folder)

    def spill_into(self, folder: Path) -> int:
        """Write what waits into `folder`, each report as a whole, numbered file; return how many.

        All are on the disk when this returns, whatever happens to the file server then.
        """
        waiting = self._waiting.copy()
        if not waiting:
            return 0
        atomic.make_folders(folder)
        for number, report in enumerate(waiting):
            atomic.write(folder / f"{number:06}.json", _as_file(report), with_folder=False)
        atomic.sync_folder(folder)
        return len(waiting)


def _as_file(report: Report) -> bytes:
    return json.dumps({"path": report.path, "body": report.body}).encode()


def _is_controls(answer: httpx.Response) -> bool:
    """Return True if control itself has said no, and not a proxy in between."""
    try:
        _Problem.model_validate_json(answer.content)
    except ValidationError:
        return False
    return True


def _detail(answer: httpx.Response) -> str:
    try:
        return _Problem.model_validate_json(answer.content).detail
    except ValidationError:
        return answer.text[:200]


async def say_farewell(outbox: Outbox, reports: Path, *, clock: Clock, within_s: float, storage_hangs: bool) -> None:
    """Deliver what waits in the outbox, or leave it in `reports`, a folder on the storage, in so many seconds.

    The reports go to the storage first: control may hang until this agent is gone. A storage that hangs is not used.
    """
    give_up_s = clock.monotonic_s() + within_s
    spilt = not storage_hangs and await _spilt(outbox, reports, within_s=min(SPILL_S, within_s / 2))
    try:
        async with asyncio.timeout(give_up_s - clock.monotonic_s()):
            await asyncio.to_thread(outbox.deliver)
            if spilt:
                await asyncio.to_thread(shutil.rmtree, reports)
    except (TimeoutError, ControlSilent, OSError) as error:
        where = "waits on the storage" if spilt else "is lost"
        log.warning(f"control has not heard everything; the rest {where}", reason=str(error) or "no answer in time")


async def _spilt(outbox: Outbox, reports: Path, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(outbox.spill_into, reports)
    except (TimeoutError, OSError) as error:
        log.warning("the storage does not take the last reports", reason=str(error) or "no answer in time")
        return False
    return True
