"""The protocol in which CRIU asks for pipes when it streams (its img-streamer.c and images/img-streamer.proto).

CRIU opens no image file. Over one socket, it asks for a pipe for each image by its name: a request is a length in four
bytes, little endian, and a message with the name as field 1. In a restore, an answer with the field 1 says whether the
image exists. Then CRIU sends its end of a pipe.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
import socket
import struct

from ...system import ipc

_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 1024
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\Z")
_NAME_FIELD = 0x0A
_EXISTS_FIELD = 0x08


class StreamBroken(Exception):
    """The other side said something that is not of the protocol, or has gone."""


def asked(criu: socket.socket) -> str | None:
    """Return the name of the next image; None when CRIU asks for no more. Raises `StreamBroken`."""
    message = _message(criu)
    return None if message is None else parsed_request(message)


def ask(streamer: socket.socket, name: str) -> None:
    """Ask for an image, as CRIU does. Raises `StreamBroken`."""
    _say(streamer, bytes([_NAME_FIELD, len(name)]) + name.encode("ascii"))


def answer(criu: socket.socket, *, exists: bool) -> None:
    """Tell CRIU if an image exists; only in a restore. Raises `StreamBroken`."""
    _say(criu, bytes([_EXISTS_FIELD, exists]))


def answered(streamer: socket.socket) -> bool:
    """Return the streamer's answer: True if the image exists. Raises `StreamBroken`."""
    message = _message(streamer)
    if message is None or len(message) != 2 or message[0] != _EXISTS_FIELD or message[1] > 1:
        raise StreamBroken("it is not said whether an image exists")
    return message[1] == 1


def give_pipe(streamer: socket.socket, pipe: int) -> None:
    """Send an end of a pipe, as CRIU does. Raises `StreamBroken`."""
    try:
        ipc.send(streamer, b"\0", pipe)
    except OSError as error:
        raise StreamBroken(f"the other side has gone: {error}") from error


def taken_pipe(criu: socket.socket) -> int:
    """Return the end of a pipe that follows a request. Raises `StreamBroken`."""
    try:
        _, pipe = ipc.receive(criu, 1)
    except OSError as error:
        raise StreamBroken(f"CRIU has gone: {error}") from error
    if pipe is None:
        raise StreamBroken("CRIU sends no pipe")
    return pipe


def parsed_request(message: bytes) -> str:
    r"""Return the name in a request. Raises `StreamBroken`.

    >>> parsed_request(b"\x0a\x0bpages-1.img")
    'pages-1.img'
    """
    if len(message) < 2 or message[0] != _NAME_FIELD or message[1] & 0x80 or len(message) != 2 + message[1]:
        raise StreamBroken("CRIU sends a request that is not of its protocol")
    name = message[2:].decode("ascii", "replace")
    if not _NAME.match(name):
        raise StreamBroken(f"CRIU asks for an image of the name {name!r}")
    return name


def _message(other: socket.socket) -> bytes | None:
    """Return the next message; None when there will be no more."""
    head = _exactly(other, _LENGTH.size)
    if not head:
        return None
    (length,) = _LENGTH.unpack(head)
    if length > _LONGEST_BYTES:
        raise StreamBroken(f"CRIU sends a request of {length} bytes")
    return _exactly(other, length)


def _say(other: socket.socket, message: bytes) -> None:
    try:
        other.sendall(_LENGTH.pack(len(message)) + message)
    except OSError as error:
        raise StreamBroken(f"the other side has gone: {error}") from error


def _exactly(other: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count:
        try:
            more = other.recv(count - len(got))
        except OSError as error:
            raise StreamBroken(f"CRIU has gone: {error}") from error
        if not more:
            if got:
                raise StreamBroken("CRIU has gone in the middle of a request")
            return b""
        got += more
    return got
