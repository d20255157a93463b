"""Messages of protocol buffers, as runc and CRIU write them: numbers and bytes, and nothing else."""

from __future__ import annotations  # the node may have Python 3.9

from collections.abc import Iterator
from typing import Union

Value = Union[int, bytes]  # noqa: UP007 - evaluated at run time


class NotUnderstood(Exception):
    """A message is malformed, or asks for something that is not known here."""


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
    """Return a field's value where it has to be a number. Raises `NotUnderstood` for bytes."""
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
