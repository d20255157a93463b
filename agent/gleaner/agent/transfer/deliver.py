"""Deliver a job's result to its target.

The result is first unpacked into a hidden folder in the target's file system or on the node's disk. Then its files are
moved to the target. The last one is `job-7.sha256`, a list for `sha256sum --check`, whose presence shows that the
result is complete.
"""

import math
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, StorageError, output_key
from gleaner.agent.common import allowed_urls
from gleaner.agent.messages import Delivery
from gleaner.agent.system import openat, tar_unpack
from gleaner.agent.system.keep_patterns import Keep
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Policy, SizeLimit
from gleaner.agent.transfer.folders import ListedFolder
from gleaner.agent.transfer.process import PermanentFailure, TemporaryFailure
from gleaner.agent.transfer.remotes import Remote, open_remote
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import Names, Progress, StagedFile, remove_stages, stage_folder, staged_files

LIST = ".gleaner-list"


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """A result, its target, and the admin's rules for it."""

    delivery: Delivery
    access: Access
    storage: Path
    spool: Path
    """A folder on the node's disk, for a result on its way to a server."""
    reserve_bytes: int
    """The space that must stay free on the disk."""

    def serve(self, report: Callable[[], None]) -> list[int]:
        """Deliver the result in the child, and return the number of files and their size. Raises `TransferFailure`."""
        os.umask(0o022)  # the folder that the admin allows determines who can read
        os.nice(19)  # jobs take precedence
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])  # one core, for all threads that the storage uses
        delivery, lines, size_bytes = self.delivery, list[bytes](), 0
        keep, progress = Keep(delivery.keep), Progress(report, delivery.silent_s)
        remote = open_remote(delivery.to, self.access, allowed_urls.DELIVER)
        to = (
            remote.opened()
            if isinstance(remote, ListedFolder)
            else openat.closing_fd(os.open(self.spool, openat.FOLDER))
        )
        with to as parent:
            remove_stages(parent, delivery.job)  # from agents that died
            with stage_folder(parent, delivery.job, delivery.number) as stage:
                self._unpack(stage, progress)
                for folder, names in staged_files(stage):
                    if not delivery.keep or keep(names):
                        file = _put(remote, folder, names, progress)
                        lines.append(list_line(file.digest.hexdigest(), names))
                        size_bytes += file.size_bytes
                with openat.closing_fd(os.open(LIST, openat.NEW_FILE, 0o644, dir_fd=stage)) as text:
                    openat.write_all(text, b"".join(lines))
                _put(remote, stage, (f"job-{delivery.job}.sha256",), progress, LIST)
        return [len(lines), size_bytes]

    def _unpack(self, stage: int, progress: Progress) -> None:
        """Unpack the result into an open folder. Symbolic links are left out. Raises `TransferFailure`."""

        def chunks() -> Iterator[bytes]:
            key = output_key(self.delivery.job, self.delivery.attempt)
            archive = FolderStorage(self.storage).open(key, self.delivery.digest)
            if archive.parts[FOLDER_PART].size_bytes > shutil.disk_usage(stage).free - self.reserve_bytes:
                raise TemporaryFailure("there is no room for the result on its way")
            for chunk in archive.read(FOLDER_PART):
                progress.report()
                yield chunk

        source = tar_unpack.TarSource(chunks())
        try:
            tar_unpack.unpack(source, stage, Policy(SizeLimit(math.inf, math.inf), has_holes=True, links=[]))
            source.finish()
        except StorageError as error:
            raise TemporaryFailure(f"the result cannot be read: {error}") from None
        except (Hostile, *MALFORMED) as error:
            raise PermanentFailure(f"the result cannot be unpacked: {error}") from None


def _put(remote: Remote, folder: int, names: Names, progress: Progress, file_name: str = "") -> StagedFile:
    with StagedFile(folder, file_name or names[-1], progress) as file:
        remote.put(names, file)
    if file.read_bytes != file.size_bytes:
        raise TemporaryFailure(f"the target has taken {file.read_bytes} bytes of {file.size_bytes}")
    return file


def list_line(digest: str, names: Names) -> bytes:
    r"""Return a file's line in a list that `sha256sum --check` reads.

    >>> list_line("0123", ("hist", "a.root")), list_line("0123", ("a\nb",))
    (b'0123  hist/a.root\n', b'\\0123  a\\nb\n')
    """
    plain = os.fsencode("/".join(names))
    escaped = plain.replace(b"\\", b"\\\\").replace(b"\n", b"\\n").replace(b"\r", b"\\r")
    return (b"\\" if escaped != plain else b"") + digest.encode() + b"  " + escaped + b"\n"
