"""The connection to control, for both clients: its addresses, its repeated tries, and its failures, each as one line.

Reads are repeated if the answer is lost. So is a submission, because it carries a key by which control recognizes it.
No other write that might have arrived is repeated. A request that cannot have arrived, because there was no connection,
is repeated for some seconds in case control is being restarted. If there are several addresses, the next one is tried
immediately.
"""

import socket
import ssl
import threading
import time
from collections.abc import Callable
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import BaseModel, TypeAdapter, ValidationError

from gleaner.agent.common.tls import trusted_authorities
from gleaner.client.errors import ClientError, ErrorKind
from gleaner.client.proof import MungeProof, TokenProof, find_proof
from gleaner.client.steps import ApiCall, Sleep, Steps
from gleaner.control.input_errors import one_line
from gleaner.control.models.base import Problem

if TYPE_CHECKING:
    from gleaner.control.settings import ClientSettings

T = TypeVar("T")

RETRY_PAUSES_S = (0.2, 0.5, 1.0)
"""The pauses before repeating a read whose answer was lost."""
CONNECT_S = 10.0
"""The time limit for a connection, after which requests are no longer repeated."""
REFUSED_S = 4.8
"""The time for which a refused connection is tried again. A restart of control takes two to four seconds."""
STORE_S = 1800.0
"""The time limit for control to store an image or an input that it has received."""
NOTICE_AFTER_S = 5.0
"""The time without an answer after which the user is told that the call is waiting."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The hosts that only this machine can reach."""
_KINDS = {
    400: ErrorKind.INVALID, 401: ErrorKind.NO_PROOF, 403: ErrorKind.FORBIDDEN, 409: ErrorKind.CONFLICT,
    413: ErrorKind.INVALID, 422: ErrorKind.INVALID, 503: ErrorKind.AWAY, 504: ErrorKind.AWAY,
}  # fmt: skip


class Connection:
    """The addresses of control, the user's proof of identity, and the HTTP options that both clients share."""

    def __init__(self, settings: "ClientSettings", *, token: str | None, notice: Callable[[str], None] | None) -> None:
        self.urls = [_checked_url(url) for url in settings.url]
        """The addresses; the first is the one that answered last."""
        self.notice: Callable[[str], None] = notice or (lambda _line: None)
        self.proof: httpx.Auth = find_proof(settings) if token is None else TokenProof(token)
        self._token_place = "this client" if token is not None else str(settings.token_file)
        self._timeout_s = settings.timeout_s
        self._connect_s = min(CONNECT_S, settings.timeout_s)
        self._has_told_that_it_waits = threading.Event()
        self._authorities = _authorities(settings)

    @property
    def http_options(self) -> dict[str, Any]:
        """Return the options of httpx's client."""
        # trust_env=False: a proxy for the outside world must not see the token, and must not redirect localhost.
        return {"auth": self.proof, "verify": self._authorities, "trust_env": False}

    def ask(
        self, method: str, path: str, shape: type[T], *, is_repeatable: bool = False, within_s: float = 0, **call: Any
    ) -> Steps[T]:
        """Return control's answer. `within_s` replaces the time limit of the settings for one request."""
        response = yield from self._answered(method, path, is_repeatable=is_repeatable, within_s=within_s, **call)
        try:
            return TypeAdapter(shape).validate_json(response.content)
        except ValidationError as error:
            line = "gave an answer that this glean does not understand; is it Gleaner, of the same version?"
            raise ClientError(f"{self.urls[0]} {line}") from error

    def write(
        self, method: str, path: str, shape: type[T], body: BaseModel | str | None = None, *, key: str = "", **call: Any
    ) -> Steps[T]:
        """Return control's answer to a request that changes something.

        A request that might have arrived is repeated only if it has a key, by which control recognizes it.
        """
        content = body.model_dump_json() if isinstance(body, BaseModel) else body
        headers = {"Content-Type": "application/json"} | ({"Idempotency-Key": key} if key else {})
        return self.ask(method, path, shape, is_repeatable=bool(key), content=content, headers=headers, **call)

    def download(self, path: str, **call: Any) -> Steps[None]:
        """Pass the body of the answer to `receive`. After its first part, the request is not repeated."""
        yield from self._answered("GET", path, is_repeatable=False, within_s=0, **call)

    def _answered(
        self, method: str, path: str, *, is_repeatable: bool, within_s: float, **call: Any
    ) -> Steps[httpx.Response]:
        """Return a successful answer. A user who has to wait for a long time is notified."""
        began_s = time.monotonic()
        timeout = httpx.Timeout(within_s or self._timeout_s, connect=self._connect_s)
        after_loss = iter(RETRY_PAUSES_S if is_repeatable else ())
        after_refusal = chain(RETRY_PAUSES_S, repeat(RETRY_PAUSES_S[-1]))
        others_to_try = len(self.urls) - 1
        teller = threading.Timer(NOTICE_AFTER_S, self._tell_that_it_waits)
        teller.daemon = True
        teller.start()
        try:
            while True:
                try:
                    url = f"{self.urls[0].rstrip('/')}{path}"
                    response: httpx.Response = yield ApiCall(method=method, url=url, timeout=timeout, **call)
                    if failure := self._failure_of(response):
                        raise failure
                    return response
                except httpx.HTTPError as error:
                    failure = self._transport_failure(error)
                    failure.__cause__ = error
                    can_have_arrived = not isinstance(error, httpx.ConnectError | httpx.ConnectTimeout)
                except ClientError as error:
                    failure, can_have_arrived = error, True
                if not failure.is_away:
                    raise failure
                self.urls = [*self.urls[1:], self.urls[0]]  # never empty, since several threads can ask
                if others_to_try and (is_repeatable or not can_have_arrived):
                    others_to_try -= 1
                    continue
                others_to_try = len(self.urls) - 1
                is_refused = failure.kind is ErrorKind.NOT_CONNECTED
                pause_s = next(after_refusal if is_refused else after_loss, None)
                most_s = min(REFUSED_S if is_refused else CONNECT_S, self._connect_s)
                if pause_s is None or failure.kind is ErrorKind.TIMED_OUT:
                    raise failure
                if time.monotonic() + pause_s - began_s > most_s:
                    raise failure
                yield Sleep(pause_s)
        finally:
            teller.cancel()

    def _tell_that_it_waits(self) -> None:
        """Tell the user that the call is waiting. The notice is given only once for all calls."""
        if not self._has_told_that_it_waits.is_set():
            self._has_told_that_it_waits.set()
            self.notice(f"no answer from {self.urls[0]} for {NOTICE_AFTER_S:g} s; still trying")

    def _failure_of(self, response: httpx.Response) -> ClientError | None:
        """Return the failure that an answer represents, or None if it is successful."""
        status, url = response.status_code, self.urls[0]
        if response.is_success:
            return None
        kind = _KINDS.get(status, ErrorKind.REFUSED)
        try:
            line = one_line(Problem.model_validate_json(response.content).detail)
        except ValidationError:
            line = f"{url} answered with status {status} and no reason; is it Gleaner?"
            is_away = kind is ErrorKind.AWAY or status == 502
            return ClientError(line, kind=ErrorKind.AWAY if is_away else ErrorKind.REFUSED, status=status)
        match kind:
            case ErrorKind.NO_PROOF:
                line = self._unproven(line)
            case ErrorKind.FORBIDDEN:
                line = f"not allowed: {line}"
            case ErrorKind.AWAY:
                line = f"control cannot do this now: {line}"
            case _:
                pass
        return ClientError(line, kind=kind, status=status)

    def _unproven(self, line: str) -> str:
        if isinstance(self.proof, MungeProof):
            return f"control did not accept your munge credential: {line}"
        if "expired" in line:
            return f"the token in {self._token_place} is no longer usable: {line}"
        return f"control does not know the token in {self._token_place}; ask an admin for a new one"

    def _transport_failure(self, error: httpx.HTTPError) -> ClientError:
        url = self.urls[0]
        if isinstance(error, httpx.ConnectTimeout):
            line = f"cannot reach control at {url} (no connection within {self._connect_s:g} s)"
            return ClientError(f"{line}; is it running, and is client.url right?", kind=ErrorKind.TIMED_OUT)
        if isinstance(error, httpx.TimeoutException):
            return ClientError(f"control at {url} did not answer in time", kind=ErrorKind.TIMED_OUT)
        if "CERTIFICATE_VERIFY_FAILED" in str(error):
            line = f"the certificate of {url} is not trusted: {error}; set client.ca_file to the site's authority"
        else:
            line = f"cannot reach control at {url} ({error}); is it running, and is client.url right?"
        kind = ErrorKind.NOT_CONNECTED if _was_refused(error) else ErrorKind.AWAY
        return ClientError(one_line(line), kind=kind)


def _checked_url(url: str) -> str:
    """Return the address if a token can safely be sent to it: https, or http on this machine."""
    try:
        parts = urlsplit(url)
        scheme, host, _ = parts.scheme, parts.hostname, parts.port  # a wrong port raises an error only when it is read
    except ValueError:
        scheme, host = "", None
    if scheme not in {"http", "https"} or not host:
        line = f"client.url is {url!r}; it must be like https://HOST:8642"
        raise ClientError(line, kind=ErrorKind.INVALID)
    if scheme == "http" and host not in LOOPBACK:
        line = f"client.url is {url!r}: the token must not leave this machine unencrypted; use https://"
        raise ClientError(line, kind=ErrorKind.INVALID)
    return url


def _authorities(settings: "ClientSettings") -> ssl.SSLContext | bool:
    """Return the authorities against which control's certificate is checked."""
    url = next((url for url in settings.url if url.startswith("https:")), settings.url[0])
    try:
        return trusted_authorities(url, settings.ca_file)
    except (OSError, ssl.SSLError) as error:
        line = f"client.ca_file {settings.ca_file}: {one_line(str(error))}"
        raise ClientError(line, kind=ErrorKind.INVALID) from None


def _was_refused(error: httpx.HTTPError) -> bool:
    """Return True if there was no connection, so that no byte of the request was sent and another try might succeed.

    An unknown host name and an untrusted certificate do not count, because another try would fail as well.
    """
    if not isinstance(error, httpx.ConnectError):
        return False
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, socket.gaierror | ssl.SSLError):
            return False
        cause = cause.__cause__ or cause.__context__
    return True
