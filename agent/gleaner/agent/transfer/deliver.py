"""Deliver a job's result to its target, within limits of time, in a process that can be ended at once.

The result is first unpacked where nobody looks: in the target's own file system, or on the node's disk. Then its files
go to the target, and at the end comes `job-7.sha256`, a list for `sha256sum --check`: when it is there, all is there.
"""

import math
import os
import shutil
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import FOLDER_PART, StorageError, output_key
from gleaner.agent.common import allowed_urls
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.quantities import in_words, size
from gleaner.agent.messages import Delivery, DeliveryReport
from gleaner.agent.system import openat, tar_unpack
from gleaner.agent.system.keep_patterns import Keep
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Policy, SizeLimit
from gleaner.agent.transfer import process
from gleaner.agent.transfer.credentials import Credential
from gleaner.agent.transfer.folders import ListedFolder
from gleaner.agent.transfer.process import Limits, PermanentFailure, TemporaryFailure, TransferFailure, TransferStopped
from gleaner.agent.transfer.remotes import Remote, open_remote
from gleaner.agent.transfer.rules import Access
from gleaner.agent.transfer.stage import (
    Names,
    Progress,
    StagedFile,
    list_line,
    list_name,
    remove_stages,
    stage_folder,
    staged_files,
)

LIST = ".gleaner-list"
PROGRESS = b"."
"""Written for each piece that was moved: a target that takes nothing for long hangs."""
MOST_TIMES_STORED, MOST_HOLES_BYTES = 16, 2**30
"""The files of a result are larger than what is stored of them by such a factor and so much at most: by their holes."""


@dataclass(frozen=True, slots=True)
class DeliverRequest:
    """A result, its target, and what the admin says about it."""

    delivery: Delivery
    access: Access
    storage: Path
    spool: Path
    """A folder on the node's disk, for a result on its way to a server."""
    reserve_bytes: int
    """So much of that disk stays free."""

    def serve(self) -> Iterator[bytes]:
        """In the child: deliver, and yield a line with the number of files and their size. Raises `TransferFailure`."""
        os.umask(0o022)  # who may read is decided by the folder that the admin allows
        os.nice(19)  # jobs go first
        os.sched_setaffinity(0, [max(os.sched_getaffinity(0))])  # one core, whatever threads the storage uses
        delivery, lines, size_bytes = self.delivery, list[bytes](), 0
        progress = Progress(lambda: openat.write_all(1, PROGRESS), delivery.silent_s)
        remote = open_remote(delivery.to, self.access, allowed_urls.DELIVER)
        with (
            self._stage_parent(remote) as (parent, room_bytes),
            stage_folder(parent, delivery.job, delivery.number) as stage,
        ):
            self._unpack(stage, progress, room_bytes)
            for folder, names in self._files(stage):
                with StagedFile(folder, names[-1], progress) as file:
                    _put(remote, names, file)
                    lines.append(list_line(file.digest.hexdigest(), names))
                    size_bytes += file.size_bytes
            with openat.closing_fd(os.open(LIST, openat.NEW_FILE, 0o644, dir_fd=stage)) as text:
                openat.write_all(text, b"".join(lines))
            with StagedFile(stage, LIST, progress) as file:
                _put(remote, (list_name(delivery.job),), file)
        yield f"\n{len(lines)} {size_bytes}".encode()

    def _files(self, stage: int) -> Iterator[tuple[int, Names]]:
        """Yield the files to deliver."""
        keep = Keep(self.delivery.keep)
        return (file for file in staged_files(stage) if not self.delivery.keep or keep(file[1]))

    @contextmanager
    def _stage_parent(self, remote: Remote) -> Generator[tuple[int, float]]:
        """Yield the folder in which the result is unpacked, and the size of what has room there."""
        with ExitStack() as opened:
            if isinstance(remote, ListedFolder):
                yield opened.enter_context(remote.opened()), math.inf
                return
            folder = os.open(self.spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            opened.callback(os.close, folder)
            yield folder, shutil.disk_usage(self.spool).free - self.reserve_bytes

    def _unpack(self, stage: int, progress: Progress, room_bytes: float) -> None:
        """Unpack the result into an open folder. Symbolic links are left out. Raises `TransferFailure`."""
        stored_bytes = 0

        def chunks() -> Iterator[bytes]:
            nonlocal stored_bytes
            key = output_key(self.delivery.job, self.delivery.attempt)
            archive = FolderStorage(self.storage).open(key, self.delivery.digest)
            stored_bytes = archive.parts[FOLDER_PART].size_bytes
            if stored_bytes > room_bytes:
                raise TemporaryFailure("this node has no room for the result on its way")
            for chunk in archive.read(FOLDER_PART):
                progress.report()
                yield chunk

        source = tar_unpack.Source(chunks())
        try:
            tar_unpack.unpack(source, stage, Policy(SizeLimit(math.inf, math.inf), has_holes=True, links=[]))
            source.finish()
        except StorageError as error:
            raise TemporaryFailure(f"the result cannot be read: {error}") from None
        except (Hostile, *MALFORMED) as error:
            raise PermanentFailure(f"the result cannot be unpacked: {error}") from None
        size_bytes = sum(
            os.stat(names[-1], dir_fd=folder, follow_symlinks=False).st_size for folder, names in self._files(stage)
        )
        if size_bytes > MOST_TIMES_STORED * stored_bytes + MOST_HOLES_BYTES:  # to read it would hold up all others
            sizes = f"{size(size_bytes)}, of which {size(stored_bytes)} are stored"
            line = f"the files are mostly holes ({sizes}): take the result from the storage with glean results"
            raise PermanentFailure(line)


def _put(remote: Remote, names: Names, file: StagedFile) -> None:
    remote.put(names, file)
    if file.read_bytes != file.size_bytes:
        raise TemporaryFailure(f"the target has taken {file.read_bytes} bytes of {file.size_bytes}")


@dataclass(frozen=True, slots=True)
class Deliver:
    """Delivers for one agent."""

    storage: Path
    spool: Path
    """A folder on the node's disk."""
    reserve_bytes: int
    """So much of that disk stays free."""
    control_hosts: tuple[str, ...]
    clock: Clock

    def __call__(
        self, delivery: Delivery, stop: threading.Event, credential: Credential | None = None
    ) -> DeliveryReport | None:
        """Deliver a result, and return what is to be reported; None if the agent has no more time for it. Blocks."""
        try:
            files, size_bytes = self._deliver(delivery, stop, credential)
        except TransferStopped:
            return None
        except (TransferFailure, OSError, ValueError) as error:
            may_pass = not isinstance(error, PermanentFailure)
            return DeliveryReport(job=delivery.job, number=delivery.number, failed=str(error), may_pass=may_pass)
        return DeliveryReport(job=delivery.job, number=delivery.number, files=files, size_bytes=size_bytes)

    def _deliver(self, delivery: Delivery, stop: threading.Event, credential: Credential | None) -> tuple[int, int]:
        own = (str(self.storage), str(self.spool))
        access = Access(delivery.allowed, self.control_hosts, delivery.silent_s, credential, own)
        request = DeliverRequest(delivery, access, self.storage, self.spool, self.reserve_bytes)
        shown, limit = allowed_urls.shown(delivery.to), f"{in_words(delivery.total_s)} ([outputs] deliver_s)"
        limits = Limits(
            delivery.total_s, f"{shown} did not take the result within {limit}",
            delivery.silent_s, f"{shown} has taken nothing for {delivery.silent_s:.0f} s",
        )  # fmt: skip
        self.spool.mkdir(parents=True, mode=0o700, exist_ok=True)
        last = b""
        try:
            for chunk in process.run(request, limits, stop=stop, clock=self.clock):
                last = (last + chunk).rpartition(PROGRESS)[2]
        finally:  # a child that was killed has removed nothing
            with openat.closing_fd(os.open(self.spool, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)) as spool:
                remove_stages(spool, delivery.job)
        files, size_bytes = last.split()
        return int(files), int(size_bytes)
