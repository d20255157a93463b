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


def lines_of(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Blocks of lines, each with the number of its first; lines count from 1.

    Whether a file is compressed is seen from its first bytes, not from its name. Bytes beyond ASCII, which logs have
    in comments and names, are read as Latin-1: every byte is a character, so no line is ever refused for them.
    Raises `BadTrace` if there is no such file, or it cannot be read or uncompressed.
    """
    with _failures(path):
        with path.open("rb") as raw:
            is_gzip = raw.read(2) == _GZIP
        first = 1
        with gzip.open(path, "rb") if is_gzip else path.open("rb") as file:
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
