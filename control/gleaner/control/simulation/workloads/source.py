"""The lines of a trace file, compressed or not. The one place where a trace's bytes are read."""

import gzip
import os
import zlib
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from pathlib import Path

from gleaner.control.simulation.failures import BadTrace

_GZIP = b"\x1f\x8b"
_MIB = 1 << 20
_BLOCK_BYTES = 8 * _MIB
"""Large enough for the cost of a block not to matter, small enough for its lines not to fill the memory."""

Progress = Callable[[int, int], None]
"""Takes how much is done, and of how much."""
Blocks = Iterator[tuple[int, list[str]]]
"""Some lines at a time, each time with the number of the first; lines count from 1."""


def nobody(_done: int, _whole: int) -> None:
    """Where nobody asks how far it is."""


def lines_of(path: Path, progress: Progress = nobody) -> Blocks:
    """All lines, read once, so that the file may be a pipe. `progress` is told MiB of the file as it lies there.

    Whether a file is compressed is seen from its first bytes, not from its name. Bytes beyond ASCII, which logs have
    in comments and names, are read as Latin-1: every byte is a character, so no line is ever refused for them.
    Raises `BadTrace` if there is no such file, or it cannot be read or uncompressed.
    """
    with _failures(path), path.open("rb") as raw:
        first, whole_mib = 1, -(-os.fstat(raw.fileno()).st_size // _MIB)
        with gzip.open(raw) if raw.peek(len(_GZIP)).startswith(_GZIP) else raw as file:
            while lines := file.readlines(_BLOCK_BYTES):
                yield first, [line.decode("latin-1") for line in lines]
                first += len(lines)
                if whole_mib:
                    progress(-(-raw.tell() // _MIB), whole_mib)


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
