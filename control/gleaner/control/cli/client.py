"""The API as seen from the command line: one method for each question, and every failure a `Failure` of one line.

Reads are repeated when the answer is lost, and so is a submission, which carries a key by which control knows it again.
Another write that may have arrived is never repeated. A request that cannot have arrived, since there was no
connection, is repeated for some seconds: perhaps control is being restarted.
"""

import hashlib
import os
import shutil
import socket
import ssl
import stat
import threading
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from itertools import chain, repeat
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit
from uuid import uuid4

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from gleaner.agent.common.tls import trusted_authorities
from gleaner.control.cli import render
from gleaner.control.cli.config import load_settings
from gleaner.control.cli.failures import (
    BadInput,
    Conflict,
    Failure,
    Forbidden,
    NotConnected,
    NoToken,
    TimedOut,
    Unreachable,
)
from gleaner.control.input_errors import one_line
from gleaner.control.models.agents import AgentRow
from gleaner.control.models.base import Problem
from gleaner.control.models.campaigns import CampaignStatus
from gleaner.control.models.decisions import DecisionRow
from gleaner.control.models.drains import DrainRequest, DrainRow, ResumeRequest
from gleaner.control.models.health import Health
from gleaner.control.models.images import ImagePush, ImageRow, SiteImages
from gleaner.control.models.inputs import InputList, InputMissing, InputPut, InputRow
from gleaner.control.models.jobs import (
    Change,
    JobDetail,
    JobFilter,
    JobList,
    JobRow,
    LogPage,
    MigrateRequest,
    Submission,
    Submitted,
)
from gleaner.control.models.nodes import ClusterStatus
from gleaner.control.models.owners import OwnersStatus
from gleaner.control.models.report import MonthReport
from gleaner.control.models.secrets import SecretPut, SecretRow
from gleaner.control.models.tokens import TokenIssued, TokenRequest, TokenRow
from gleaner.control.models.uploads import Kind, Uploaded
from gleaner.control.models.web_codes import WebCode
from gleaner.control.settings import LOOPBACK, ClientSettings
from gleaner.control.slurm import munge

Answered = TypeVar("Answered")

RETRY_PAUSES_S = (0.2, 0.5, 1.0)
"""The pauses before a read whose answer was lost is repeated."""
CONNECT_S = 10.0
"""The time that a connection may take, and after which nothing is repeated any more."""
REFUSED_S = 4.8
"""The time for which a refused connection is tried again: a restart of control takes two to four seconds."""
ACCOUNTING_S = 150.0
"""The time for a report with Slurm's accounting, which reads a month of a large cluster for minutes."""
PUSH_S = 1800.0
"""The time in which control stores an image that it has."""
WORD_AFTER_S = 5.0
"""The time without an answer after which the user is told that the command waits."""
AWAY = frozenset({503, 504})
"""The statuses that mean: not now."""


def connect() -> "Control":
    """Return a connection to control as the settings name it, with the user's proof."""
    return Control(load_settings().client)


def read_token(settings: ClientSettings) -> str:
    """Return the token from its file, which nobody else may be able to read."""
    path = settings.token_file.expanduser()
    try:
        with path.open(encoding="ascii") as file:
            mode = os.fstat(file.fileno()).st_mode
            token = file.read(4096).strip()
    except FileNotFoundError:
        raise NoToken(f"no token: {path} is not there; ask an admin for one and put it there, mode 0600") from None
    except OSError as error:
        raise NoToken(f"no token: {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise NoToken(f"no token: {path} does not hold one line of plain text") from None
    if stat.S_IMODE(mode) & 0o077:
        raise NoToken(f"the token in {path} can be read by others: chmod 600 {path}")
    if not token or not token.isprintable() or " " in token:
        raise NoToken(f"no token: {path} does not hold one line of plain text")
    return token


class MungeProof(httpx.Auth):
    """The proof of who asks by munge, without a token: munge makes a credential for each request."""

    requires_request_body = True

    def __init__(self, settings: ClientSettings) -> None:
        self._socket = settings.munge_socket
        self._timeout_s = settings.timeout_s

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Sign the request. Raises `NoToken`."""
        nonce, digest = munge.new_nonce(), hashlib.sha256(request.content).hexdigest()
        target = request.url.raw_path.decode("ascii")
        payload = munge.payload_of(method=request.method, target=target, body_digest=digest, nonce=nonce)
        try:
            credential = munge.encode(payload, socket=self._socket, timeout_s=self._timeout_s)
        except munge.MungeError as error:
            raise NoToken(f"no token, and munge cannot prove who you are: {error}") from error
        request.headers["Authorization"] = f"Munge {credential}"
        request.headers["Gleaner-Proof"] = f"{nonce} {digest}"
        yield request


class TokenProof(httpx.Auth):
    """The proof of who asks by a token."""

    def __init__(self, token: str) -> None:
        self._header = f"Bearer {token}"

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """Add the token."""
        request.headers["Authorization"] = self._header
        yield request


def proof(settings: ClientSettings) -> httpx.Auth:
    """Return the proof of this user's identity. Raises `NoToken`."""
    runs_munge = settings.munge_socket.exists() and shutil.which("munge") is not None
    has_token = settings.token_file.expanduser().exists()
    if settings.proof == "munge" or (settings.proof == "auto" and runs_munge and not has_token):
        return MungeProof(settings)
    return TokenProof(read_token(settings))


def checked_url(url: str) -> str:
    """Return the URL, if a token may travel to it: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port  # a wrong port raises only when it is read
    except ValueError:
        scheme, host = "", None
    if scheme not in {"http", "https"} or not host:
        raise BadInput(f"client.url is {url!r}; it must be like https://HOST:8642")
    if scheme == "http" and host not in LOOPBACK:
        raise BadInput(f"client.url is {url!r}: off this machine the token must not travel in the clear; use https://")
    return url


def trust(settings: ClientSettings) -> ssl.SSLContext | bool:
    """Return the authorities for control's certificate. Raises `BadInput`."""
    try:
        return trusted_authorities(settings.url, settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"client.ca_file {settings.ca_file}: {one_line(str(error))}") from None


class Control:
    """A connection to control. Every method may raise any `Failure`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._url = checked_url(settings.url)
        self._token_file = settings.token_file
        self._connect_s = min(CONNECT_S, settings.timeout_s)
        self._said_that_it_waits = threading.Event()
        self._proof = proof(settings)
        # trust_env=False: a proxy for the outside world must not see the token, and must not take over localhost.
        self._http = httpx.Client(
            base_url=self._url,
            auth=self._proof,
            timeout=httpx.Timeout(settings.timeout_s, connect=self._connect_s),
            verify=trust(settings),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, submission: Submission) -> Submitted:
        given: dict[str, Any] = {"content": submission.model_dump_json()}
        given["headers"] = {"Content-Type": "application/json", "Idempotency-Key": str(uuid4())}
        return self._asked(lambda: self._ask("POST", "/v1/jobs", Submitted, **given), lost=RETRY_PAUSES_S)

    def jobs(self, wanted: JobFilter) -> JobList:
        return self._read("/v1/jobs", JobList, wanted.model_dump(mode="json", exclude_none=True))

    def all_jobs(self, *, campaign: int) -> Iterator[JobRow]:
        """Yield every job of a campaign, page by page."""
        after = 0
        while rows := self.jobs(JobFilter(campaign=campaign, after=after, limit=1000)).jobs:
            yield from rows
            after = rows[-1].id

    def job(self, job: int) -> JobDetail:
        return self._read(f"/v1/jobs/{job}", JobDetail)

    def act(self, job: int, verb: str) -> JobRow:
        """Hold, release or cancel a job: `verb` says which."""
        return self._write("POST", f"/v1/jobs/{job}/{verb}", JobRow)

    def change(self, job: int, change: Change) -> JobRow:
        return self._write("PATCH", f"/v1/jobs/{job}", JobRow, change)

    def change_campaign(self, campaign: int, change: Change) -> CampaignStatus:
        return self._write("PATCH", f"/v1/campaigns/{campaign}", CampaignStatus, change)

    def log(self, job: int, *, first: int, limit: int, everything: bool = False) -> LogPage:
        wanted = {"first": first, "limit": limit} | ({"all": 1} if everything else {})
        return self._read(f"/v1/jobs/{job}/log", LogPage, wanted)

    def status(self) -> CampaignStatus:
        return self._read("/v1/status", CampaignStatus)

    def campaign(self, campaign: int) -> CampaignStatus:
        return self._read(f"/v1/campaigns/{campaign}", CampaignStatus)

    def act_on_campaign(self, campaign: int, verb: str) -> CampaignStatus:
        return self._write("POST", f"/v1/campaigns/{campaign}/{verb}", CampaignStatus)

    def decision(self, number: int) -> DecisionRow:
        return self._read(f"/v1/decisions/{number}", DecisionRow)

    def decisions(self, subject: str, *, limit: int) -> tuple[DecisionRow, ...]:
        """Return the last decisions about `job 7` or `slurm 4711`, the latest first."""
        return self._read("/v1/decisions", tuple[DecisionRow, ...], {"subject": subject, "limit": limit})

    def agents(self) -> tuple[AgentRow, ...]:
        return self._read("/v1/agents", tuple[AgentRow, ...])

    def nodes(self) -> ClusterStatus:
        return self._read("/v1/nodes", ClusterStatus)

    def trust(self, node: str) -> ClusterStatus:
        """Forget what has failed on a node."""
        return self._write("POST", f"/v1/nodes/{quote(node, safe='')}/trust", ClusterStatus)

    def drain(self, request: DrainRequest) -> DrainRow:
        return self._write("POST", "/v1/nodes/drain", DrainRow, request)

    def resume(self, request: ResumeRequest) -> DrainRow:
        return self._write("POST", "/v1/nodes/resume", DrainRow, request)

    def drained(self, number: int) -> DrainRow:
        """Return the state of a drain."""
        return self._read(f"/v1/drains/{number}", DrainRow)

    def migrate(self, job: int, request: MigrateRequest) -> JobRow:
        return self._write("POST", f"/v1/jobs/{job}/migrate", JobRow, request)

    def images(self, group: str | None) -> tuple[ImageRow, ...]:
        return self._read("/v1/images", tuple[ImageRow, ...], _of_group(group))

    def site_images(self) -> SiteImages:
        return self._read("/v1/site-images", SiteImages)

    def image(self, name: str, group: str | None) -> ImageRow:
        return self._read(f"/v1/images/{quote(name, safe='')}", ImageRow, _of_group(group))

    def remove_image(self, name: str, group: str | None) -> ImageRow:
        path = f"/v1/images/{quote(name, safe='')}"
        return self._asked(lambda: self._ask("DELETE", path, ImageRow, params=_of_group(group)), lost=())

    def publish_image(self, name: str, group: str | None) -> ImageRow:
        path = f"/v1/images/{quote(name, safe='')}/publish"
        return self._asked(lambda: self._ask("POST", path, ImageRow, params=_of_group(group)), lost=())

    def unpublish_image(self, name: str) -> ImageRow:
        path = f"/v1/images/{quote(name, safe='')}/unpublish"
        return self._asked(lambda: self._ask("POST", path, ImageRow), lost=())

    def secrets(self, group: str | None) -> tuple[SecretRow, ...]:
        return self._read("/v1/secrets", tuple[SecretRow, ...], _of_group(group))

    def set_secret(self, given: SecretPut) -> SecretRow:
        content, headers = given.with_value(), {"Content-Type": "application/json"}
        return self._asked(
            lambda: self._ask("POST", "/v1/secrets", SecretRow, content=content, headers=headers), lost=()
        )

    def remove_secret(self, name: str, group: str | None) -> SecretRow:
        path = f"/v1/secrets/{quote(name, safe='')}"
        return self._asked(lambda: self._ask("DELETE", path, SecretRow, params=_of_group(group)), lost=())

    def put_part(self, kind: Kind, content: str, part: bytes, *, at: int, size_bytes: int, group: str | None) -> int:
        """Send a part of an upload, again if the answer is lost. Return the size of what is there."""
        given: dict[str, Any] = {"content": part, "headers": {"Content-Type": "application/octet-stream"}}
        given["params"] = {"at": at, "size_bytes": size_bytes, **(_of_group(group) or {})}
        path = f"/v1/uploads/{kind}/{content}"
        return self._asked(lambda: self._ask("PUT", path, Uploaded, **given), lost=RETRY_PAUSES_S).size_bytes

    def push_image(self, push: ImagePush) -> ImageRow:
        """Have an image stored that was sent. Control reads and writes all of it before it answers."""
        return self._store("/v1/images", ImageRow, push)

    def missing_inputs(self, wanted: InputList) -> tuple[str, ...]:
        """Return the inputs that the group has not stored."""
        return self._write("POST", "/v1/inputs/missing", InputMissing, wanted).missing

    def put_input(self, given: InputPut) -> InputRow:
        """Have an input stored that was sent."""
        return self._store("/v1/inputs", InputRow, given)

    def _store(self, path: str, shape: type[Answered], body: BaseModel) -> Answered:
        given: dict[str, Any] = {"content": body.model_dump_json(), "timeout": PUSH_S}
        given["headers"] = {"Content-Type": "application/json"}
        return self._asked(lambda: self._ask("POST", path, shape, **given), lost=())

    def owners(self) -> OwnersStatus:
        return self._read("/v1/owners", OwnersStatus)

    def report(self, month: str, *, accounting: bool) -> MonthReport:
        given: dict[str, Any] = {"params": {"month": month, "accounting": accounting}}
        if accounting:
            given["timeout"] = ACCOUNTING_S
        return self._asked(lambda: self._ask("GET", "/v1/report", MonthReport, **given), lost=())

    def health(self) -> Health:
        return self._read("/health", Health)

    def web_address(self) -> str:
        """Return the address of the web page, with a code that signs one browser in within a minute."""
        code = self._write("POST", "/v1/web-codes", WebCode).code
        return f"{self._url.rstrip('/')}/web/sign-in#{quote(code, safe='')}"

    def issue_token(self, request: TokenRequest) -> TokenIssued:
        return self._write("POST", "/v1/tokens", TokenIssued, request)

    def tokens(self, *, everything: bool) -> tuple[TokenRow, ...]:
        return self._read("/v1/tokens", tuple[TokenRow, ...], {"all": 1} if everything else None)

    def revoke_token(self, token: str) -> TokenRow:
        return self._write("POST", f"/v1/tokens/{token}/revoke", TokenRow)

    def rotate_token(self, token: str) -> TokenIssued:
        return self._write("POST", f"/v1/tokens/{token}/rotate", TokenIssued)

    @contextmanager
    def output(self, job: int) -> Generator[Iterator[bytes]]:
        """Yield the chunks of a job's output, a tar archive. After the first, nothing is repeated: start over then."""
        response = self._asked(lambda: self._opened(f"/v1/jobs/{job}/output"), lost=())
        try:
            if response.is_error:
                response.read()
            self._check(response)
            yield response.iter_bytes()
        except httpx.HTTPError as error:
            raise self._transport(error) from error
        finally:
            response.close()

    def _opened(self, path: str) -> httpx.Response:
        """Return an answer of which only the head has been read yet."""
        try:
            return self._http.send(self._http.build_request("GET", path), stream=True)
        except httpx.HTTPError as error:
            raise self._transport(error) from error

    def _read(self, path: str, shape: type[Answered], params: dict[str, Any] | None = None) -> Answered:
        return self._asked(lambda: self._ask("GET", path, shape, params=params), lost=RETRY_PAUSES_S)

    def _write(self, method: str, path: str, shape: type[Answered], body: BaseModel | None = None) -> Answered:
        content = None if body is None else body.model_dump_json()
        headers = {"Content-Type": "application/json"}
        return self._asked(lambda: self._ask(method, path, shape, content=content, headers=headers), lost=())

    def _asked(self, ask: Callable[[], Answered], *, lost: Sequence[float]) -> Answered:
        """Return the answer. `lost`: the pauses before a question that may have arrived is asked again.

        Without a connection a question is always asked again, for some seconds. A user who waits is told so.
        """
        began_s = time.monotonic()
        after_loss, after_refusal = iter(lost), chain(RETRY_PAUSES_S, repeat(RETRY_PAUSES_S[-1]))
        teller = threading.Timer(WORD_AFTER_S, self._say_that_it_waits)
        teller.daemon = True
        teller.start()
        try:
            while True:
                try:
                    return ask()
                except TimedOut:
                    raise
                except Unreachable as failure:
                    is_refused = isinstance(failure, NotConnected)
                    pause_s = next(after_refusal if is_refused else after_loss, None)
                    most_s = min(REFUSED_S if is_refused else CONNECT_S, self._connect_s)
                    if pause_s is None or time.monotonic() + pause_s - began_s > most_s:
                        raise
                    time.sleep(pause_s)
        finally:
            teller.cancel()

    def _say_that_it_waits(self) -> None:
        """Tell the user that the command waits, once, however many questions the command asks."""
        if not self._said_that_it_waits.is_set():
            self._said_that_it_waits.set()
            render.remark(f"no answer from {self._url} for {WORD_AFTER_S:g} s; still trying")

    def _ask(self, method: str, path: str, shape: type[Answered], **asked: Any) -> Answered:
        try:
            response = self._http.request(method, path, **asked)
        except httpx.HTTPError as error:
            raise self._transport(error) from error
        self._check(response)
        try:
            return TypeAdapter(shape).validate_json(response.content)
        except ValidationError as error:
            raise Failure(
                f"{self._url} gave an answer that this glean does not understand; is it Gleaner, of the same version?"
            ) from error

    def _check(self, response: httpx.Response) -> None:
        status = response.status_code
        if response.is_success:
            return
        try:
            detail = one_line(Problem.model_validate_json(response.content).detail)
        except ValidationError as error:
            said = f"{self._url} answered with status {status} and no reason; is it Gleaner?"
            raise (Unreachable(said) if status in AWAY or status == 502 else Failure(said)) from error
        if status == 401:
            raise NoToken(self._unproven(detail))
        if status == 409:
            raise Conflict(detail)
        if status == 403:
            raise Forbidden(f"not allowed: {detail}")
        if status in {400, 413, 422}:
            raise BadInput(detail)
        if status in AWAY:
            raise Unreachable(f"control cannot do this now: {detail}")
        raise Failure(detail)

    def _unproven(self, detail: str) -> str:
        if isinstance(self._proof, MungeProof):
            return f"control did not take munge's word for who you are: {detail}"
        if "expired" in detail:
            return f"the token in {self._token_file} is of no use any more: {detail}"
        return f"control does not know the token in {self._token_file}; ask an admin for a new one"

    def _transport(self, error: httpx.HTTPError) -> Unreachable:
        if isinstance(error, httpx.ConnectTimeout):
            said = f"no connection within {self._connect_s:g} s"
            return TimedOut(f"cannot reach control at {self._url} ({said}); is it running, and is client.url right?")
        if isinstance(error, httpx.TimeoutException):
            return TimedOut(f"control at {self._url} did not answer in time")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            said = f"the certificate of {self._url} is not trusted: {error}; set client.ca_file to the site's authority"
        else:
            said = f"cannot reach control at {self._url} ({error}); is it running, and is client.url right?"
        return (NotConnected if _was_refused(error) else Unreachable)(one_line(said))


def _of_group(group: str | None) -> dict[str, Any] | None:
    return None if group is None else {"group": group}


def _was_refused(error: httpx.HTTPError) -> bool:
    """Return True if there was no connection, and another try may get one: no byte of the question was sent.

    A name that nobody knows stays unknown, and a certificate that is not trusted stays so.
    """
    if not isinstance(error, httpx.ConnectError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror | ssl.SSLError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True
