"""How root and the agent meet: a socket of the agent's, over which only messages and descriptors pass.

The agent listens at MEETINGS/NAME and is told apart by the kernel (SO_PEERCRED), not by the path. Root makes a
folder of its own, listens in it for CRIU where `criu --stream` connects to, and hands that listening socket to the
agent. So CRIU speaks to the agent directly (the protocol of CRIU's img-streamer.c): no image is ever a file that
one side could change under the other, and root opens no path of the agent's.

Messages are JSON objects, each with its length in four bytes (big endian) before it.
"""

from __future__ import annotations  # the node may have Python 3.9

import array
import json
import os
import re
import socket
import struct
from typing import Any

VERSION = 1
LONGEST_BYTES = 4 * 2**20
PATIENCE_S = 20.0
"""How long the agent may take for an answer that needs no storage."""
CAPTURE_SOCKET = "streamer-capture.sock"
SERVE_SOCKET = "streamer-serve.sock"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,60}\Z")
_LENGTH = struct.Struct(">I")

Message = dict[str, Any]


class NotMet(Exception):
    """The agent is not there, is somebody else, or says what nobody understands; one line."""


def checked_name(name: object) -> str:
    """A plain name, one step below the meeting folder. Raises `NotMet`.

    >>> checked_name("gleaner-7-1")
    'gleaner-7-1'
    """
    if not isinstance(name, str) or not _NAME.match(name):
        raise NotMet(f"{name!r} is no name of a meeting")
    return name


class Meeting:
    """One conversation; either side."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection

    def say(self, message: Message, descriptor: int | None = None) -> None:
        """Send a message, and a descriptor with it."""
        content = json.dumps(message).encode()
        data = _LENGTH.pack(len(content)) + content
        ancillary = []
        if descriptor is not None:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [descriptor]))]
        try:
            sent = self.connection.sendmsg([data], ancillary)
            self.connection.sendall(data[sent:])
        except OSError as error:
            raise NotMet(f"the other side has gone: {error}") from error

    def hear(self) -> tuple[Message, int | None]:
        """The next message, with the descriptor that came with it. Raises `NotMet`, also for silence."""
        descriptor = None
        try:
            start, ancillary, _, _ = self.connection.recvmsg(
                _LENGTH.size, socket.CMSG_SPACE(array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC
            )
            for level, kind, data in ancillary:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    descriptor = array.array("i", data)[0]
            (length,) = _LENGTH.unpack(start + self._exactly(_LENGTH.size - len(start)))
            if length > LONGEST_BYTES:
                raise NotMet(f"a message of {length} bytes is too long")
            message: Message = json.loads(self._exactly(length))
            if type(message) is not dict:
                raise NotMet("a message is no JSON object")
        except (OSError, ValueError, struct.error) as error:
            if descriptor is not None:
                os.close(descriptor)
            raise NotMet(f"the other side does not answer: {error or 'silence'}") from error
        except NotMet:
            if descriptor is not None:
                os.close(descriptor)
            raise
        return message, descriptor

    def _exactly(self, count: int) -> bytes:
        got = b""
        while len(got) < count:
            more = self.connection.recv(count - len(got))
            if not more:
                raise NotMet("the other side has gone")
            got += more
        return got

    def close(self) -> None:
        """End the conversation."""
        self.connection.close()


def meet(folder: str, name: str, agent_uid: int) -> Meeting:
    """Root's side: go to the agent that waits under this name. Raises `NotMet` for anybody else.

    A symbolic link at the name cannot lead us to more than a conversation with whoever listens there, and unless
    that is the agent, it ends before a word is said.
    """
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(PATIENCE_S)
        connection.connect(os.path.join(folder, checked_name(name)))
        peer_uid = peer(connection)
        if peer_uid != agent_uid:
            raise NotMet(f"{name}: uid {peer_uid} listens there, not the agent ({agent_uid})")
    except OSError as error:
        connection.close()
        raise NotMet(f"no agent waits at {folder}/{name}: {error}") from error
    except NotMet:
        connection.close()
        raise
    return Meeting(connection)


def peer(connection: socket.socket) -> int:
    """The other side's uid, as the kernel knows it."""
    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def listening(folder: str, name: str) -> socket.socket:
    """A listening socket in a folder of root's own, for CRIU to connect to."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(os.path.join(folder, name))
    listener.listen(1)
    return listener
