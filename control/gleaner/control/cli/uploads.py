"""Send an image or an input to control, part by part, from where an earlier try broke off."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gleaner.control.cli import render
from gleaner.control.cli.client import Control
from gleaner.control.cli.failures import BadInput
from gleaner.control.input_errors import one_line
from gleaner.control.models.uploads import PART_BYTES, Kind

_MIB = 2**20


@dataclass(frozen=True, slots=True)
class FileToSend:
    """A file to send, and a function that reads it from its beginning."""

    kind: Kind
    content: str
    size_bytes: int
    chunks: Callable[[], Iterator[bytes]]
    name: str


def send(control: Control, upload: FileToSend, group: str | None) -> None:
    """Send what control lacks of a file. Raises `BadInput` if it is shorter than it was."""
    at = control.put_part(upload.kind, upload.content, b"", at=0, size_bytes=upload.size_bytes, group=group)
    with render.steps(f"sending {one_line(upload.name)} (MiB)") as show_steps:
        while at < upload.size_bytes:
            begin = at
            for part in _parts(upload.chunks(), at):
                show_steps(at // _MIB, upload.size_bytes // _MIB)
                there = control.put_part(
                    upload.kind, upload.content, part, at=at, size_bytes=upload.size_bytes, group=group
                )
                is_as_expected, at = there == at + len(part), there
                if not is_as_expected:  # another user of the group sends the same
                    break
            if at == begin:
                raise BadInput(f"{one_line(upload.name)} was changed while it was sent")


def _parts(chunks: Iterator[bytes], skip: int) -> Iterator[bytes]:
    """Yield the content behind its first bytes, cut into parts."""
    part = bytearray()
    for chunk in chunks:
        part += chunk[skip:]
        skip = max(0, skip - len(chunk))
        while len(part) >= PART_BYTES:
            yield bytes(part[:PART_BYTES])
            del part[:PART_BYTES]
    if part:
        yield bytes(part)
