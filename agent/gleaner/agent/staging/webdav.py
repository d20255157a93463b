"""A server that takes files by PUT, and by WebDAV's MOVE and MKCOL (RFC 4918) if it knows them.

A file is sent under a passing name and then moved, so that nobody reads half of it. A server that knows no MOVE gets
the file under its own name: whether a reader sees half of it is then up to the server.
"""

import http.client
import os
import socket
import ssl
from collections.abc import Callable, Sequence
from contextlib import suppress
from http import HTTPStatus
from typing import IO
from urllib.parse import quote, urljoin, urlsplit

from gleaner.agent.common import allowed_urls
from gleaner.agent.staging import servers
from gleaner.agent.staging.child_process import MayPass
from gleaner.agent.staging.credentials import Credential
from gleaner.agent.staging.stage import SAYS_WHILE_SILENT, SLOWEST_BYTES_PER_S, Names, while_saying

BLOCK_BYTES = 2**18
_DONE = frozenset({HTTPStatus.OK, HTTPStatus.CREATED, HTTPStatus.ACCEPTED, HTTPStatus.NO_CONTENT})
_MOVED = frozenset({301, 302, 307, 308})
_NO_FOLDER = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT})
_UNKNOWN = frozenset({HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED})


class _Connection(http.client.HTTPSConnection):
    """A connection to an address that was checked after the name was resolved."""

    def __init__(self, host: str, port: int, *, timeout_s: float, check: Callable[[str, str], None]) -> None:
        super().__init__(host, port, timeout=timeout_s, blocksize=BLOCK_BYTES)
        self._check = check
        self._tls = ssl.create_default_context()
        self._timeout_s = timeout_s

    def connect(self) -> None:
        """Connect to the first address that answers. Raises what `check` raises, or `OSError`."""
        found = [str(each[4][0]) for each in socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)]
        for address in found:
            self._check(self.host, address)
        self.sock = self._tls.wrap_socket(self._reach(found), server_hostname=self.host)

    def _reach(self, addresses: Sequence[str]) -> socket.socket:
        for address in addresses[:-1]:
            with suppress(OSError):
                return socket.create_connection((address, self.port), self._timeout_s)
        return socket.create_connection((addresses[-1], self.port), self._timeout_s)


class _Watched:
    """A file whose reading is said. http.client reads it in blocks."""

    def __init__(self, file: IO[bytes], progress: Callable[[], None]) -> None:
        self._file = file
        self._progress = progress

    def read(self, size_bytes: int = -1, /) -> bytes:
        """Return the next bytes."""
        self._progress()
        return self._file.read(size_bytes)


class WebDav:
    """The folder of one target, and the server that has it."""

    def __init__(
        self,
        to: str,
        allowed: Sequence[str],
        *,
        passing_name: Callable[[str, int], str],
        silent_s: float,
        check: Callable[[str, str], None],
        progress: Callable[[], None],
        credential: Credential | None = None,
    ) -> None:
        """`passing_name` returns that of a file, in this try or so many tries before.

        `check` raises for a host and an address that are refused.
        """
        self._to = to.rstrip("/") + "/"
        self._allowed = allowed
        self._passing_name = passing_name
        self._silent_s = silent_s
        self._check = check
        self._progress = progress
        self._credential = credential
        self._knows_move = True
        self._connections: dict[tuple[str, int], _Connection] = {}

    def put(self, names: Names, file: IO[bytes]) -> None:
        """Send a file, from its beginning. Raises `MayNot` or `MayPass`."""
        if self._knows_move:
            passing = (*names[:-1], self._passing_name(names[-1], 0))
            self._put(passing, file)
            status = self._move(passing, names, os.fstat(file.fileno()).st_size)
            if status in _DONE:
                return
            if status not in _UNKNOWN:
                servers.raise_status(self._url(names), status, self._credential)
            self._knows_move = False
            self.remove(passing)
        self._put(names, file)

    def find_left(self) -> None:
        """Do nothing: the name of a passing file says of which try it is."""

    def remove_left(self, names: Names) -> None:
        """Remove what the try before has left of a file."""
        self.remove((*names[:-1], self._passing_name(names[-1], 1)))

    def remove(self, names: Names) -> None:
        """Remove a file. That it is not there, or cannot be removed, is no error."""
        self._ask("DELETE", names, {})

    def close(self) -> None:
        """Close all connections."""
        for one in self._connections.values():
            one.close()

    def _move(self, passing: Names, names: Names, size_bytes: int) -> int:
        """Give a file its name; return the server's answer. The server may copy it to another disk, and is silent."""
        headers = {"Destination": self._url(names), "Overwrite": "T"}
        most_s = self._silent_s + size_bytes / SLOWEST_BYTES_PER_S
        with while_saying(self._progress, self._silent_s / SAYS_WHILE_SILENT, most_s=most_s):
            return self._request("MOVE", self._url(passing), headers, None, answers_within_s=most_s)[0]

    def _put(self, names: Names, file: IO[bytes]) -> None:
        status, url = self._send(names, file)
        if status in _NO_FOLDER:
            self._make_folders(names[:-1])
            status, url = self._send(names, file)
        if status not in _DONE:
            servers.raise_status(url, status, self._credential)

    def _make_folders(self, names: Names) -> None:
        """Make the folders that are missing below what the site allows. One that is there answers 405."""
        steps = allowed_urls.location(self._to).folders
        listed = [allowed_urls.location(entry) for entry in self._allowed]
        known = max(len(one.folders) for one in listed if allowed_urls.location(self._to).is_within(one))
        path = (*steps, *names)
        for end in range(known + 1, len(path) + 1):
            self._ask("MKCOL", (), {}, url=urljoin(self._to, "/" + "/".join(map(_quoted, path[:end])) + "/"))

    def _send(self, names: Names, file: IO[bytes]) -> tuple[int, str]:
        """Send a file by PUT, and follow the redirects that are allowed; return the last answer and its URL."""
        url, size_bytes = self._url(names), os.fstat(file.fileno()).st_size
        for _ in range(1 + servers.MOST_REDIRECTS):
            file.seek(0)
            body = _Watched(file, self._progress)
            status, location = self._request("PUT", url, {"Content-Length": str(size_bytes)}, body)
            if status not in _MOVED:
                return status, url
            target = urljoin(url, location)
            servers.check_redirect(url, target, self._allowed, allowed_urls.DELIVER)
            url = target
        raise servers.too_many_redirects(self._url(names))

    def _ask(self, method: str, names: Names, headers: dict[str, str], *, url: str = "") -> int:
        return self._request(method, url or self._url(names), headers, None)[0]

    def _request(
        self, method: str, url: str, headers: dict[str, str], body: _Watched | None, *, answers_within_s: float = 0.0
    ) -> tuple[int, str]:
        """Send one request; return its status, and where it leads. Raises `MayPass`."""
        self._progress()
        parts = urlsplit(url)
        where = (parts.hostname or "", parts.port or 443)
        connection = self._connections.get(where)
        if connection is None:
            connection = _Connection(*where, timeout_s=self._silent_s, check=self._check)
            self._connections[where] = connection
        path = parts.path + (f"?{parts.query}" if parts.query else "")
        headers = {"User-Agent": "gleaner"} | servers.sign_in(url, self._credential) | headers
        patience_s = max(answers_within_s, self._silent_s)
        try:
            with suppress(BrokenPipeError, ConnectionResetError):  # perhaps it has answered before it took all
                connection.request(method, path, body=body, headers=headers)
            connection.sock.settimeout(patience_s)
            answer = connection.getresponse()
            answer.read(BLOCK_BYTES)
            if not answer.isclosed() or answer.status in _MOVED:  # a long answer, or a body that was not taken
                connection.close()
        except TimeoutError:
            connection.close()
            raise MayPass(f"{allowed_urls.shown(url)}: the server took nothing for {patience_s:.0f} s") from None
        except (OSError, UnicodeError, http.client.HTTPException) as error:
            connection.close()
            raise MayPass(f"{allowed_urls.shown(url)}: {servers.one_line(error)}") from None
        return answer.status, answer.headers.get("Location", "")

    def _url(self, names: Names) -> str:
        return self._to + "/".join(map(_quoted, names))


def _quoted(name: str) -> str:
    return quote(os.fsencode(name), safe="")
