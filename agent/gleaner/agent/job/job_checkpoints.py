"""One job's checkpoints and its result on the storage, as its agent writes and reads them.

Everything here blocks, in a worker thread, for as long as the storage does.
"""

import math
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gleaner.agent.checkpoints import workdir_tar as folder
from gleaner.agent.checkpoints.interface import (
    Archive,
    ArchiveMissing,
    Draft,
    Published,
    Storage,
    StorageError,
    StorageFull,
    checkpoint_key,
    output_key,
)
from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import Assignment, Checkpoint, NodeFacts, Output
from gleaner.agent.node.compatibility import NodeKind, kind, lacks
from gleaner.agent.reporting.job_log import NOTHING, Mark
from gleaner.agent.runtime.interface import ContainerId, Runtime

FOLDER_PART = "folder.tar"
MISSING_FOR_S = 60.0
"""A missing checkpoint is looked for again for so long: an NFS client may believe for up to `acdirmax` (60 s, nfs(5))
that there is no file where it saw none, although another node has written one since."""
MISSING_EVERY_S = 2.0
RELIED_ON_FOR_S = 3600.0
"""For so long, blocks that were read whole to restore a job are not read again for its next checkpoint. At an agent's
end, this holds for blocks that the agent itself has written too."""
LONGEST_CHAIN = 8
"""Of so many checkpoints in a row, one shares no file with an earlier one: a shared file that rots after it was read
breaks no more than these."""
LONGEST_CHAIN_AT_THE_END = 2 * LONGEST_CHAIN
"""The same at an agent's end, where a save that writes everything may come too late."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Checkpoints that may share files, each with those before it. `place` counts from 1, for the first."""

    name: str
    place: int

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "Chain | None":
        """Return the place of a checkpoint with these facts; None if they do not say.

        >>> Chain.of({"chain": "3/1", "place": 2})
        Chain(name='3/1', place=2)
        """
        name, place = facts.get("chain"), facts.get("place")
        return cls(name, place) if isinstance(name, str) and isinstance(place, int) else None

    @property
    def next(self) -> "Chain":
        """The place of the next checkpoint, if it shares files with this one."""
        return Chain(self.name, self.place + 1)


@dataclass(frozen=True, slots=True)
class Kept:
    """A published checkpoint, and the bytes that were written for it."""

    checkpoint: Checkpoint
    stored_bytes: int
    is_full: bool = False
    """True if it shares no file: then far more was written than for one that shares files with the one before."""


@dataclass(slots=True)
class JobCheckpoints:
    """One attempt's view of its job's archives. One thread at a time."""

    storage: Storage
    assignment: Assignment
    node: NodeFacts
    folder: Path
    """The job's folder on the node."""
    hurry: threading.Event = field(default_factory=threading.Event)
    """Set when there is no time to wait for a file that the storage may show later."""
    clock: Clock = field(default_factory=SystemClock)
    _inside_since_s: float | None = None
    """The instant at which the work with the storage that goes on began, by the monotonic clock; None if none does."""
    _latest: Checkpoint | None = None
    """The checkpoint that the next one shares blocks with."""
    _restored: Archive | None = None
    """The checkpoint from which the job went on, until it has a newer one."""
    _restored_s: float = -math.inf
    """The instant at which the restored checkpoint was opened, by the monotonic clock."""
    _written_s: float = -math.inf
    """The instant at which this attempt last published a checkpoint, by the monotonic clock."""
    _tries: int = 0
    _chain: Chain | None = None
    """The place of the checkpoint that is being written, or else of the latest."""
    _is_full: bool = False
    """True if there was no room for the checkpoint that was last tried."""

    def __post_init__(self) -> None:
        self._latest = self.assignment.checkpoint

    @property
    def inside_s(self) -> float:
        """The time for which one piece of work with the storage has been going on, in seconds; 0 if none is."""
        since_s = self._inside_since_s
        return 0.0 if since_s is None else self.clock.monotonic_s() - since_s

    def open(self) -> Archive | None:
        """Open the checkpoint from which the job goes on, if it has one. Raises `ArchiveBroken` or `StorageError`.

        A checkpoint that this node does not see may still be there. It is looked for again for a while, and called
        missing only then; if there is no time for that, the storage has failed.
        """
        checkpoint = self.assignment.checkpoint
        if checkpoint is None:
            return None
        give_up_s = self.clock.monotonic_s() + MISSING_FOR_S
        while True:
            try:
                with self._inside():
                    self._restored, self._restored_s = self._open(checkpoint), self.clock.monotonic_s()
                    self._chain = Chain.of(self._restored.facts)
                    return self._restored
            except ArchiveMissing as error:
                if self.clock.monotonic_s() >= give_up_s:
                    raise
                if self.clock.wait(self.hurry, MISSING_EVERY_S):
                    raise StorageError(f"{error}; there was no time to look for it again") from error

    def lacking(self, archive: Archive | None) -> str:
        """Return what this node lacks to go on from the archive, in one line; empty if nothing."""
        checkpoint = self.assignment.checkpoint
        if archive is None or checkpoint is None or not checkpoint.has_memory:
            return ""
        return unfit(archive.facts, self.node)

    def unpack(self, archive: Archive) -> None:
        """Put the job's folder back as it was. Raises `ArchiveBroken`, `StorageError` or `OSError`."""
        with self._inside():
            folder.unpack(archive.read(FOLDER_PART), self.folder)

    @property
    def is_first(self) -> bool:
        """True if the next checkpoint is the job's first, as far as is known: it writes all that the job has."""
        return self._latest is None

    @property
    def is_to_begin_chain(self) -> bool:
        """True if the next checkpoint is to share nothing with the latest, and so writes all that the job has."""
        return self._latest is not None and self._chain is not None and self._chain.place >= LONGEST_CHAIN

    def save_memory(
        self, runtime: Runtime, container: ContainerId, mark: Callable[[], Mark], *, at_the_end: bool = False
    ) -> Kept:
        """Publish a checkpoint of a paused container. `mark` is called last, and returns how far the output has come.

        `at_the_end`: there is no time to write all that the job has if a part will do. Raises what the runtime's
        `checkpoint` and the storage raise; then there is no checkpoint.
        """
        with self._inside(), self._draft(at_the_end=at_the_end) as draft:
            runtime.checkpoint(container, draft)
            draft.add(FOLDER_PART, folder.pack(self.folder))
            facts = {"image_id": runtime.image_id(container), "paused_s": self.clock.now_s()}
            return self._kept(self._publish(draft, facts), has_memory=True, mark=mark())

    def save_folder(self) -> Kept:
        """Publish a checkpoint of the folder alone, of a workload that has saved itself. Raises as `save_memory`."""
        with self._inside(), self._draft() as draft:
            draft.add(FOLDER_PART, folder.pack(self.folder))
            return self._kept(self._publish(draft, {"memory": False}), has_memory=False, mark=NOTHING)

    def publish_output(self, exit_code: int) -> Output:
        """Publish the folder as the job's result. Raises `StorageError` or `OSError`."""
        key = output_key(self.assignment.job, self.assignment.attempt)
        with self._inside(), self.storage.draft(key) as draft:
            draft.add(FOLDER_PART, folder.pack(self.folder))
            published = draft.publish({"job": self.assignment.job, "exit_code": exit_code})
        return Output(digest=published.digest, size_bytes=published.size_bytes)

    @contextmanager
    def _inside(self) -> Generator[None]:
        self._inside_since_s = self.clock.monotonic_s()
        try:
            yield
        finally:
            self._inside_since_s = None

    def _open(self, checkpoint: Checkpoint) -> Archive:
        key = checkpoint_key(self.assignment.job, checkpoint.attempt, checkpoint.number)
        return self.storage.open(key, checkpoint.digest)

    @contextmanager
    def _draft(self, *, at_the_end: bool = False) -> Generator[Draft]:
        """Make a draft under the next number. Each try has its own number, as a failed draft may be visible.

        If the storage fails, the next checkpoint shares nothing: perhaps the one before was the reason. If the storage
        is full it may share, since it would need even more room otherwise.
        """
        self._tries += 1
        key = checkpoint_key(self.assignment.job, self.assignment.attempt, self._tries)
        before = self._before_in_chain(f"{self.assignment.attempt}/{self._tries}", at_the_end=at_the_end)
        try:
            with self.storage.draft(key, before) as draft:
                yield draft
        except StorageFull:
            self._is_full = True
            raise
        except StorageError:
            self._latest = None
            raise
        self._is_full = False

    def _before_in_chain(self, name: str, *, at_the_end: bool) -> Archive | None:
        """Return what the checkpoint of this name may share files with; None if the chain is long enough or unknown.

        Where the storage is full, a longer chain is better than no checkpoint.
        """
        longest = LONGEST_CHAIN_AT_THE_END if at_the_end else LONGEST_CHAIN
        before = self._before()
        if before is not None and at_the_end and self.clock.monotonic_s() - self._written_s < RELIED_ON_FOR_S:
            before.rely_on_all()
        older = Chain.of(before.facts) if before is not None else None
        if before is not None and (self._is_full or (older is not None and older.place < longest)):
            self._chain = older.next if older is not None else None
            return before
        self._chain = Chain(name, 1)
        return None

    def _before(self) -> Archive | None:
        """Return the checkpoint before, if it can be opened. A restored one knows which blocks were read whole."""
        restored, self._restored = self._restored, None
        is_fresh = self.clock.monotonic_s() - self._restored_s < RELIED_ON_FOR_S
        if restored is not None and is_fresh and self._latest is self.assignment.checkpoint:
            return restored
        try:
            return None if self._latest is None else self._open(self._latest)
        except StorageError:
            return None

    def _publish(self, draft: Draft, facts: Mapping[str, object]) -> Published:
        given = self.assignment
        told = {"job": given.job, "attempt": given.attempt, "image": given.image}
        if self._chain is not None:
            told |= {"chain": self._chain.name, "place": self._chain.place}
        return draft.publish({**told, "node": self.node.model_dump(mode="json"), **facts})

    def _kept(self, published: Published, *, has_memory: bool, mark: Mark) -> Kept:
        self._latest = Checkpoint(
            attempt=self.assignment.attempt,
            number=self._tries,
            digest=published.digest,
            size_bytes=published.size_bytes,
            log_lines=mark.lines,
            open_lines=mark.open_lines,
            chain=self._chain.name if self._chain is not None else None,
            has_memory=has_memory,
        )
        self._written_s = self.clock.monotonic_s()
        begins_chain = self._chain is not None and self._chain.place == 1
        return Kept(self._latest, published.stored_bytes, is_full=begins_chain)


def unfit(facts: Mapping[str, object], node: NodeFacts) -> str:
    """Return what this node lacks to bring back a process whose checkpoint has these facts, in one line.

    If the checkpoint does not say where it was saved, or says it in another version's words, nothing is known to be
    missing.
    """
    saved_on = facts.get("node")
    if not isinstance(saved_on, dict):
        return ""
    try:
        was = NodeFacts.model_validate(saved_on)
    except ValidationError:
        return ""
    missing = lacks(_kind(node), saved_on=_kind(was))
    return f"this node lacks {', '.join(missing)}; it was saved on {was.node}" if missing else ""


def _kind(facts: NodeFacts) -> NodeKind:
    return kind(
        architecture=facts.architecture, runtime=facts.runtime, criu=facts.criu, cpu_features=facts.cpu_features
    )
