"""The checkpoints and the result of one job on the storage, as its agent writes and reads them.

All calls block as long as the storage does, so make them in a worker thread.
"""

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gleaner.agent.checkpoints import workdir_tar as folder
from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import (
    FOLDER_PART,
    ArchiveMissing,
    Published,
    StorageError,
    StorageFull,
    checkpoint_key,
    output_key,
)
from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import Assignment, Checkpoint, NodeFacts, Output
from gleaner.agent.node.compatibility import NodeKind, kind, lacks
from gleaner.agent.reporting.job_log import NO_OUTPUT, Mark
from gleaner.agent.runtime.interface import ContainerId, Runtime
from gleaner.agent.system.keep_patterns import Keep

MISSING_FOR_S = 60.0
"""The time for which the node keeps looking for a missing checkpoint. For up to `acdirmax` (60 s, nfs(5)) an NFS client
might not see a file that another node has just written."""
MISSING_EVERY_S = 2.0
TRUSTED_FOR_S = 3600.0
"""The time for which the next checkpoint can rely on blocks that a restore has read, without reading them again. At an
agent's end, the same holds for blocks that the agent itself has written."""
LONGEST_CHAIN = 8
"""The largest number of checkpoints in a row that share files. A damaged file breaks at most this many."""
LONGEST_CHAIN_AT_THE_END = 2 * LONGEST_CHAIN
"""The corresponding limit at an agent's end, where a full save might be too late."""


@dataclass(frozen=True, slots=True)
class Chain:
    """A place in a chain of checkpoints, each of which can share files with earlier ones. The first `place` is 1."""

    name: str
    place: int

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "Chain | None":
        """Return the place of a checkpoint with these facts; None if the facts contain no place.

        >>> Chain.of({"chain": "3/1", "place": 2})
        Chain(name='3/1', place=2)
        """
        name, place = facts.get("chain"), facts.get("place")
        return cls(name, place) if isinstance(name, str) and isinstance(place, int) else None

    @property
    def next(self) -> "Chain":
        """The place of the next checkpoint, if it can share files with this one."""
        return Chain(self.name, self.place + 1)


@dataclass(frozen=True, slots=True)
class NewCheckpoint:
    """A checkpoint that was just published, and the bytes that were written for it."""

    checkpoint: Checkpoint
    stored_bytes: int
    is_full: bool = False
    """True for a full checkpoint, which shares no file, so that far more had to be written."""


@dataclass(slots=True)
class JobCheckpoints:
    """One attempt's view of its job's archives. Not thread-safe."""

    storage: FolderStorage
    assignment: Assignment
    node: NodeFacts
    folder: Path
    """The job's folder on the node."""
    stop_waiting: threading.Event = field(default_factory=threading.Event)
    """Set when there is no time left to wait for a file that might still become visible on the storage."""
    clock: Clock = field(default_factory=SystemClock)
    _storage_since_s: float | None = None
    """The instant at which the current work with the storage began, by the monotonic clock; None if there is none."""
    _latest: Checkpoint | None = None
    """The checkpoint with which the next one can share blocks."""
    _restored_archive: FolderArchive | None = None
    """The archive from which the job was restored, until it has a newer checkpoint."""
    _restored_s: float = -math.inf
    """The instant at which that archive was opened, by the monotonic clock."""
    _published_s: float = -math.inf
    """The instant at which this attempt last published a checkpoint, by the monotonic clock."""
    _tries: int = 0
    _chain: Chain | None = None
    """The place of the checkpoint that is being made, or otherwise of the latest one."""
    _is_storage_full: bool = False
    """True if the storage was full at the last save."""

    def __post_init__(self) -> None:
        self._latest = self.assignment.checkpoint

    @property
    def storage_s(self) -> float:
        """The time that the current work with the storage has taken so far, in seconds; 0 if there is none."""
        since_s = self._storage_since_s
        return 0.0 if since_s is None else self.clock.monotonic_s() - since_s

    def open(self) -> FolderArchive | None:
        """Open the checkpoint from which to restore the job, if it has one. Raises `ArchiveBroken` or `StorageError`.

        A checkpoint that this node does not see might still exist, so the node keeps looking for a while before the
        checkpoint counts as missing. If there is no time to keep looking, the storage counts as failed.
        """
        checkpoint = self.assignment.checkpoint
        if checkpoint is None:
            return None
        give_up_s = self.clock.monotonic_s() + MISSING_FOR_S
        while True:
            try:
                with self._working_with_storage():
                    self._restored_archive, self._restored_s = self._open(checkpoint), self.clock.monotonic_s()
                    self._chain = Chain.of(self._restored_archive.facts)
                    return self._restored_archive
            except ArchiveMissing as error:
                if self.clock.monotonic_s() >= give_up_s:
                    raise
                if self.clock.wait(self.stop_waiting, MISSING_EVERY_S):
                    raise StorageError(f"{error}; there was no time to look for it again") from error

    def missing_here(self, archive: FolderArchive | None) -> str:
        """Return one line that names what this node lacks to restore the archive; empty if it lacks nothing."""
        checkpoint = self.assignment.checkpoint
        if archive is None or checkpoint is None or not checkpoint.has_memory:
            return ""
        return why_unfit(archive.facts, self.node)

    def unpack(self, archive: FolderArchive) -> None:
        """Restore the job's folder. Raises `ArchiveBroken`, `StorageError` or `OSError`."""
        with self._working_with_storage():
            folder.unpack(archive.read(FOLDER_PART), self.folder)

    @property
    def is_first(self) -> bool:
        """True if no earlier checkpoint of the job is known, so that the next one is a full one."""
        return self._latest is None

    @property
    def needs_full_checkpoint(self) -> bool:
        """True if the next checkpoint must be a full one, since the chain has reached its greatest length."""
        return self._latest is not None and self._chain is not None and self._chain.place >= LONGEST_CHAIN

    def save_memory(
        self, runtime: Runtime, container: ContainerId, mark: Callable[[], Mark], *, at_the_end: bool = False
    ) -> NewCheckpoint:
        """Publish a checkpoint of a paused container. `mark`, which is called last, returns the position of the output.

        With `at_the_end`, time is short, so a full checkpoint is written only if an incremental one is impossible.
        Raises the errors of the runtime's `checkpoint` and of the storage, in which case there is no checkpoint.
        """
        with self._working_with_storage(), self._draft(at_the_end=at_the_end) as draft:
            runtime.checkpoint(container, draft)
            draft.add(FOLDER_PART, folder.pack(self.folder))
            facts = {"image_id": runtime.image_id(container), "paused_s": self.clock.now_s()}
            return self._record_new(self._publish(draft, facts), has_memory=True, mark=mark())

    def save_folder(self) -> NewCheckpoint:
        """Publish a checkpoint of only the folder, for a workload that has saved itself. Raises errors as `save_memory`
        does."""
        with self._working_with_storage(), self._draft() as draft:
            draft.add(FOLDER_PART, folder.pack(self.folder))
            return self._record_new(self._publish(draft, {"memory": False}), has_memory=False, mark=NO_OUTPUT)

    def publish_output(self, exit_code: int) -> Output:
        """Publish the files to keep from the folder as the job's result. Raises `StorageError` or `OSError`."""
        key = output_key(self.assignment.job, self.assignment.attempt)
        keep = Keep(self.assignment.spec.keep)
        with self._working_with_storage(), self.storage.draft(key) as draft:
            draft.add(FOLDER_PART, folder.pack(self.folder, keep if self.assignment.spec.keep else None))
            archive = draft.publish({"job": self.assignment.job, "exit_code": exit_code})
        return Output(digest=archive.digest, size_bytes=archive.size_bytes, unmatched=keep.unmatched)

    @contextmanager
    def _working_with_storage(self) -> Generator[None]:
        self._storage_since_s = self.clock.monotonic_s()
        try:
            yield
        finally:
            self._storage_since_s = None

    def _open(self, checkpoint: Checkpoint) -> FolderArchive:
        key = checkpoint_key(self.assignment.job, checkpoint.attempt, checkpoint.number)
        return self.storage.open(key, checkpoint.digest)

    @contextmanager
    def _draft(self, *, at_the_end: bool = False) -> Generator[FolderDraft]:
        """Make a draft under the next number. Each try has its own number, since a failed draft might be visible.

        If the storage fails, the next checkpoint is a full one, because a shared file might have been the reason. If
        the storage is full, the next one can share files, since a full checkpoint would need even more room.
        """
        self._tries += 1
        key = checkpoint_key(self.assignment.job, self.assignment.attempt, self._tries)
        before = self._base(f"{self.assignment.attempt}/{self._tries}", at_the_end=at_the_end)
        try:
            with self.storage.draft(key, before) as draft:
                yield draft
        except StorageFull:
            self._is_storage_full = True
            raise
        except StorageError:
            self._latest = None
            raise
        self._is_storage_full = False

    def _base(self, name: str, *, at_the_end: bool) -> FolderArchive | None:
        """Return the archive with which the checkpoint of this name can share files; None for a full checkpoint.

        If the storage is full, a longer chain is better than no checkpoint.
        """
        longest = LONGEST_CHAIN_AT_THE_END if at_the_end else LONGEST_CHAIN
        before = self._archive_before()
        if before is not None and at_the_end and self.clock.monotonic_s() - self._published_s < TRUSTED_FOR_S:
            before.rely_on_all()
        older = Chain.of(before.facts) if before is not None else None
        if before is not None and (self._is_storage_full or (older is not None and older.place < longest)):
            self._chain = older.next if older is not None else None
            return before
        self._chain = Chain(name, 1)
        return None

    def _archive_before(self) -> FolderArchive | None:
        """Return the latest checkpoint's archive, if it can be opened. If the job was restored from it, the archive
        knows which blocks were read."""
        restored, self._restored_archive = self._restored_archive, None
        is_fresh = self.clock.monotonic_s() - self._restored_s < TRUSTED_FOR_S
        if restored is not None and is_fresh and self._latest is self.assignment.checkpoint:
            return restored
        try:
            return None if self._latest is None else self._open(self._latest)
        except StorageError:
            return None

    def _publish(self, draft: FolderDraft, facts: Mapping[str, object]) -> Published:
        assignment = self.assignment
        known = {"job": assignment.job, "attempt": assignment.attempt, "image": assignment.image}
        if self._chain is not None:
            known |= {"chain": self._chain.name, "place": self._chain.place}
        return draft.publish({**known, "node": self.node.model_dump(mode="json"), **facts})

    def _record_new(self, archive: Published, *, has_memory: bool, mark: Mark) -> NewCheckpoint:
        self._latest = Checkpoint(
            attempt=self.assignment.attempt,
            number=self._tries,
            digest=archive.digest,
            size_bytes=archive.size_bytes,
            log_lines=mark.lines,
            open_lines=mark.open_lines,
            chain=self._chain.name if self._chain is not None else None,
            has_memory=has_memory,
        )
        self._published_s = self.clock.monotonic_s()
        begins_chain = self._chain is not None and self._chain.place == 1
        return NewCheckpoint(self._latest, archive.stored_bytes, is_full=begins_chain)


def why_unfit(facts: Mapping[str, object], node: NodeFacts) -> str:
    """Return one line that names what this node lacks to restore a checkpoint with these facts, or "" if it lacks
    nothing.

    The line is also empty if the checkpoint does not describe the node that saved it, or does so in another format.
    """
    saved_on = facts.get("node")
    if not isinstance(saved_on, dict):
        return ""
    try:
        saved_by = NodeFacts.model_validate(saved_on)
    except ValidationError:
        return ""
    missing = lacks(_kind(node), saved_on=_kind(saved_by))
    return f"this node lacks {', '.join(missing)}; it was saved on {saved_by.node}" if missing else ""


def _kind(facts: NodeFacts) -> NodeKind:
    return kind(
        architecture=facts.architecture, runtime=facts.runtime, criu=facts.criu, cpu_features=facts.cpu_features
    )
