"""Local files and folders as inputs.

They are packed in the same way each time, so that equal content is sent only once.
"""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from gleaner.agent.job.inputs import CONTENT, MOST_FILES
from gleaner.agent.system import openat, tar_pack
from gleaner.agent.system.tar_policy import Hostile, Policy, SizeLimit
from gleaner.client.connection import STORE_S, Connection
from gleaner.client.errors import ClientError, ErrorKind
from gleaner.client.steps import Steps
from gleaner.client.uploads import FileToSend, OnPart, send
from gleaner.control.input_errors import one_line
from gleaner.control.models.inputs import InputList, InputMissing, InputPut, InputRow
from gleaner.control.models.uploads import MOST_BYTES


def pack(path: Path, *, name: str) -> FileToSend:
    """Read a local input and compute its digest. Raises `ClientError`."""
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for chunk in _archive(path):
            digest.update(chunk)
            size_bytes += len(chunk)
    except OSError as error:
        at = error.filename if isinstance(error.filename, str) else path
        raise ClientError(one_line(f"the input {at}: {error.strerror}"), kind=ErrorKind.INVALID) from None
    except Hostile as error:
        raise ClientError(one_line(f"the input {path}: {error}"), kind=ErrorKind.INVALID) from None
    return FileToSend("inputs", f"sha256:{digest.hexdigest()}", size_bytes, lambda: _archive(path), name)


def store(
    connection: Connection, files: Sequence[FileToSend], group: str | None, on_part: OnPart | None
) -> Steps[None]:
    """Send the inputs that the group has not stored yet, and have them stored."""
    by_content = {file.content: file for file in files}
    missing = yield from connection.write(
        "POST", "/v1/inputs/missing", InputMissing, InputList(contents=tuple(by_content), group=group)
    )
    for content in missing.missing:
        file = by_content[content]
        try:
            yield from send(connection, file, group, on_part)
        except (OSError, Hostile) as error:
            line = one_line(f"{file.name} was changed while it was sent: {error}")
            raise ClientError(line, kind=ErrorKind.INVALID) from None
        stored = InputPut(content=content, size_bytes=file.size_bytes, group=group)
        yield from connection.write("POST", "/v1/inputs", InputRow, stored, within_s=STORE_S)


def _archive(path: Path) -> Iterator[bytes]:
    """Yield the archive of a file or folder. Raises `OSError`, or `Hostile` for an unsuitable file."""
    with openat.closing_fd(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)) as opened:
        facts = os.fstat(opened)
        if stat.S_ISDIR(facts.st_mode):
            yield from tar_pack.pack(opened, Policy(SizeLimit(MOST_BYTES, MOST_FILES), top=CONTENT))
        elif stat.S_ISREG(facts.st_mode):
            chunks = iter(lambda: os.read(opened, openat.CHUNK_BYTES), b"")
            mode = 0o755 if facts.st_mode & stat.S_IXUSR else 0o644
            yield from tar_pack.pack_files([tar_pack.File(CONTENT, facts.st_size, chunks, mode)])
        else:
            raise Hostile(f"{path.name} is neither a file nor a folder")
