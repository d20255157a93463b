"""An HTTPS server that takes files by PUT, and misbehaves where a test says so."""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.transfer.bad_server import BadServer, bad_server


@dataclass
class PutServer(BadServer):
    """A server that takes files, and the files that it has. Each PUT is redirected once to `moved_to` with its path."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refuses: dict[str, int] = field(default_factory=dict[str, int])
    """The answers to all requests (`PUT`), or to `PUT PATH`."""


@contextmanager
def put_server(place: Path) -> Iterator[PutServer]:
    made = PutServer(0, place)
    with bad_server(place, _PutHandler, made):
        yield made


class _PutHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def do_PUT(self) -> None:
        made: PutServer = self.server.made  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        made.asked.append(f"{self.command} {path}")
        made.credentials.append((self.path, self.headers.get("Authorization")))
        status = made.refuses.get(f"{self.command} {path}", 0) or made.refuses.get(self.command, 0)
        if status == 403:  # before it has taken anything
            self._answer(status)
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if status == 403:
            return
        if status or (made.wanted and self.headers.get("Authorization") != made.wanted):
            self._answer(status or 401)
        elif made.moved_to and "elsewhere" not in self.path:
            self._answer(307, made.moved_to + self.path + "?elsewhere")
        else:
            made.files[path] = content
            self._answer(201)

    def _answer(self, status: int, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def finish(self) -> None:
        with suppress(OSError):  # the client went away
            super().finish()
