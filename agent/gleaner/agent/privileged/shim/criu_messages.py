"""Encode and decode the messages of CRIU and runc, which are protocol buffers, and CRIU's requests for pipes.

The messages contain only numbers and bytes. When CRIU streams (its img-streamer.c and images/img-streamer.proto), it
opens no image file. Over one socket, it asks for a pipe for each image by its name. A request is a length in four
bytes, little endian, and a message with the name as field 1. In a restore, field 1 of the answer shows whether the
image exists. After that, CRIU sends its end of a pipe.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
import socket
import struct
from collections.abc import Iterator
from typing import Union

from ...system import ipc

Value = Union[int, bytes]  # noqa: UP007 - evaluated at run time
_LENGTH = struct.Struct("<I")
_LONGEST_BYTES = 1024
_NAME = re.compile(rb"[A-Za-z0-9][A-Za-z0-9._-]{0,120}\Z")


class NotUnderstood(Exception):
    """A message is malformed, or contains an unknown request."""


def fields(message: bytes) -> Iterator[tuple[int, Value]]:
    r"""Yield the fields of a protocol buffers message, with numbers or bytes as values. Raises `NotUnderstood`.

    >>> list(fields(b"\x08\x02\x12\x01x"))
    [(1, 2), (2, b'x')]
    """
    at = 0
    while at < len(message):
        tag, at = _varint(message, at)
        if tag & 7 == 0:
            number, at = _varint(message, at)
            yield tag >> 3, number
        elif tag & 7 == 2:
            length, at = _varint(message, at)
            if at + length > len(message):
                raise NotUnderstood("a message that is cut off")
            yield tag >> 3, message[at : at + length]
            at += length
        else:
            raise NotUnderstood(f"a field of type {tag & 7}")


def number_in(value: Value) -> int:
    """Return the value of a field that must be a number. Raises `NotUnderstood` for bytes."""
    if isinstance(value, bytes):
        raise NotUnderstood("bytes where a number is wanted")
    return value


def _varint(message: bytes, at: int) -> tuple[int, int]:
    number = shift = 0
    while True:
        if at >= len(message) or shift > 63:
            raise NotUnderstood("a message that is cut off")
        byte = message[at]
        number |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if not byte & 0x80:
            return number, at


def field(number: int, value: Value) -> bytes:
    r"""Return one field of a message, encoded.

    >>> field(1, 300), field(2, b"x")
    (b'\x08\xac\x02', b'\x12\x01x')
    """
    if isinstance(value, bytes):
        return _number(number << 3 | 2) + _number(len(value)) + value
    return _number(number << 3) + _number(value)


def _number(number: int) -> bytes:
    out = bytearray()
    while True:
        number, low = number >> 7, number & 0x7F
        out.append(low | (0x80 if number else 0))
        if not number:
            return bytes(out)


class StreamBroken(Exception):
    """The other side sent something that does not follow the protocol, or closed the connection."""


def read_request(criu: socket.socket) -> str | None:
    """Return the name of the next image, or None when CRIU requests no more. Raises `StreamBroken`."""
    message = _message(criu)
    return None if message is None else parse_request(message)


def send_request(streamer: socket.socket, name: str) -> None:
    """Request an image, as CRIU does. Raises `StreamBroken`."""
    _say(streamer, field(1, name.encode("ascii")))


def send_answer(criu: socket.socket, *, exists: bool) -> None:
    """Tell CRIU whether an image exists, which it asks only in a restore. Raises `StreamBroken`."""
    _say(criu, field(1, int(exists)))


def read_answer(streamer: socket.socket) -> bool:
    """Return the streamer's answer, which is True if the image exists. Raises `StreamBroken`."""
    exists = _only_field(_message(streamer) or b"")
    if exists not in (0, 1):
        raise StreamBroken("it is not said whether an image exists")
    return exists == 1


def send_pipe(streamer: socket.socket, pipe: int) -> None:
    """Send an end of a pipe, as CRIU does. Raises `StreamBroken`."""
    try:
        ipc.send(streamer, b"\0", pipe)
    except OSError as error:
        raise StreamBroken(f"the other side has gone: {error}") from error


def receive_pipe(criu: socket.socket) -> int:
    """Return the end of a pipe that follows a request. Raises `StreamBroken`."""
    try:
        _, pipe = ipc.receive(criu, 1)
    except OSError as error:
        raise StreamBroken(f"CRIU has gone: {error}") from error
    if pipe is None:
        raise StreamBroken("CRIU sends no pipe")
    return pipe


def parse_request(message: bytes) -> str:
    r"""Return the name in a request. Raises `StreamBroken`.

    >>> parse_request(b"\x0a\x0bpages-1.img")
    'pages-1.img'
    """
    name = _only_field(message)
    if not isinstance(name, bytes) or not _NAME.match(name):
        raise StreamBroken(f"CRIU asks for an image of the name {name!r}")
    return name.decode("ascii")


def _only_field(message: bytes) -> Value | None:
    """Return field 1 of a message that has no other field, or None for any other message."""
    try:
        ((number, value),) = fields(message)
    except (NotUnderstood, ValueError):
        return None
    return value if number == 1 else None


def _message(other: socket.socket) -> bytes | None:
    """Return the next message, or None if no more will follow."""
    try:
        head = ipc.receive_all(other, _LENGTH.size)
        if not head:
            return None
        if len(head) < _LENGTH.size:
            raise StreamBroken("CRIU has gone in the middle of a request")
        (length,) = _LENGTH.unpack(head)
        if length > _LONGEST_BYTES:
            raise StreamBroken(f"CRIU sends a request of {length} bytes")
        message = ipc.receive_all(other, length)
    except OSError as error:
        raise StreamBroken(f"CRIU has gone: {error}") from error
    if len(message) < length:
        raise StreamBroken("CRIU has gone in the middle of a request")
    return message


def _say(other: socket.socket, message: bytes) -> None:
    try:
        other.sendall(_LENGTH.pack(len(message)) + message)
    except OSError as error:
        raise StreamBroken(f"the other side has gone: {error}") from error
