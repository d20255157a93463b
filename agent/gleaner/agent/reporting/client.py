"""The agent's connection to control: an HTTP client with a token, and an outbox that keeps reports while control is
away."""

import asyncio
import itertools
import shutil
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
import structlog
from pydantic import BaseModel, ValidationError

from gleaner.agent.common.clock import Clock
from gleaner.agent.common.tls import trusted_authorities
from gleaner.agent.messages import (
    Assignments,
    Checkpointed,
    ClaimRequest,
    Delivery,
    DeliveryOffer,
    Deregistration,
    Heartbeat,
    InputFetched,
    InputFixed,
    LogLines,
    Message,
    Orders,
    Registration,
    StoredInput,
    Welcome,
)
from gleaner.agent.reporting.spooled_report import hash_of, prove
from gleaner.agent.system import atomic

log = structlog.get_logger()

SPILL_S = 10.0
"""The time limit for writing undelivered reports to the storage."""

BAD_REQUEST = 400
SERVER_FAULT = 500
NO_CONTENT = 204
"""The status with which control accepts a report. Any other success status comes from a proxy between the agent and
control."""
FORBIDDEN, CONFLICT = 403, 409
TOO_LARGE, UNPROCESSABLE = 413, 422
_FINAL = frozenset({FORBIDDEN, CONFLICT})
"""The only statuses that mean that a report will never count, no matter who sends it or when."""
_FOR_ALL = frozenset({401, 407, 429, 511})
"""The statuses that concern the agent and not just one report. After one of them, nothing more is sent until the next
delivery."""
LOG_BYTES = 16 * 2**20
LOG_BYTES_A_JOB = 2 * 2**20
"""The memory limits for lines of output that wait for control, for all jobs together and for each job. Further lines
stay in the jobs' own buffers, and then in the containers' logs."""
PERIODIC_AT_MOST = 16
"""After control was away, only this many of an attempt's latest periodic saves are reported."""

Answer = TypeVar("Answer", bound=Message)


class ControlSilent(Exception):
    """Control cannot be reached or cannot answer now, so the agent must ask again later."""


class ControlRefused(Exception):
    """Control understood the request and refused it."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(f"{status}: {detail}")
        self.status, self.detail = status, detail


class _Problem(BaseModel):
    """The body of every refusal."""

    detail: str


class ControlClient:
    """One agent's calls to control. Each call blocks, with a time limit. `transport` replaces the network."""

    def __init__(
        self,
        *,
        urls: Sequence[str],
        name: str,
        token: str,
        ca_file: Path | None,
        timeout_s: float,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self._urls = [url.rstrip("/") for url in urls]
        """The addresses of control's port for agents. The first one is the one that answered last."""
        self._name, self.token_hash = name, hash_of(token)
        # trust_env=False, since a proxy for the outside world must not see the token and does not reach control.
        self._http = httpx.Client(
            headers={"Authorization": f"Bearer {token}"},
            verify=trusted_authorities(self._urls[0], ca_file),
            timeout=timeout_s,
            transport=transport,
            trust_env=False,
        )

    def register(self, registration: Registration) -> Welcome:
        """Report that this agent has started."""
        return self._ask(f"/agents/{self._name}/register", registration, Welcome)

    def claim(self, ask: ClaimRequest) -> Assignments:
        """Ask for work. If the answer is lost, control takes the jobs back because no heartbeat names them."""
        return self._ask(f"/agents/{self._name}/claim", ask, Assignments)

    def send_heartbeat(self, heartbeat: Heartbeat) -> Orders:
        """Report that this agent and these attempts are alive, and return the orders for them."""
        return self._ask(f"/agents/{self._name}/beat", heartbeat, Orders)

    def fix_input(self, job: int, attempt: int, fetched: InputFetched) -> StoredInput | None:
        """Report a fetched input, and return the one that the job must read; None if control does not find it in the
        storage."""
        return self._ask(f"/jobs/{job}/attempts/{attempt}/input", fetched, InputFixed).input

    def take_delivery(self) -> Delivery | None:
        """Ask for a result to deliver. If the answer is lost, control offers the result again after a while."""
        return self._ask(f"/agents/{self._name}/deliver", Message(), DeliveryOffer).delivery

    def report(self, path: str, body: str) -> None:
        """Send one report. Raises `ControlSilent` or `ControlRefused`. Only control's own answer counts."""
        answer = self._post(path, body)
        if answer.status_code != NO_CONTENT:
            raise ControlSilent(f"{answer.status_code} is no answer of control's: is a proxy in between?")

    def _post(self, path: str, body: str) -> httpx.Response:
        """Send one message, and try one control program after the other. Raises `ControlSilent` or `ControlRefused`."""
        for url in self._urls[1:]:
            try:
                return self._post_to(self._urls[0], path, body)
            except ControlSilent:
                self._urls = [url, *(other for other in self._urls if other != url)]
        return self._post_to(self._urls[0], path, body)

    def _post_to(self, url: str, path: str, body: str) -> httpx.Response:
        try:
            answer = self._http.post(f"{url}/v1{path}", content=body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            raise ControlSilent(str(error) or type(error).__name__) from error
        if answer.is_success:
            return answer
        try:
            detail = _Problem.model_validate_json(answer.content).detail
        except ValidationError:  # the answer is from a proxy in between and not from control
            if answer.status_code in _FINAL:
                raise ControlSilent(f"{answer.status_code} is no answer of control's: is a proxy in between?") from None
            detail = answer.text[:200]
        if BAD_REQUEST <= answer.status_code < SERVER_FAULT:
            raise ControlRefused(answer.status_code, detail)
        raise ControlSilent(f"{answer.status_code}: {detail}")

    def _ask(self, path: str, message: Message, answer: type[Answer]) -> Answer:
        text = self._post(path, message.model_dump_json()).text
        try:
            return answer.model_validate_json(text)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"])
            why = f"{where}: {first['msg']}" if where else first["msg"]
            raise ControlSilent(f"the answer to {path.rpartition('/')[2]} cannot be read: {why}") from error


@dataclass(frozen=True, slots=True, eq=False)
class Report:
    """One message that must eventually reach control. `log_bytes` is the memory that its output lines use."""

    path: str
    message: Message
    log_bytes: int = 0

    @property
    def body(self) -> str:
        """The text to send. It is not kept, since it can be several times as large as the message."""
        return self.message.model_dump_json()

    @property
    def sequence(self) -> str:
        """The sequence to which the report belongs, which is that of an attempt or of its output. Reports of a sequence
        are sent in order."""
        return self.path if self.is_log else self.path.rpartition("/")[0]

    @property
    def is_log(self) -> bool:
        """True for lines of output, which can arrive late, even after the attempt's end."""
        return isinstance(self.message, LogLines)

    def is_final(self, status: int) -> bool:
        """Return True if this status means that the report will never count.

        >>> [Report("/jobs/7/attempts/1/saved", Message()).is_final(status) for status in (403, 409, 404, 422)]
        [True, True, False, False]
        """
        return status in _FINAL or (self.is_log and status == UNPROCESSABLE)

    def halves(self) -> "tuple[Report, Report] | None":
        """Return a report of output lines as two reports; None for any other report and for a single line."""
        message = self.message
        if not isinstance(message, LogLines) or len(message.lines) <= 1:
            return None
        half = len(message.lines) // 2
        lower = LogLines(first=message.first, lines=message.lines[:half])
        upper = LogLines(first=message.first + half, lines=message.lines[half:])
        return Report(self.path, lower, self.log_bytes // 2), Report(self.path, upper, -(-self.log_bytes // 2))


@dataclass(slots=True)
class Outbox:
    """The reports for control, oldest first. Control receives each report at least once, and the reports of an attempt
    in order.

    `send` raises `ControlSilent` or `ControlRefused`. A report that control neither accepts nor permanently refuses
    stays here and is sent again. Until control has accepted or refused it, later reports of its attempt wait, and so
    does the agent's deregistration, after which control would give the job to another agent. Reports of other attempts
    do not wait. Lines of output delay only later lines.

    `keep` writes reports that must not be lost into a folder on the shared storage, where control finds them. While the
    agent is alive, these are the reports of a job's saves. At the agent's end, they are all waiting reports, in case
    control cannot be reached. Control might receive a report twice, in which case the second copy changes nothing.
    """

    send: Callable[[str, str], object]
    token_hash: str = ""
    """The key for the proofs of the reports that are left on the storage."""
    _waiting: list[Report] = field(default_factory=list[Report])
    _changing: threading.Lock = field(default_factory=threading.Lock)
    _sending: threading.Lock = field(default_factory=threading.Lock)
    _keeping: threading.Lock = field(default_factory=threading.Lock)
    _files: dict[Report, Path] = field(default_factory=dict[Report, Path])
    """The files of reports that `keep` has written."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, path: str, message: Message, *, log_bytes: int = 0) -> None:
        """Add one report."""
        report = Report(path, message, log_bytes)
        with self._changing:
            if isinstance(message, Checkpointed):
                earlier = [one for one in self._waiting if one.path == path]
                for one in earlier[: max(0, len(earlier) + 1 - PERIODIC_AT_MOST)]:
                    self._waiting.remove(one)
            self._waiting.append(report)

    def waits_for(self, prefix: str) -> bool:
        """Return True if a report below this path is not delivered yet."""
        return any(report.path.startswith(prefix) for report in self._waiting.copy())

    def room_bytes(self, path: str) -> int:
        """Return how many more bytes of a job's output lines the outbox can take. `path` is the path of their
        reports."""
        waiting = self._waiting.copy()
        free_bytes = LOG_BYTES - sum(report.log_bytes for report in waiting)
        return min(free_bytes, LOG_BYTES_A_JOB - sum(report.log_bytes for report in waiting if report.path == path))

    def deliver(self) -> None:
        """Send all waiting reports. Raises `ControlSilent` if some of them must stay."""
        with self._sending:  # another delivery might hang in its thread, and must not send the same reports
            stuck: dict[str, str] = {}
            while (report := self._next(stuck)) is not None:
                try:
                    self.send(report.path, report.body)
                except ControlRefused as refusal:
                    if refusal.status == TOO_LARGE and (halves := report.halves()):
                        self._replace(report, halves)
                        continue
                    if refusal.status in _FOR_ALL:
                        raise ControlSilent(str(refusal)) from refusal
                    if not report.is_final(refusal.status):
                        stuck[report.sequence] = f"{report.path}: {refusal}"
                        continue
                    log.warning("report refused", path=report.path, reason=str(refusal))
                self._replace(report, ())
            if stuck:
                raise ControlSilent(f"not accepted, to be tried again: {next(iter(stuck.values()))}")

    def _next(self, stuck: Collection[str]) -> Report | None:
        """Return the first report that can be sent now."""
        is_stuck = False
        for report in self._waiting.copy():
            if isinstance(report.message, Deregistration) and is_stuck:
                return None
            if report.sequence not in stuck:
                return report
            is_stuck = is_stuck or not report.is_log
        return None

    def _replace(self, report: Report, others: Collection[Report]) -> None:
        with self._changing:
            if report in self._waiting:  # otherwise newer reports have replaced it by now
                at = self._waiting.index(report)
                self._waiting[at : at + 1] = others

    def keep(self, prefix: str, folder: Path) -> None:
        """Write the waiting reports below the path `prefix` into `folder`, unless they are already there. Raises
        `OSError`.

        All of them are on the disk when this function returns, so that control has them even if this agent is killed. A
        sequence is written in order, since otherwise control would refuse the earlier reports as too old. Lines of
        output are also written, because the restored job continues after them and does not write them again.
        """
        with self._keeping:
            waiting = self._waiting.copy()
            for report in self._files.keys() - set(waiting):  # delivered, or replaced by newer reports
                self._files.pop(report).unlink(missing_ok=True)
            new = [report for report in waiting if report.path.startswith(prefix) and report not in self._files]
            for report in new:
                name = f"{next(self._numbers):09}.json"
                atomic.make_folders(folder)  # control removes it once it is empty
                atomic.write(folder / name, self._as_file(report), with_folder=False)
                self._files[report] = folder / name
            if new:
                atomic.sync_folder(folder)

    def _as_file(self, report: Report) -> bytes:
        return prove(report.path, report.body, self.token_hash).model_dump_json().encode()


async def deregister(outbox: Outbox, reports: Path, *, clock: Clock, within_s: float, storage_hangs: bool) -> None:
    """Deliver the waiting reports within `within_s`, or leave them in `reports`, a folder on the storage.

    The reports go to the storage first, since control might hang until this agent has ended. A storage that hangs is
    not used.
    """
    give_up_s = clock.monotonic_s() + within_s
    is_on_storage = not storage_hangs and await _spill(outbox, reports, within_s=min(SPILL_S, within_s / 2))
    try:
        async with asyncio.timeout(give_up_s - clock.monotonic_s()):
            await asyncio.to_thread(outbox.deliver)
            if is_on_storage:
                await asyncio.to_thread(shutil.rmtree, reports)
    except (TimeoutError, ControlSilent, OSError) as error:
        where = "waits on the storage" if is_on_storage else "is lost"
        log.warning(f"control has not heard everything; the rest {where}", reason=str(error) or "no answer in time")


async def _spill(outbox: Outbox, reports: Path, *, within_s: float) -> bool:
    try:
        async with asyncio.timeout(within_s):
            await asyncio.to_thread(outbox.keep, "", reports)
    except (TimeoutError, OSError) as error:
        log.warning("the storage does not take the last reports", reason=str(error) or "no answer in time")
        return False
    return True
