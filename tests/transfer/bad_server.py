"""An HTTPS server that misbehaves in the way that the path says, with a certificate of its own."""

import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

CONTENT = b"Beams:eCM = 8000.\n" * 1000


@dataclass
class BadServer:
    """A server on this machine, and what it has been asked."""

    port: int
    certificate: Path
    asked: list[str] = field(default_factory=list)
    hangs: threading.Event = field(default_factory=threading.Event)
    """Set when a request hangs."""
    ends: threading.Event = field(default_factory=threading.Event)
    content: bytes = CONTENT
    credentials: list[tuple[str, str | None]] = field(default_factory=list[tuple[str, str | None]])
    """The path and the credential of each request."""
    wanted: str = ""
    """The header that `private` wants to see."""
    moved_to: str = ""
    """The URL to which `led` is redirected."""
    refuses_with: str = ""
    """The code with which `refused` is answered, in the form of S3."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"https://{host}:{self.port}/{path}"

    @property
    def allowed(self) -> tuple[str, ...]:
        return (self.url(""),)


@contextmanager
def bad_server(
    place: Path, handler: type[BaseHTTPRequestHandler] | None = None, made: BadServer | None = None
) -> Iterator[BadServer]:
    """Serve until the end. Another `handler` finds what it notes in `self.server.made`."""
    certificate, key = place / "cert.pem", place / "key.pem"
    kind = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", "/CN=here"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost"]
    command = ["openssl", "req", "-x509", *kind, *names, "-keyout", str(key), "-out", str(certificate)]
    subprocess.run(command, check=True, capture_output=True, timeout=60)
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler or _Handler)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    made = made or BadServer(0, certificate)
    made.port, made.certificate = server.server_port, certificate
    server.made = made  # type: ignore[attr-defined]
    running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    running.start()
    try:
        yield made
    finally:
        made.ends.set()
        server.shutdown()
        running.join()
        server.server_close()


@contextmanager
def plain_server() -> Iterator[BadServer]:
    """Serve without TLS at an address of this machine that no list names, until the end."""
    server = ThreadingHTTPServer(("127.0.0.2", 0), _PlainHandler)
    server.made = made = BadServer(server.server_port, Path())  # type: ignore[attr-defined]
    running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    running.start()
    try:
        yield made
    finally:
        server.shutdown()
        running.join()
        server.server_close()


class _PlainHandler(BaseHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        self.server.made.asked.append(f"{self.command} {self.path}")  # type: ignore[attr-defined]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.send_response(200)
        self.end_headers()
        self.wfile.write(CONTENT)

    do_PUT = do_GET


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        made: BadServer = self.server.made  # type: ignore[attr-defined]
        made.asked.append(self.path)
        made.credentials.append((self.path.partition("?")[0], self.headers.get("Authorization")))
        self.close_connection = True
        asked = urlsplit(self.path)
        match asked.path.strip("/").split("/")[-1]:
            case "missing":
                self._answer(404)
            case "private" if self.headers.get("Authorization") != made.wanted:
                self._answer(401)
            case "busy":
                self._answer(503)
            case "moved":
                self._answer(302, Location=parse_qs(asked.query)["to"][0])
            case "led":
                self._answer(307, Location=made.moved_to)
            case "refused":
                self._refuse(made.refuses_with)
            case "loop":
                self._answer(302, Location=self.path)
            case "silent":
                self._hang(made)
            case "stuck":
                self._answer(200, **{"Content-Length": str(len(made.content))})
                self.wfile.write(made.content[:100])
                self.wfile.flush()
                self._hang(made)
            case "cut":
                self._answer(200, **{"Content-Length": str(len(made.content) + 1)})
                self.wfile.write(made.content)
            case "unsaid":
                self.protocol_version = "HTTP/1.0"
                self._answer(200)
                self.wfile.write(made.content)
            case "endless":
                self._answer(200, **{"Content-Length": str(2**50)})
                while not made.ends.is_set():
                    self.wfile.write(bytes(2**16))
            case _:
                self._answer(200, **{"Content-Length": str(len(made.content))})
                self.wfile.write(made.content)

    def _answer(self, status: int, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 200:
            self.send_header("Content-Length", "0")
        self.end_headers()

    def _refuse(self, code: str) -> None:
        content = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(400)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _hang(self, made: BadServer) -> None:
        made.hangs.set()
        made.ends.wait(120)

    def finish(self) -> None:
        with suppress(OSError):  # the client went away
            super().finish()
