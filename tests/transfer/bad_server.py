"""An HTTPS server that misbehaves in the way that the path says, with a certificate of its own."""

import gzip
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

from tests.certificates import self_signed

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
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """The files that were put. With `moved_to`, each PUT is redirected once to that place with its path."""
    refuses: dict[str, int] = field(default_factory=dict[str, int])
    """The answers to all requests (`PUT`), or to `PUT PATH`."""
    refuses_with: str = ""
    """The code with which `refused` is answered, in the form of S3."""

    def url(self, path: str, host: str = "127.0.0.1") -> str:
        return f"https://{host}:{self.port}/{path}"

    @property
    def allowed(self) -> tuple[str, ...]:
        return (self.url(""),)


@contextmanager
def bad_server(place: Path) -> Iterator[BadServer]:
    """Serve until the end."""
    certificate, key = self_signed(place)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate, key)
    server.socket = tls.wrap_socket(server.socket, server_side=True)
    server.daemon_threads = True
    server.made = made = BadServer(server.server_port, certificate)  # type: ignore[attr-defined]
    running = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    running.start()
    try:
        yield made
    finally:
        made.ends.set()
        server.shutdown()
        running.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        made: BadServer = self.server.made  # type: ignore[attr-defined]
        made.asked.append(self.path)
        made.credentials.append((self.path.partition("?")[0], self.headers.get("Authorization")))
        self.close_connection = True
        asked, packed = urlsplit(self.path), gzip.compress(made.content)
        match asked.path.strip("/").split("/")[-1]:
            case "missing":
                self._answer(404)
            case "private" if self.headers.get("Authorization") != made.wanted:
                self._answer(401)
            case "busy":
                self._answer(503)
            case "later":
                self._answer(429)
            case "accepted":
                self._answer(202)
            case "partial":
                self._answer(206)
            case "nowhere":
                self._answer(302)
            case "packed":
                self._answer(200, **{"Content-Encoding": "gzip", "Content-Length": str(len(packed))})
                self.wfile.write(packed)
            case "chunked" | "chunked-cut" as what:
                self._answer(200, **{"Transfer-Encoding": "chunked"})
                self.wfile.write(b"%x\r\n%s\r\n" % (len(made.content), made.content))
                self.wfile.write(b"" if what == "chunked-cut" else b"0\r\n\r\n")
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
            case _:
                self._answer(200, **{"Content-Length": str(len(made.content))})
                self.wfile.write(made.content)

    def do_PUT(self) -> None:
        made: BadServer = self.server.made  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        made.asked.append(f"PUT {path}")
        made.credentials.append((self.path, self.headers.get("Authorization")))
        status = made.refuses.get(f"PUT {path}", 0) or made.refuses.get("PUT", 0)
        if status == 403:  # before it has taken anything
            self._answer(status)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if status and status != 403:
            self._answer(status)
        elif made.moved_to and "elsewhere" not in self.path:
            self._answer(307, Location=f"{made.moved_to}{self.path}?elsewhere")
        elif not status:
            made.files[path] = content
            self._answer(201)

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
