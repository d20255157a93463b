"""Local files and folders as inputs: packed the same way each time, so that the same content is sent only once."""

import hashlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.job.inputs import CONTENT, MOST_FILES
from gleaner.agent.job_spec import InputSpec
from gleaner.agent.system import openat, tar_pack
from gleaner.agent.system.tar_policy import Hostile, Policy, SizeLimit
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.cli.client import Control
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.uploads import FileToSend, send
from gleaner.control.input_errors import InputError, one_line
from gleaner.control.models.inputs import InputList, InputPut
from gleaner.control.models.uploads import MOST_BYTES


@dataclass(frozen=True, slots=True)
class PackedInput:
    """A local input, and its archive."""

    wanted: LocalInput
    upload: FileToSend

    @property
    def spec(self) -> InputSpec:
        """The input as the job names it."""
        return InputSpec(name=self.wanted.name, content=self.upload.content, into_job=self.wanted.into_job)


def pack(wanted: LocalInput, folder: Path) -> PackedInput:
    """Read a local input. Its path is relative to the folder. Raises `InputError` that names its place."""
    path = folder / Path(wanted.source).expanduser()
    digest, size_bytes = hashlib.sha256(), 0
    try:
        for chunk in _archive(path):
            digest.update(chunk)
            size_bytes += len(chunk)
    except OSError as error:
        at = error.filename if isinstance(error.filename, str) else wanted.source
        raise InputError(one_line(f"{wanted.where}: the input {at}: {error.strerror}")) from None
    except Hostile as error:
        raise InputError(one_line(f"{wanted.where}: the input {wanted.source}: {error}")) from None
    content = f"sha256:{digest.hexdigest()}"
    return PackedInput(wanted, FileToSend("inputs", content, size_bytes, lambda: _archive(path), wanted.name))


def store(control: Control, inputs: Sequence[PackedInput], group: str | None) -> None:
    """Send the inputs that the group has not stored yet, and have them stored."""
    if not inputs:
        return
    by_content = {one.upload.content: one.upload for one in inputs}
    for content in control.missing_inputs(InputList(contents=tuple(by_content), group=group)):
        upload = by_content[content]
        try:
            send(control, upload, group)
        except (OSError, Hostile) as error:
            raise BadInput(one_line(f"{upload.name} was changed while it was sent: {error}")) from None
        control.put_input(InputPut(content=content, size_bytes=upload.size_bytes, group=group))


def _archive(path: Path) -> Iterator[bytes]:
    """Yield the archive of a file or folder. Raises `OSError`, or `Hostile` for what cannot be one."""
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
