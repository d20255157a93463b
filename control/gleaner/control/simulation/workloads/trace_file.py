"""The text of a trace file, which can be compressed, in blocks of lines."""

import codecs
import gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from gleaner.control.simulation.errors import BadTrace

_GZIP = b"\x1f\x8b"
_OTHERS = {
    b"\xff\xfe": "text in UTF-16",
    b"\xfe\xff": "text in UTF-16",
    b"\xfd7zXZ": "an xz archive",
    b"BZh": "a bzip2 archive",
    b"\x28\xb5\x2f\xfd": "a zstd archive",
    b"PK\x03\x04": "a zip archive",
}
"""The first bytes of files that cannot be read, each with the name of their format."""
_MIB = 1 << 20
_BLOCK_BYTES = 8 * _MIB
"""The size of a block. It is large enough that the cost per block does not matter, and small enough that its lines do
not fill the memory."""

Progress = Callable[[int, int], None]
"""A function that is called with the amount that is done and the total amount."""
Blocks = Iterator[tuple[int, list[str]]]
"""Blocks of lines, each with the number of its first line. Lines count from 1."""


def nobody(_done: int, _whole: int) -> None:
    """Ignore the progress, for callers that do not show it."""


def lines_of(path: Path, progress: Progress = nobody) -> Blocks:
    """Yield all lines of a file in blocks. The file is read only once, so it can be a pipe.

    `progress` is called with MiB of the file as it is on the disk, compressed or not. The file's first bytes, not its
    name, show whether it is compressed. Raise `BadTrace` if the file does not exist, or cannot be read or uncompressed.
    """
    with _failures(path), path.open("rb") as raw:
        first, whole_mib = 1, -(-os.fstat(raw.fileno()).st_size // _MIB)
        beginning = raw.peek(max(map(len, _OTHERS)))
        for magic, name in _OTHERS.items():
            if beginning.startswith(magic):
                raise BadTrace(f"{path}: it is {name}; only text in UTF-8 can be read, plain or compressed by gzip")
        with gzip.open(raw) if beginning.startswith(_GZIP) else raw as file:
            while lines := file.readlines(_BLOCK_BYTES):
                if first == 1:
                    lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)  # Windows programs write it
                yield first, list(map(_text, lines))
                first += len(lines)
                if whole_mib:
                    progress(-(-raw.tell() // _MIB), whole_mib)


def _text(line: bytes) -> str:
    """Return a line as text. Names and comments in logs can contain more than ASCII, in UTF-8 or, in old logs, in
    Latin-1.

    In Latin-1, every byte is a character, so no line is refused because of its bytes.
    """
    try:
        return line.decode()
    except UnicodeDecodeError:
        return line.decode("latin-1")


@contextmanager
def _failures(path: Path) -> Generator[None]:
    try:
        yield
    except FileNotFoundError:
        raise BadTrace(f"{path}: there is no such file") from None
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise BadTrace(f"{path}: the gzip file is broken or cut short ({error})") from error
    except OSError as error:
        raise BadTrace(f"{path}: cannot be read ({error.strerror or error})") from error
