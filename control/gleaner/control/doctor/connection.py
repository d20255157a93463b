"""Ask control over HTTP, and look at a certificate's file. What fails is `Unread`, with one line why."""

import http.client
import socket
import ssl
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast
from urllib.parse import urlsplit

from gleaner.agent.system import untrusted
from gleaner.control.doctor.finding import Unread
from gleaner.control.input_errors import one_line
from gleaner.control.settings import LOOPBACK

HANGS = "accepts connections"
"""Words about a server that then does not answer."""
_LARGEST_ANSWER = 2**20


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """An answer over HTTP. The times are of this machine's clock, seconds since the epoch."""

    status: int
    values: dict[str, Any]
    """Empty if the answer is no object in JSON."""
    asked_s: float
    answered_s: float
    certificate_ends_s: float
    """The end of the certificate that the server has shown; 0 with plain http."""
    is_here: bool
    """True if the server is on this machine."""


def ask(url: str, path: str, ca_file: Path | None, *, within_s: float, token: str = "") -> HttpAnswer:
    """Ask a server one question. Raises `Unread`.

    No proxy is used, and a token never travels in the clear off this machine.
    """
    try:
        parts = urlsplit(url)
        host, port, is_tls = parts.hostname or "", parts.port or 8642, parts.scheme == "https"
    except ValueError:
        host, port, is_tls, parts = "", 0, False, urlsplit("")
    if parts.scheme not in {"http", "https"} or not host:
        raise Unread(f"control's address must be like https://HOST:8642: {url!r}")
    if token and not is_tls and host not in LOOPBACK:
        raise Unread("off this machine the token must not travel in the clear; use https://")
    connection = http.client.HTTPConnection(host, port, timeout=within_s)
    if is_tls:
        connection = http.client.HTTPSConnection(host, port, timeout=within_s, context=_context(ca_file))
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    where = f"{host} port {port}"
    try:
        address = str(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][4][0])
        where = where if address == host else f"{host} ({address} here) port {port}"
        connection.connect()
        shown = connection.sock.getpeercert() if isinstance(connection.sock, ssl.SSLSocket) else None
        ends_s = float(ssl.cert_time_to_seconds(str(shown["notAfter"]))) if shown else 0.0
        # Only a connection within one machine has the same address at both of its ends.
        is_here = connection.sock.getsockname()[0] == connection.sock.getpeername()[0]
        asked_s = time.time()
        connection.request("GET", path, headers=headers)
        answer = connection.getresponse()
        answered_s = time.time()
        return HttpAnswer(answer.status, _values(answer.read(_LARGEST_ANSWER)), asked_s, answered_s, ends_s, is_here)
    except ssl.SSLCertVerificationError as error:
        raise Unread(f"the certificate of {host} is not taken: {one_line(error.verify_message)}") from error
    except TimeoutError as error:
        accepts = f" {HANGS} and" if connection.sock is not None else ""
        raise Unread(f"{where}{accepts} did not answer within {within_s:.1f} s") from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "strerror", None) or error or type(error).__name__
        raise Unread(one_line(f"{where}: {why}")) from error
    finally:
        connection.close()


def _context(ca_file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise Unread(one_line(f"ca_file {ca_file}: {error.strerror or error}")) from error


def _values(body: bytes) -> dict[str, Any]:
    try:
        found = untrusted.json_of(body, for_display=True)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if type(found) is dict else {}


def certificate_end_s(certificate: Path, key: Path) -> float:
    """Return the end of a certificate that belongs to this key. Raises `Unread`."""
    from cryptography import x509  # only control's machine has it

    try:
        for path in (certificate, key):  # ssl does not name the file that it cannot read
            path.open("rb").close()
        # With no password at all, a key that needs one would be asked for at the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, password="")
        return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc.timestamp()
    except ssl.SSLError as error:
        raise Unread(one_line(f"{certificate} and {key} cannot be used together: {error}")) from error
    except OSError as error:
        raise Unread(f"{error.filename} cannot be read: {error.strerror}") from error
