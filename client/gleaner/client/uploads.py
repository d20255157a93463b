"""The upload of an image or an input to control, part by part, from the point where an earlier try stopped."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from gleaner.client.connection import Connection
from gleaner.client.errors import ClientError, ErrorKind
from gleaner.client.steps import Steps
from gleaner.control.input_errors import one_line
from gleaner.control.models.uploads import PART_BYTES, Kind, Uploaded

OnPart: TypeAlias = Callable[[str, int, int], None]
"""A function that is called before each part, with the file's name, the bytes that control has, and the total."""


@dataclass(frozen=True, slots=True)
class FileToSend:
    """A file to send, and a function that reads it from its beginning."""

    kind: Kind
    content: str
    """The digest of the file or, for an image, of its configuration."""
    size_bytes: int
    chunks: Callable[[], Iterator[bytes]]
    name: str


def send(connection: Connection, file: FileToSend, group: str | None, on_part: OnPart | None) -> Steps[None]:
    """Send the part of a file that control lacks. Raises `ClientError` if the file has become shorter."""
    at = yield from _put(connection, file, b"", at=0, group=group)
    while at < file.size_bytes:
        begin = at
        for part in _parts(file.chunks(), at):
            if on_part:
                on_part(file.name, at, file.size_bytes)
            there = yield from _put(connection, file, part, at=at, group=group)
            is_as_expected, at = there == at + len(part), there
            if not is_as_expected:  # another user of the group is sending the same file
                break
        if at == begin:
            raise ClientError(f"{one_line(file.name)} was changed while it was sent", kind=ErrorKind.INVALID)


def _put(connection: Connection, file: FileToSend, part: bytes, *, at: int, group: str | None) -> Steps[int]:
    """Send a part, and repeat it if the answer is lost. Return the size of the file as stored by control."""
    params = {"at": at, "size_bytes": file.size_bytes, **({} if group is None else {"group": group})}
    uploaded = yield from connection.ask(
        "PUT", f"/v1/uploads/{file.kind}/{file.content}", Uploaded, is_repeatable=True, params=params,
        content=part, headers={"Content-Type": "application/octet-stream"},
    )  # fmt: skip
    return uploaded.size_bytes


def _parts(chunks: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """Yield the content after its first `skip` bytes, divided into parts."""
    part = bytearray()
    for chunk in chunks:
        part += chunk[skip:]
        skip = max(0, skip - len(chunk))
        while len(part) >= PART_BYTES:
            yield bytes(part[:PART_BYTES])
            del part[:PART_BYTES]
    if part:
        yield bytes(part)
