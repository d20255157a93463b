"""What one job has on the storage, as its agent puts it there and takes it out: generations, and the result.

Everything here blocks, in a worker thread, for as long as the storage does.
"""

import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
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
    Published,
    Storage,
    StorageError,
    StorageFull,
    generation_key,
    output_key,
)

FOLDER_PART = "folder.tar"
NOTHING = Mark(0, {})


@dataclass(frozen=True, slots=True)
class Kept:
    """A published generation, and what was written for it."""

    generation: Generation
    stored_bytes: int


@dataclass(slots=True)
class Stored:
    """One attempt's view of its job's parcels. One thread at a time."""

    storage: Storage
    assignment: Assignment
    node: NodeFacts
    folder: Path
    """The job's folder on the node."""
    _inside_since_s: float | None = None
    """By the monotonic clock; None: nothing is going on."""
    _latest: Generation | None = None
    """What the next generation shares blocks with."""
    _tries: int = 0

    def __post_init__(self) -> None:
        self._latest = self.assignment.generation

    @property
    def inside_s(self) -> float:
        """For how long one piece of work with the storage has been going on; 0 if none is."""
        since_s = self._inside_since_s
        return 0.0 if since_s is None else time.monotonic() - since_s

    def open(self) -> Parcel | None:
        """What the job is to go on from, if anything. Raises `ParcelBroken` or `StorageError`."""
        generation = self.assignment.generation
        with self._inside():
            return None if generation is None else self._open(generation)

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

    def save_memory(self, runtime: Runtime, container: ContainerId, mark: Callable[[], Mark]) -> Kept:
        """Publish a generation of a paused container. `mark` is asked last: how far the output has come.

        Raises what the runtime's `checkpoint` and the storage raise; then there is none.
        """
        with self._inside(), self._draft() as draft:
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
    def _draft(self) -> Generator[Draft]:
        """A draft under the next number. Each try has its own, as one that failed at its very end may be visible.

        If the storage fails, the next one stands on its own: perhaps the one before was the reason. Not so where it is
        full, which would need even more room.
        """
        before = self._before()
        self._tries += 1
        key = generation_key(self.assignment.job, self.assignment.attempt, self._tries)
        try:
            with self.storage.draft(key, before) as draft:
                yield draft
        except StorageFull:
            raise
        except StorageError:
            self._latest = None
            raise

    def _before(self) -> Parcel | None:
        try:
            return None if self._latest is None else self._open(self._latest)
        except StorageError:
            return None

    def _publish(self, draft: Draft, facts: Mapping[str, object]) -> Published:
        given = self.assignment
        told = {"job": given.job, "attempt": given.attempt, "image": given.image}
        return draft.publish({**told, "node": self.node.model_dump(mode="json"), **facts})

    def _kept(self, published: Published, *, has_memory: bool, mark: Mark) -> Kept:
        self._latest = Generation(
            attempt=self.assignment.attempt,
            number=self._tries,
            digest=published.digest,
            size_bytes=published.size_bytes,
            log_lines=mark.lines,
            open_lines=mark.open_lines,
            has_memory=has_memory,
        )
        return Kept(self._latest, published.stored_bytes)


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
