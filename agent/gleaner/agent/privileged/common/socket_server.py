"""A server at a Unix socket for programs with rights: the node helper and the Slurm admin service.

The kernel says who is at the other side (SO_PEERCRED), and nothing else counts. Each admitted connection has a thread
of its own, and carries one request and its answer. Each program decides whom it admits, how many at once, and what it
says: the helper speaks in messages that may carry a descriptor (`handshake`), the Slurm admin service in lines of JSON.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from typing import NoReturn

from .handshake import peer

_AGAIN_S = 0.5
_WAITING = 64


class Refusal(Exception):
    """A client is not admitted; the reason in one line, or empty where nobody needs to know."""


class Server:
    """The loop that accepts connections.

    `admit` is called for each client that connects; it may wait, and raises `Refusal`. `converse` then has the
    connection, and closes it. `release` is called once for each client that was admitted. `report` takes a line for the
    log.
    """

    def __init__(
        self,
        *,
        admit: Callable[[int], None],
        converse: Callable[[socket.socket, int], None],
        release: Callable[[int], None],
        report: Callable[[str], None],
    ) -> None:
        self._admit, self._converse, self._release, self._report = admit, converse, release, report

    def serve(self, listener: socket.socket) -> NoReturn:
        """Answer for ever."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # too many open files: some will be closed soon
                self._report(f"cannot answer: {error}")
                time.sleep(_AGAIN_S)
                continue
            self._take(connection)

    def _take(self, connection: socket.socket) -> None:
        uid = peer(connection)
        try:
            self._admit(uid)
        except Refusal as refusal:
            if str(refusal):
                self._report(str(refusal))
            connection.close()
            return
        try:
            threading.Thread(target=self._answer, args=(connection, uid), daemon=True).start()
        except RuntimeError as error:  # too many threads
            self._report(f"cannot answer: {error}")
            connection.close()
            self._release(uid)

    def _answer(self, connection: socket.socket, uid: int) -> None:
        try:
            with connection:
                self._converse(connection, uid)
        finally:
            self._release(uid)


def listening(path: str, *, mode: int, owner_uid: int = -1) -> socket.socket:
    """Return a listening socket at this path, in place of an old one."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    listener.bind(path)
    if owner_uid != -1:
        os.chown(path, owner_uid, -1)
    os.chmod(path, mode)
    listener.listen(_WAITING)
    return listener


def line(connection: socket.socket, *, longest_bytes: int, within_s: float) -> bytes:
    """Return one line, or its beginning if it is longer or is not whole in time. Raises `TimeoutError` for silence."""
    until_s = time.monotonic() + within_s
    got = bytearray()
    while not got.endswith(b"\n") and len(got) <= longest_bytes:
        connection.settimeout(max(0.01, until_s - time.monotonic()))
        more = connection.recv(longest_bytes)
        if not more or time.monotonic() > until_s:
            break
        got += more
    return bytes(got[:longest_bytes])
