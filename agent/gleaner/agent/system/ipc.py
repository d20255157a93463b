"""Exchange messages between programs with different rights, over Unix sockets.

Only the kernel (SO_PEERCRED) identifies the other side. A message is a JSON object with its length in four bytes (big
endian) before it, and can carry one descriptor.

A handshake takes place between the shim and the agent. The agent listens at HANDSHAKES/NAME. The shim makes its own
folder, listens there on the socket to which `criu --stream` connects, and passes that listening socket to the agent. So
CRIU communicates directly with the agent (the protocol of CRIU's img-streamer.c). CRIU images are never files that one
side could change while the other uses them, and the shim opens none of the agent's paths.

`Server` is for programs that answer requests: the node helper, and the Slurm admin service, which exchanges lines of
JSON.
"""

from __future__ import annotations  # the node may have Python 3.9

import array
import contextlib
import json
import os
import re
import socket
import stat
import struct
import threading
import time
from collections.abc import Callable
from typing import Any, NoReturn

from . import openat, untrusted

VERSION = 1
LONGEST_BYTES = 2**20
PATIENCE_S = 20.0
"""The longest time that the agent can take for an answer that needs no storage."""
CAPTURE_SOCKET = "streamer-capture.sock"
SERVE_SOCKET = "streamer-serve.sock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}\Z")
_LENGTH = struct.Struct(">I")

_LOOK_S = 60.0
"""The longest time between two checks of the clock, which might be set in between."""
_AGAIN_S = 0.5
_WAITING = 64

Message = dict[str, Any]


class HandshakeFailed(Exception):
    """The agent is not there, is not the expected one, or sends a message that is not understood.

    The message is one line.
    """


def poll_ms(end_s: float) -> float:
    """Return how long to poll until the next check of the clock, or until the agent's end.

    `end_s` is in seconds since the epoch.
    """
    return min(max(0.0, end_s - time.time()), _LOOK_S) * 1000


def check_name(name: object) -> str:
    """Return the name if it is a plain one that leads to an entry of the folder of handshakes.

    Raises `HandshakeFailed`.

    >>> check_name("gleaner-7-1")
    'gleaner-7-1'
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise HandshakeFailed(f"{name!r} is no name of a handshake")
    return name


class Handshake:
    """Either side of one conversation. With `patience_s`, each message must be sent or received within that time."""

    def __init__(self, connection: socket.socket, patience_s: float | None = None) -> None:
        self.connection = connection
        self._patience_s = patience_s

    def say(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message, and with it a descriptor if one is given."""
        content = json.dumps(message).encode()
        data = _LENGTH.pack(len(content)) + content
        try:
            self.connection.settimeout(self._patience_s)
            sent = send(self.connection, data, descriptor)
            if sent < len(data):  # `sendall` of no bytes fails if the other side has received all and closed
                self.connection.sendall(data[sent:])
        except OSError as error:
            raise HandshakeFailed(f"the other side has gone: {error}") from error

    def hear(self) -> tuple[Message, int | None]:
        """Return the next message and the descriptor that came with it.

        Raises `HandshakeFailed` for a bad message, and also if none arrives.
        """
        descriptor = None
        end_s = None if self._patience_s is None else time.monotonic() + self._patience_s
        try:
            self.connection.settimeout(self._patience_s)
            start, descriptor = receive(self.connection, _LENGTH.size)
            head = start + receive_all(self.connection, _LENGTH.size - len(start), end_s)
            if len(head) < _LENGTH.size:
                raise HandshakeFailed("the other side has gone")
            (length,) = _LENGTH.unpack(head)
            if length > LONGEST_BYTES:
                raise HandshakeFailed(f"a message of {length} bytes is too long")
            content = receive_all(self.connection, length, end_s)
            if len(content) < length:
                raise HandshakeFailed("the other side has gone")
            return _parse_message(content), descriptor
        except OSError as error:
            if descriptor is not None:
                os.close(descriptor)
            raise HandshakeFailed(f"the other side does not answer: {error}") from error
        except HandshakeFailed:
            if descriptor is not None:
                os.close(descriptor)
            raise

    def close(self) -> None:
        """End the conversation."""
        self.connection.close()


def send(connection: socket.socket, data: bytes, descriptor: int | None) -> int:
    """Send bytes, and with them a descriptor if one is given. Return the number of bytes sent. Raises `OSError`."""
    numbers = [] if descriptor is None else [array.array("i", [descriptor])]
    return connection.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, one) for one in numbers])


def receive(connection: socket.socket, most_bytes: int) -> tuple[bytes, int | None]:
    """Return the next bytes, and the descriptor that came with them. Raises `OSError`.

    There is room for one descriptor, and the kernel closes any others.
    """
    room = socket.CMSG_LEN(array.array("i").itemsize)
    data, ancillary, _, _ = connection.recvmsg(most_bytes, room, socket.MSG_CMSG_CLOEXEC)
    for level, kind, numbers in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            return data, array.array("i", numbers)[0]
    return data, None


def receive_all(connection: socket.socket, count: int, end_s: float | None = None) -> bytes:
    """Return the next `count` bytes, or fewer if the other side has closed.

    Raises `OSError`, also at the time `end_s` of the monotonic clock, if it is given.
    """
    content = bytearray()
    while len(content) < count:
        if end_s is not None:
            left_s = end_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the other side is too slow")
            connection.settimeout(left_s)
        more = connection.recv(count - len(content))
        if not more:
            break
        content += more
    return bytes(content)


def _parse_message(content: bytes) -> Message:
    try:
        message: Message = untrusted.json_of(content)
    except ValueError as error:
        raise HandshakeFailed(f"a message that is no JSON: {error}") from error
    if type(message) is not dict:
        raise HandshakeFailed("a message is no JSON object")
    return message


def connect(folder: str, name: str, agent_uid: int) -> Handshake:
    """Connect to the agent that listens under this name. Raises `HandshakeFailed`.

    The listener's account is read from the kernel, and any other than the agent's is refused. No symbolic link is
    followed. The socket that is checked is the one that is connected to, even if another takes its place in the
    meantime.
    """
    with contextlib.ExitStack() as descriptors:
        try:
            place = descriptors.enter_context(openat.closing_fd(os.open(folder, os.O_PATH | openat.FOLDER)))
            socket_file = os.open(check_name(name), os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            socket_fd = descriptors.enter_context(openat.closing_fd(socket_file))
            if not stat.S_ISSOCK(os.fstat(socket_fd).st_mode):
                raise HandshakeFailed(f"{folder}/{name} is no socket")
            connection = descriptors.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.settimeout(PATIENCE_S)
            connection.connect(f"/proc/self/fd/{socket_fd}")
            if (uid := peer(connection)) != agent_uid:
                raise HandshakeFailed(f"{name}: uid {uid} listens there, not the agent ({agent_uid})")
        except OSError as error:
            raise HandshakeFailed(f"no agent waits at {folder}/{name}: {error}") from error
        return Handshake(socket.socket(fileno=connection.detach()), PATIENCE_S)


def peer(connection: socket.socket) -> int:
    """Return the other side's uid, from the kernel."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


class Refusal(Exception):
    """A client is not admitted. The message is the reason in one line, or empty if it need not be reported."""


class Server:
    """The loop that accepts connections.

    `admit` is called for each client that connects. It can wait, and can raise `Refusal`. `converse` is then given the
    connection, and closes it. `release` is called once for each client that was admitted. `report` receives a line for
    the log.
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
        """Answer clients until the program ends."""
        while True:
            try:
                connection, _ = listener.accept()
            except OSError as error:  # too many open files, some of which will be closed soon
                self._report(f"cannot answer: {error}")
                time.sleep(_AGAIN_S)
                continue
            self._accept(connection)

    def _accept(self, connection: socket.socket) -> None:
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


def listen(path: str, *, mode: int = 0o600, owner_uid: int = -1) -> socket.socket:
    """Return a listening socket at this path, replacing an old one. `mode` determines who can connect."""
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
    """Return one line, or only its beginning if it is too long or not complete in time.

    Raises `TimeoutError` if nothing arrives.
    """
    until_s = time.monotonic() + within_s
    got = bytearray()
    while not got.endswith(b"\n") and len(got) <= longest_bytes:
        connection.settimeout(max(0.01, until_s - time.monotonic()))
        more = connection.recv(longest_bytes)
        if not more or time.monotonic() > until_s:
            break
        got += more
    return bytes(got[:longest_bytes])
