"""Query control over HTTP, and read a certificate's file.

A failure is raised as `Unread`, with the reason in one line.
"""

import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import httpx

from gleaner.agent.common.tls import trusted_authorities
from gleaner.agent.system import untrusted
from gleaner.control.doctor.finding import Unread
from gleaner.control.input_errors import one_line
from gleaner.control.settings import LOOPBACK

_LARGEST_ANSWER = 2**20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer over HTTP. The times are those of this machine's clock, in seconds since the epoch."""

    status: int
    values: dict[str, Any]
    """The JSON object of the answer, or an empty one if the answer is not a JSON object."""
    asked_s: float
    answered_s: float
    certificate_ends_s: float
    """The end of the server's certificate, or 0 with plain http."""


def ask(url: str, path: str, ca_file: Path | None, *, within_s: float, token: str = "") -> HttpAnswer:
    """Send one request to a server. Raises `Unread`.

    No proxy is used, and a token never leaves this machine unencrypted.
    """
    try:
        address = httpx.URL(url)
    except httpx.InvalidURL:
        address = httpx.URL("")
    if address.scheme not in {"http", "https"} or not address.host:
        raise Unread(f"control's address must be like https://HOST:8642: {url!r}")
    if token and address.scheme != "https" and address.host not in LOOPBACK:
        raise Unread("the token must not leave this machine unencrypted; use https://")
    address = address.copy_with(port=address.port or 8642, raw_path=path.encode())
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        context = trusted_authorities(url, ca_file)
    except OSError as error:
        raise Unread(one_line(f"ca_file {ca_file}: {error.strerror or error}")) from error
    try:
        with httpx.Client(verify=context, timeout=within_s, trust_env=False) as client:
            asked_s = time.time()
            with client.stream("GET", address, headers=headers) as answer:
                return _read(answer, asked_s)
    except httpx.HTTPError as error:
        raise Unread(one_line(f"{address.host} port {address.port}: {str(error) or type(error).__name__}")) from error


def _read(answer: httpx.Response, asked_s: float) -> HttpAnswer:
    answered_s = time.time()
    tls: ssl.SSLObject | None = answer.extensions["network_stream"].get_extra_info("ssl_object")
    shown = tls.getpeercert() if tls else None
    ends_s = float(ssl.cert_time_to_seconds(str(shown["notAfter"]))) if shown else 0.0
    try:
        found = untrusted.json_of(next(answer.iter_bytes(_LARGEST_ANSWER), b""), for_display=True)
    except ValueError:
        found = None
    values = cast("dict[str, Any]", found) if type(found) is dict else {}
    return HttpAnswer(answer.status_code, values, asked_s, answered_s, ends_s)


def certificate_end_s(certificate: Path, key: Path) -> float:
    """Return the time at which a certificate with this key expires. Raises `Unread`."""
    from cryptography import x509  # only control's machine has the key

    try:
        # If no password were passed, openssl would ask at the terminal for the password of an encrypted key.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except OSError as error:
        raise Unread(one_line(f"{certificate} and {key} cannot be used together: {error}")) from error
