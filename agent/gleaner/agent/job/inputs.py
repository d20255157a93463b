"""The inputs of an agent's jobs, which are files and folders from the storage that jobs read and do not change.

    WORK/AGENT/inputs-HEX/NAME     what the container sees at /inputs/NAME

Jobs with the same inputs share one folder, which is removed with the last of these jobs. Checkpoints do not contain
inputs, so the inputs are copied to the node before each start and each restore. Inputs from URLs have been put into the
storage before that (`url_inputs`). All calls block as long as the storage does, so make them in a worker thread.
Nothing waits for these calls at the agent's end.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from gleaner.agent.checkpoints.interface import ArchiveBroken, ArchiveMissing
from gleaner.agent.checkpoints.workdir_tar import clear
from gleaner.agent.common.clock import Clock
from gleaner.agent.messages import Assignment, ReturnReason, StoredInput
from gleaner.agent.system import openat, tar_unpack
from gleaner.agent.system.tar_policy import MALFORMED, Hostile, Policy, SizeLimit

if TYPE_CHECKING:  # login nodes import constants from here, and have no library for archives
    from gleaner.agent.checkpoints.archive import FolderArchive
    from gleaner.agent.checkpoints.folder_storage import FolderStorage

INPUT_PART = "input.tar"
"""The name of the only part of an input's archive in the storage."""
CONTENT = "content"
"""The name of the file or folder in an input's tar archive, whatever it is called in `/inputs`."""
MOST_FILES = 100_000
"""The largest number of files and folders in one input."""
MISSING_FOR_S = 60.0
"""The time for which an input that another node has just stored can be invisible here (`acdirmax`, nfs(5))."""
MISSING_EVERY_S = 2.0
_BLOCK = 512


class NotStaged(Exception):
    """The inputs are not on the node, so the job cannot start. The text is one line, and control receives `why`."""

    def __init__(self, why: ReturnReason, detail: str) -> None:
        super().__init__(detail)
        self.why = why


def input_key(group: str, content: str) -> str:
    """Return the key of an input in the storage.

    >>> input_key("atlas", "sha256:0123")
    'inputs/atlas/0123'
    """
    return f"inputs/{group}/{content.removeprefix('sha256:')}"


@dataclass(slots=True)
class _SharedFolder:
    """A folder of inputs, and the attempts that use it."""

    users: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    turn: threading.Lock = field(default_factory=threading.Lock)
    is_whole: bool = False


@dataclass(slots=True)
class Inputs:
    """The folders with the inputs of one agent's jobs. Thread-safe.

    `stage` and `copy` raise `NotStaged`, `StorageError` or `OSError`.
    """

    place: Path
    """The agent's own folder on the node's disk."""
    storage: FolderStorage
    reserve_bytes: int
    """The space that must stay free on the node's disk."""
    clock: Clock
    _folders: dict[Path, _SharedFolder] = field(default_factory=dict[Path, _SharedFolder])
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def folder(self, assignment: Assignment) -> Path | None:
        """Return the folder that the job sees as `/inputs`; None if no input is shown there."""
        shown = sorted(f"{one.name} {one.content}" for one in assignment.stored_inputs if not one.into_job)
        if not shown:
            return None
        words = "\n".join([assignment.group, *shown])
        return self.place / f"inputs-{hashlib.sha256(words.encode()).hexdigest()[:16]}"

    def stage(self, assignment: Assignment, stop: threading.Event) -> None:
        """Copy the inputs that the job sees in `/inputs` to the node, unless they are already there for another job."""
        path = self.folder(assignment)
        if path is None:
            return
        with self._lock:
            shared = self._folders.setdefault(path, _SharedFolder())
            shared.users.add((assignment.job, assignment.attempt))
        with shared.turn:
            if stop.is_set():
                raise stopped()
            if not shared.is_whole:
                path.mkdir(parents=True, mode=0o700, exist_ok=True)
                clear(path)
                self._bring([one for one in assignment.stored_inputs if not one.into_job], assignment.group, path, stop)
                shared.is_whole = True

    def release(self, assignment: Assignment) -> None:
        """Remove the job's inputs, unless another job uses them. Raises `OSError`."""
        path = self.folder(assignment)
        with self._lock:
            shared = None if path is None else self._folders.get(path)
            if path is None or shared is None:
                return
            shared.users.discard((assignment.job, assignment.attempt))
            if shared.users:
                return
            del self._folders[path]
            if path.exists():
                clear(path)
                path.rmdir()

    def copy(self, assignment: Assignment, folder: Path, stop: threading.Event) -> None:
        """Copy the inputs that are to become the job's own into its new folder."""
        self._bring([one for one in assignment.stored_inputs if one.into_job], assignment.group, folder, stop)

    def _bring(self, inputs: Sequence[StoredInput], group: str, folder: Path, stop: threading.Event) -> None:
        size_bytes = sum(one.size_bytes for one in inputs)
        free_bytes = shutil.disk_usage(folder).free - self.reserve_bytes
        if inputs and size_bytes > free_bytes:
            has = f"this node has {max(0, free_bytes) / 2**20:.0f} free"
            raise NotStaged(ReturnReason.NODE_LACKS, f"the inputs take {size_bytes / 2**20:.0f} MiB, and {has}")
        for one in inputs:
            try:
                _unpack(until(stop, self._open(one, group, stop).read(INPUT_PART)), one, folder)
            except ArchiveBroken as error:
                line = f"the input {one.name} is not whole in the storage: {error}"
                raise NotStaged(ReturnReason.INPUT_MISSING, line) from error

    def _open(self, one: StoredInput, group: str, stop: threading.Event) -> FolderArchive:
        give_up_s = self.clock.monotonic_s() + MISSING_FOR_S
        while True:
            try:
                return self.storage.open(input_key(group, one.content), one.digest)
            except ArchiveMissing:
                if self.clock.monotonic_s() >= give_up_s:
                    raise
                if self.clock.wait(stop, MISSING_EVERY_S):
                    raise stopped() from None


def stopped() -> NotStaged:
    """Return the error for a job whose inputs are not on the node when it has to end here."""
    return NotStaged(ReturnReason.UNSTARTED, "there was no time to bring its inputs")


def until(stop: threading.Event, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the chunks. Raises `NotStaged` once `stop` is set."""
    for chunk in chunks:
        if stop.is_set():
            raise stopped()
        yield chunk


def _unpack(chunks: Iterator[bytes], one: StoredInput, folder: Path) -> None:
    """Unpack an input into a folder, under its name. Raises `NotStaged`."""
    new = folder / f".new-{one.name}"
    new.mkdir(mode=0o700)
    source = tar_unpack.TarSource(chunks)
    try:
        with openat.closing_fd(os.open(new, openat.FOLDER)) as descriptor:
            tar_unpack.unpack(source, descriptor, Policy(SizeLimit(one.size_bytes, MOST_FILES)))
        source.finish()
    except (Hostile, *MALFORMED) as error:
        raise NotStaged(ReturnReason.INPUT_MISSING, f"the input {one.name} cannot be unpacked: {error}") from error
    if [entry.name for entry in new.iterdir()] != [CONTENT]:
        raise NotStaged(ReturnReason.INPUT_MISSING, f"the input {one.name} is not one file or folder")
    top, mode = new / CONTENT, (new / CONTENT).lstat().st_mode
    if stat.S_ISDIR(mode):
        top.chmod(stat.S_IRWXU)  # a folder without write permission cannot be renamed
    top.rename(folder / one.name)
    if stat.S_ISDIR(mode):
        (folder / one.name).chmod(stat.S_IMODE(mode))
    new.rmdir()
