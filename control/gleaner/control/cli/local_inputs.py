"""Local files and folders as inputs: packed the same way each time, so that the same content is sent only once."""

import hashlib
import os
import stat
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.job.inputs import CONTENT, MOST_FILES
from gleaner.agent.job_spec import InputSpec
from gleaner.control.campaigns.input_list import LocalInput
from gleaner.control.cli.client import Control
from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.pieces import send_missing
from gleaner.control.input_errors import InputError, one_line
from gleaner.control.models.images import MOST_PIECES, PIECE_BYTES
from gleaner.control.models.inputs import InputList, InputPut

_CHUNK_BYTES = 2**20
_BLOCK = tarfile.BLOCKSIZE


@dataclass(frozen=True, slots=True)
class PackedInput:
    """A local input, and the digests of all that is sent of it."""

    wanted: LocalInput
    path: Path
    content: str
    size_bytes: int
    pieces: tuple[str, ...]

    @property
    def spec(self) -> InputSpec:
        """The input as the job names it."""
        return InputSpec(name=self.wanted.name, content=self.content, into_job=self.wanted.into_job)


def pack(wanted: LocalInput, folder: Path) -> PackedInput:
    """Read a local input. Its path is relative to the folder. Raises `InputError` that names its place."""
    path = folder / Path(wanted.source).expanduser()
    whole, size_bytes, pieces = hashlib.sha256(), 0, list[str]()
    try:
        for piece in _pieces(path):
            whole.update(piece)
            size_bytes += len(piece)
            pieces.append(f"sha256:{hashlib.sha256(piece).hexdigest()}")
            if len(pieces) > MOST_PIECES:
                raise ValueError(f"larger than {MOST_PIECES * PIECE_BYTES // 2**30} GiB")
    except OSError as error:
        at = error.filename if isinstance(error.filename, str) else wanted.source
        raise InputError(one_line(f"{wanted.where}: the input {at}: {error.strerror}")) from None
    except ValueError as error:
        raise InputError(one_line(f"{wanted.where}: the input {wanted.source}: {error}")) from None
    return PackedInput(wanted, path, f"sha256:{whole.hexdigest()}", size_bytes, tuple(pieces))


def send(control: Control, inputs: Sequence[PackedInput], group: str | None) -> None:
    """Send the inputs that the group has not stored yet."""
    if not inputs:
        return
    by_content = {one.content: one for one in inputs}
    for content in control.missing_inputs(InputList(contents=tuple(by_content), group=group)):
        one = by_content[content]
        changed = BadInput(f"{one_line(one.wanted.source)} was changed while it was sent: submit again")
        what = f"sending {one.wanted.name}"
        send_missing(control, one.pieces, _pieces_again(one), of="input", group=group, what=what, changed=changed)
        control.put_input(InputPut(content=content, size_bytes=one.size_bytes, pieces=one.pieces, group=group))


def _pieces_again(one: PackedInput) -> Iterator[bytes]:
    """Yield the pieces once more. Raises `BadInput` if they cannot be read again."""
    try:
        yield from _pieces(one.path)
    except (OSError, ValueError) as error:
        raise BadInput(one_line(f"{one.wanted.source} was changed while it was sent: {error}")) from None


def _pieces(path: Path) -> Iterator[bytes]:
    """Yield the tar archive of a file or folder in pieces. Raises `OSError`, or `ValueError` for what cannot be one."""
    piece = bytearray()
    for chunk in _archive(path):
        piece += chunk
        while len(piece) >= PIECE_BYTES:
            yield bytes(piece[:PIECE_BYTES])
            del piece[:PIECE_BYTES]
    if piece:
        yield bytes(piece)


def _archive(path: Path) -> Iterator[bytes]:
    """Yield the archive: names in order, and neither times nor owners, so that it depends on the content alone."""
    for count, (name, place) in enumerate(_walk(CONTENT, path.resolve(strict=True)), 1):
        if count > MOST_FILES:
            raise ValueError(f"more than {MOST_FILES:,} files: pack them into one")
        yield from _member(name, place, path)
    yield bytes(2 * _BLOCK)


def _walk(name: str, place: Path) -> Iterator[tuple[str, Path]]:
    yield name, place
    if place.is_dir() and not place.is_symlink():
        for below in sorted(place.iterdir()):
            yield from _walk(f"{name}/{below.name}", below)


def _member(name: str, place: Path, whole: Path) -> Iterator[bytes]:
    member, facts = tarfile.TarInfo(name), place.lstat()
    if stat.S_ISLNK(facts.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, str(place.readlink())
        inside = os.path.normpath(Path(name).parent / member.linkname)
        if inside.split("/")[0] != CONTENT:
            raise ValueError(f"{place.name} is a link that leads out of {whole}: put the file itself there")
        yield _header(member)
    elif stat.S_ISDIR(facts.st_mode):
        member.type, member.mode = tarfile.DIRTYPE, 0o755
        yield _header(member)
    elif stat.S_ISREG(facts.st_mode):
        member.size, member.mode = facts.st_size, 0o755 if facts.st_mode & 0o100 else 0o644
        yield _header(member)
        yield from _content(place, facts.st_size)
    else:
        raise ValueError(f"{place} is neither a file nor a folder")


def _content(place: Path, size_bytes: int) -> Iterator[bytes]:
    left = size_bytes
    with place.open("rb") as file:
        while left:
            chunk = file.read(min(left, _CHUNK_BYTES))
            if not chunk:
                raise ValueError(f"{place} was cut off while it was read")
            left -= len(chunk)
            yield chunk
    yield bytes(-size_bytes % _BLOCK)


def _header(member: tarfile.TarInfo) -> bytes:
    return member.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
