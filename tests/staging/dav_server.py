"""An HTTPS server that takes files, as WebDAV servers do, and misbehaves where a test says so."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tests.staging.bad_server import BadServer, bad_server


@dataclass
class DavServer(BadServer):
    """A server that takes files, and what it has. Each PUT is redirected once to `moved_to` with its own path."""

    files: dict[str, bytes] = field(default_factory=dict[str, bytes])
    folders: set[str] = field(default_factory=set[str])
    refuses: dict[str, int] = field(default_factory=dict[str, int])
    """The answers to methods that it refuses, and to `PUT PATH` once."""
    moves: threading.Event | None = None
    """A MOVE waits for it."""
    shown: list[set[str]] = field(default_factory=list[set[str]])
    """The names that readers saw after each request, without passing ones."""


@contextmanager
def dav_server(place: Path) -> Iterator[DavServer]:
    made = DavServer(0, place)
    with bad_server(place, _DavHandler, made):
        yield made


class _DavHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    def _do(self) -> None:
        made: DavServer = self.server.made  # type: ignore[attr-defined]
        path = unquote(urlsplit(self.path).path)
        made.asked.append(f"{self.command} {path}")
        made.credentials.append((self.path, self.headers.get("Authorization")))
        if self.command == "PUT" and "hang" in made.refuses:
            made.hangs.set()
            made.ends.wait(120)
        if self.command == "MOVE" and made.moves is not None:
            made.hangs.set()
            made.moves.wait(120)
        size_bytes = int(self.headers.get("Content-Length") or 0)
        content = self.rfile.read(size_bytes)
        status = made.refuses.pop(f"{self.command} {path}", 0) or made.refuses.get(self.command, 0)
        parent = path.rstrip("/").rpartition("/")[0]
        if status or (made.wanted and self.headers.get("Authorization") != made.wanted):
            self._answer(status or 401)
        elif self.command == "PUT" and made.moved_to and "elsewhere" not in self.path:
            self._answer(307, made.moved_to + self.path + "?elsewhere")
        elif self.command == "MKCOL":
            self._answer(405 if path.rstrip("/") in made.folders else 409 if parent not in made.folders else 201)
            if parent in made.folders:
                made.folders.add(path.rstrip("/"))
        elif self.command == "PUT" and parent not in made.folders:
            self._answer(409)
        elif self.command == "PUT":
            made.files[path] = content
            self._answer(201)
        elif path not in made.files:
            self._answer(404)
        elif self.command == "MOVE":
            made.files[unquote(urlsplit(self.headers["Destination"]).path)] = made.files.pop(path)
            self._answer(201)
        else:
            del made.files[path]
            self._answer(204)
        made.shown.append({name for name in made.files if ".gleaner-" not in name})

    do_PUT = do_MOVE = do_MKCOL = do_DELETE = _do

    def _answer(self, status: int, location: str = "") -> None:
        self.send_response(status)
        if location:
            self.send_header("Location", location)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def finish(self) -> None:
        with suppress(OSError):  # the client went away
            super().finish()
