"""Turn a job's folder into a tar stream and back, with regular files and their holes, folders, links and named pipes.

A workload can write anything into its folder, and an agent has more rights than the workload. So packing and unpacking
both walk step by step from an open folder, and follow no symbolic link (`system.tar_pack`, `system.tar_unpack`).
"""

import math
import os
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gleaner.agent.system import openat, tar_pack, tar_unpack
from gleaner.agent.system.keep_patterns import Keep
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Policy, SizeLimit


class WorkdirError(OSError):
    """A job's folder cannot be packed or unpacked. The message is one line with the place and the reason."""


def pack(folder: Path, keep: Keep | None = None) -> Iterator[bytes]:
    """Yield the folder's contents as chunks of an uncompressed tar archive (pax), in bounded memory.

    `keep` selects the files, and None means all. The folder must not change in the meantime, so its container must be
    paused or have ended. Raises `WorkdirError` for a file that shrinks nevertheless, or that cannot be read.
    """
    with _open(folder) as root:
        yield from tar_pack.pack(root, _policy()._replace(keeps=keep))


def unpack(chunks: Iterable[bytes], folder: Path) -> None:
    """Replace the folder's contents with those of an archive. The folder itself stays.

    All chunks are consumed, since a source might verify its data at the end. After an error (`WorkdirError`, or the
    source's own) the folder is unusable, so unpack again, or remove the folder.
    """
    source = tar_unpack.TarSource(chunks)
    with _open(folder) as root:
        _clear(root)
        tar_unpack.unpack(source, root, _policy())
        source.finish()


def clear(folder: Path) -> None:
    """Remove everything in the folder, whatever the modes are and however deep it is. The folder itself stays."""
    with _open(folder) as root:
        _clear(root)


def _policy() -> Policy:
    return Policy(SizeLimit(math.inf, math.inf, math.inf), has_holes=True)


@contextmanager
def _open(folder: Path) -> Generator[int]:
    """Open the folder, and add its name to every error from the system or the archive."""
    try:
        with openat.closing_fd(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as root:
            yield root
    except BlockingIOError as error:
        why = f"the job holds a lease on {error.filename!r} (F_SETLEASE), which keeps others from reading the file"
        raise WorkdirError(f"the job's folder {folder}: {why}") from error
    except (OSError, Hostile, *MALFORMED) as error:
        raise WorkdirError(f"the job's folder {folder}: {error}") from error


def _clear(root: int) -> None:
    os.fchmod(root, 0o700)
    openat.empty(root)
