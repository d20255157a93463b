"""What one job has on the storage, as its agent puts it there and takes it out: generations, and the result.

Everything here blocks, in a worker thread, for as long as the storage does.
"""

import math
import threading
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import ValidationError

from gleaner.agent import folder
from gleaner.agent.fitting import Kind, kind, lacks
from gleaner.agent.joblog import Mark
from gleaner.agent.protocol import Assignment, Generation, NodeFacts, Output
from gleaner.agent.runtime.protocol import ContainerId, Runtime
from gleaner.agent.storage.protocol import (
    Draft,
    Parcel,
    ParcelMissing,
    Published,
    Storage,
    StorageError,
    StorageFull,
    generation_key,
    output_key,
)

FOLDER_PART = "folder.tar"
NOTHING = Mark(0, {})
MISSING_FOR_S = 60.0
"""What is missing is asked for again for so long: an NFS client believes for up to `acdirmax` (60 s, nfs(5)) that there
is no file where it saw none, although another node has written one since."""
MISSING_EVERY_S = 2.0
RELIED_ON_FOR_S = 3600.0
"""For so long, blocks that were read well to restore a job are not read again for its next generation. At an agent's
end neither are those that the same agent has written."""
LONGEST_CHAIN = 8
"""Of so many generations in a row one shares no file with an earlier one: what rots in a shared file, after it was
looked at, breaks no more than these."""
LONGEST_CHAIN_AT_THE_END = 2 * LONGEST_CHAIN
"""At an agent's end, where a save that writes everything may come too late, so many may be in a row."""


@dataclass(frozen=True, slots=True)
class Chain:
    """Generations that may share files, each with those before it. `place` counts from 1, for the first."""

    name: str
    place: int

    @classmethod
    def of(cls, facts: Mapping[str, object]) -> "Chain | None":
        """Where a generation with these facts stands; None if they do not say.

        >>> Chain.of({"chain": "3/1", "place": 2})
        Chain(name='3/1', place=2)
        """
        name, place = facts.get("chain"), facts.get("place")
        return cls(name, place) if isinstance(name, str) and isinstance(place, int) else None

    @property
    def next(self) -> "Chain":
        """Where the next one stands, if it shares files with this one."""
        return Chain(self.name, self.place + 1)


@dataclass(frozen=True, slots=True)
class Kept:
    """A published generation, and what was written for it."""

    generation: Generation
    stored_bytes: int
    wrote_all: bool = False
    """It shares nothing: it has written far more than one that shares files with the one before."""


@dataclass(slots=True)
class Stored:
    """One attempt's view of its job's parcels. One thread at a time."""

    storage: Storage
    assignment: Assignment
    node: NodeFacts
    folder: Path
    """The job's folder on the node."""
    hurry: threading.Event = field(default_factory=threading.Event)
    """Set when there is no time to wait for what the storage may show later."""
    _inside_since_s: float | None = None
    """By the monotonic clock; None: nothing is going on."""
    _latest: Generation | None = None
    """What the next generation shares blocks with."""
    _restored: Parcel | None = None
    """The generation that the job went on from, until the next one."""
    _restored_s: float = -math.inf
    """When that was opened, by the monotonic clock."""
    _written_s: float = -math.inf
    """When this attempt has last published a generation, by the monotonic clock."""
    _tries: int = 0
    _chain: Chain | None = None
    """The place of the generation that is being written, or else of the latest."""
    _is_full: bool = False
    """Whether there was no room for the last one that was tried."""

    def __post_init__(self) -> None:
        self._latest = self.assignment.generation

    @property
    def inside_s(self) -> float:
        """For how long one piece of work with the storage has been going on; 0 if none is."""
        since_s = self._inside_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def open(self) -> Parcel | None:
        """What the job is to go on from, if anything. Raises `ParcelBroken` or `StorageError`.

        What this node does not see is no proof that it is not there. It is asked for again for a while, and called
        missing only then; if there is no time for that, it is the storage that has failed.
        """
        generation = self.assignment.generation
        if generation is None:
            return None
        give_up_s = time.monotonic() + MISSING_FOR_S
        while True:
            try:
                with self._inside():
                    self._restored, self._restored_s = self._open(generation), time.monotonic()
                    self._chain = Chain.of(self._restored.facts)
                    return self._restored
            except ParcelMissing as error:
                if time.monotonic() >= give_up_s:
                    raise
                if self.hurry.wait(MISSING_EVERY_S):
                    raise StorageError(f"{error}; there was no time to look for it again") from error

    def lacking(self, parcel: Parcel | None) -> str:
        """What this node lacks to go on from the parcel, in one line; empty if nothing."""
        generation = self.assignment.generation
        if parcel is None or generation is None or not generation.has_memory:
            return ""
        return unfit(parcel.facts, self.node)

    def unpack(self, parcel: Parcel) -> None:
        """Put the job's folder back as it was. Raises `ParcelBroken`, `StorageError` or `OSError`."""
        with self._inside():
            folder.unpack(parcel.read(FOLDER_PART), self.folder)

    @property
    def is_first(self) -> bool:
        """True if the next generation is the job's first, as far as is known: it writes all that the job has."""
        return self._latest is None

    @property
    def is_to_begin_chain(self) -> bool:
        """True if the next generation is to share nothing with the latest, and so writes all that the job has."""
        return self._latest is not None and self._chain is not None and self._chain.place >= LONGEST_CHAIN

    def save_memory(
        self, runtime: Runtime, container: ContainerId, mark: Callable[[], Mark], *, at_the_end: bool = False
    ) -> Kept:
        """Publish a generation of a paused container. `mark` is asked last: how far the output has come.

        `at_the_end`: there is no time to write all that the job has if a part will do.
        Raises what the runtime's `checkpoint` and the storage raise; then there is none.
        """
        with self._inside(), self._draft(at_the_end=at_the_end) as draft:
            runtime.checkpoint(container, draft)
            draft.add(FOLDER_PART, folder.pack(self.folder))
            facts = {"image_id": runtime.image_id(container), "paused_s": time.time()}
            return self._kept(self._publish(draft, facts), has_memory=True, mark=mark())

    def save_folder(self) -> Kept:
        """Publish a generation of the folder alone, of a workload that has saved itself. Raises as `save_memory`."""
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
        self._inside_since_s = time.monotonic()
        try:
            yield
        finally:
            self._inside_since_s = None

    def _open(self, generation: Generation) -> Parcel:
        key = generation_key(self.assignment.job, generation.attempt, generation.number)
        return self.storage.open(key, generation.digest)

    @contextmanager
    def _draft(self, *, at_the_end: bool = False) -> Generator[Draft]:
        """A draft under the next number. Each try has its own, as one that failed at its very end may be visible.

        If the storage fails, the next one stands on its own: perhaps the one before was the reason. Not so where it is
        full, which would need even more room.
        """
        self._tries += 1
        key = generation_key(self.assignment.job, self.assignment.attempt, self._tries)
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

    def _before_in_chain(self, name: str, *, at_the_end: bool) -> Parcel | None:
        """What the one of this name may share files with: nothing, if the chain is long enough, or if nothing is known
        of it. Where the storage is full, a longer chain is better than no generation."""
        longest = LONGEST_CHAIN_AT_THE_END if at_the_end else LONGEST_CHAIN
        before = self._before()
        if before is not None and at_the_end and time.monotonic() - self._written_s < RELIED_ON_FOR_S:
            before.rely_on_all()
        older = Chain.of(before.facts) if before is not None else None
        if before is not None and (self._is_full or (older is not None and older.place < longest)):
            self._chain = older.next if older is not None else None
            return before
        self._chain = Chain(name, 1)
        return None

    def _before(self) -> Parcel | None:
        """The generation before, if it can be opened. The one that was restored knows what of it has been read well."""
        restored, self._restored = self._restored, None
        is_fresh = time.monotonic() - self._restored_s < RELIED_ON_FOR_S
        if restored is not None and is_fresh and self._latest is self.assignment.generation:
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
        self._latest = Generation(
            attempt=self.assignment.attempt,
            number=self._tries,
            digest=published.digest,
            size_bytes=published.size_bytes,
            log_lines=mark.lines,
            open_lines=mark.open_lines,
            chain=self._chain.name if self._chain is not None else None,
            has_memory=has_memory,
        )
        self._written_s = time.monotonic()
        begins_chain = self._chain is not None and self._chain.place == 1
        return Kept(self._latest, published.stored_bytes, wrote_all=begins_chain)


def unfit(facts: Mapping[str, object], node: NodeFacts) -> str:
    """What this node lacks to bring back a process whose generation has these facts, in one line.

    Of a generation that does not say what it was saved on, or in another version's words, nothing is known to be
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


def _kind(facts: NodeFacts) -> Kind:
    return kind(
        architecture=facts.architecture, runtime=facts.runtime, criu=facts.criu, cpu_features=facts.cpu_features
    )
