"""The API as seen from the command line: one method a question, and every failure a `Failure` of one line.

Only reads are asked again when the answer is lost; a submission that may have arrived is never repeated.
"""

import os
import ssl
import stat
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, Self, TypeVar
from urllib.parse import quote, urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from gleaner.control.api.drain_shapes import DrainRequest, DrainRow, MigrateRequest, ResumeRequest
from gleaner.control.api.owner_shapes import OwnersStatus
from gleaner.control.api.shapes import (
    AgentRow,
    CampaignStatus,
    Change,
    ClusterStatus,
    DecisionRow,
    Health,
    JobDetail,
    JobFilter,
    JobList,
    JobRow,
    LogPage,
    Problem,
    Submission,
    Submitted,
    TokenIssued,
    TokenRequest,
)
from gleaner.control.cli.config import load_settings
from gleaner.control.cli.failures import BadInput, Failure, Forbidden, NoToken, TimedOut, Unreachable, one_line
from gleaner.control.settings import ClientSettings

Answered = TypeVar("Answered")

RETRY_PAUSES_S = (0.2, 0.5, 1.0)
AWAY = frozenset({503, 504})
"""Statuses that say: not now."""


def connect() -> "Control":
    """Control as the settings name it, with the user's token."""
    return Control(load_settings().client)


def read_token(settings: ClientSettings) -> str:
    """The token from its file, which nobody else may be able to read."""
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


def checked_url(url: str) -> str:
    """The URL, if a token may travel to it: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port  # a wrong port shows only when it is asked for
    except ValueError:
        scheme, host = "", None
    if scheme not in {"http", "https"} or not host:
        raise BadInput(f"client.url is {url!r}; it must be like https://HOST:8642")
    if scheme == "http" and host not in {"127.0.0.1", "::1", "localhost"}:
        raise BadInput(f"client.url is {url!r}: off this machine the token must not travel in the clear; use https://")
    return url


def trust(settings: ClientSettings) -> ssl.SSLContext | bool:
    """Who may vouch for control's certificate: the system's authorities, and the site's own if set."""
    if not settings.url.startswith("https:"):
        return True
    try:
        return ssl.create_default_context(cafile=settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadInput(f"client.ca_file {settings.ca_file}: {one_line(str(error))}") from None


class Control:
    """A connection to control. Every method may raise any `Failure`."""

    def __init__(self, settings: ClientSettings) -> None:
        self._url = checked_url(settings.url)
        self._token_file = settings.token_file
        # trust_env=False: a proxy for the outside world must not see the token, nor swallow localhost.
        self._http = httpx.Client(
            base_url=self._url,
            headers={"Authorization": f"Bearer {read_token(settings)}"},
            timeout=settings.timeout_s,
            verify=trust(settings),
            trust_env=False,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def submit(self, submission: Submission) -> Submitted:
        return self._write("POST", "/v1/jobs", Submitted, submission)

    def jobs(self, wanted: JobFilter) -> JobList:
        return self._read("/v1/jobs", JobList, wanted.model_dump(mode="json", exclude_none=True))

    def all_jobs(self, *, campaign: int) -> Iterator[JobRow]:
        """Every job of a campaign, page by page."""
        after = 0
        while rows := self.jobs(JobFilter(campaign=campaign, after=after, limit=1000)).jobs:
            yield from rows
            after = rows[-1].id

    def job(self, job: int) -> JobDetail:
        return self._read(f"/v1/jobs/{job}", JobDetail)

    def act(self, job: int, verb: str) -> JobRow:
        """`verb` is hold, release or cancel."""
        return self._write("POST", f"/v1/jobs/{job}/{verb}", JobRow)

    def change(self, job: int, change: Change) -> JobRow:
        return self._write("PATCH", f"/v1/jobs/{job}", JobRow, change)

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
        """The last ones about `job 7` or `slurm 4711`, the latest first."""
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
        """How far a drain is."""
        return self._read(f"/v1/drains/{number}", DrainRow)

    def migrate(self, job: int, request: MigrateRequest) -> JobRow:
        return self._write("POST", f"/v1/jobs/{job}/migrate", JobRow, request)

    def owners(self) -> OwnersStatus:
        return self._read("/v1/owners", OwnersStatus)

    def health(self) -> Health:
        return self._read("/health", Health)

    def issue_token(self, request: TokenRequest) -> TokenIssued:
        return self._write("POST", "/v1/tokens", TokenIssued, request)

    @contextmanager
    def output(self, job: int) -> Generator[Iterator[bytes]]:
        """The chunks of a job's output, a tar archive. Not asked again: the caller starts over."""
        try:
            with self._http.stream("GET", f"/v1/jobs/{job}/output") as response:
                if response.is_error:
                    response.read()
                self._check(response)
                yield response.iter_bytes()
        except httpx.HTTPError as error:
            raise self._transport(error) from error

    def _read(self, path: str, shape: type[Answered], params: dict[str, Any] | None = None) -> Answered:
        for pause_s in RETRY_PAUSES_S:
            try:
                return self._ask("GET", path, shape, params=params)
            except TimedOut:
                raise
            except Unreachable:
                time.sleep(pause_s)
        return self._ask("GET", path, shape, params=params)

    def _write(self, method: str, path: str, shape: type[Answered], body: BaseModel | None = None) -> Answered:
        content = None if body is None else body.model_dump_json()
        return self._ask(method, path, shape, content=content, headers={"Content-Type": "application/json"})

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
            raise NoToken(f"control does not know the token in {self._token_file}; ask an admin for a new one")
        if status == 403:
            raise Forbidden(f"not allowed: {detail}")
        if status in {400, 413, 422}:
            raise BadInput(detail)
        if status in AWAY:
            raise Unreachable(f"control cannot do this now: {detail}")
        raise Failure(detail)

    def _transport(self, error: httpx.HTTPError) -> Unreachable:
        if isinstance(error, httpx.TimeoutException):
            return TimedOut(f"control at {self._url} did not answer in time")
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            said = f"the certificate of {self._url} is not trusted: {error}; set client.ca_file to the site's authority"
        else:
            said = f"cannot reach control at {self._url} ({error}); is it running, and is client.url right?"
        return Unreachable(one_line(said))
