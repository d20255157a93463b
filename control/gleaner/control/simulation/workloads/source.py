"""The lines of a trace file, compressed or not. The one place where a trace's bytes are read."""

import gzip
import zlib
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from gleaner.control.simulation.failures import BadTrace

_GZIP = b"\x1f\x8b"
_BLOCK_BYTES = 1 << 23
"""Large enough for the cost of a block not to matter, small enough for its lines not to fill the memory."""

Blocks = Iterator[tuple[int, list[str]]]
"""Some lines at a time, each time with the number of the first; lines count from 1."""


def lines_of(path: Path) -> Blocks:
    """All lines, read once, so that the file may be a pipe.

    Whether a file is compressed is seen from its first bytes, not from its name. Bytes beyond ASCII, which logs have
    in comments and names, are read as Latin-1: every byte is a character, so no line is ever refused for them.
    Raises `BadTrace` if there is no such file, or it cannot be read or uncompressed.
    """
    with _failures(path), path.open("rb") as raw:
        first = 1
        with gzip.open(raw) if raw.peek(len(_GZIP)).startswith(_GZIP) else raw as file:
            while lines := file.readlines(_BLOCK_BYTES):
                yield first, [line.decode("latin-1") for line in lines]
                first += len(lines)


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
