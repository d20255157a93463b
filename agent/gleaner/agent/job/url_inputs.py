"""The inputs that an agent fetches from URLs.

The content that is fetched first is stored like an input that a user has sent, and control records it. All later slices
and all jobs that were submitted together read exactly these bytes, even if the server's content has changed. An agent
fetches an input, or asks control for it, only once for all of its jobs that were submitted together.

    WORK/AGENT/fetch-N     a file on its way from a URL to the storage
"""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import Clock
from gleaner.agent.job.inputs import CONTENT, INPUT_PART, NotStaged, input_key, stopped, until
from gleaner.agent.messages import Assignment, FetchRules, InputFetched, ReturnReason, StoredInput, UrlInput
from gleaner.agent.reporting.client import CONFLICT, ControlRefused, ControlSilent
from gleaner.agent.system import tar_pack
from gleaner.agent.transfer import process

CONTROL_BACK_S = 120.0
"""The time for which control can be unreachable before the job is returned."""
ASK_EVERY_S = 3.0
_CHUNK_BYTES = 2**20


@dataclass(slots=True)
class _Turn:
    """A lock for the jobs that need one input of a submission, and the input that control has fixed for them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    fixed: StoredInput | None = None


@dataclass(slots=True)
class UrlInputs:
    """The means by which one agent fetches inputs. Thread-safe."""

    place: Path
    """The agent's own folder on the node's disk."""
    storage: FolderStorage
    clock: Clock
    fetch: Callable[[UrlInput, Path, FetchRules, threading.Event], int]
    """Fetches a URL into a new file, as `transfer.file_transfers.Transfers.fetch` does."""
    fix_input: Callable[[int, int, InputFetched], StoredInput | None]
    """Asks control which input counts, as `ControlClient.fix_input` does."""
    _turns: dict[tuple[int, str], _Turn] = field(default_factory=dict[tuple[int, str], _Turn])
    """The turns, by submission and input name."""
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def settle(self, assignment: Assignment, stop: threading.Event) -> Assignment:
        """Return the assignment with all its inputs in the storage. Raises `NotStaged`, `StorageError` or `OSError`."""
        inputs = tuple(
            one if isinstance(one, StoredInput) else self._settle(one, assignment, stop) for one in assignment.inputs
        )
        return assignment.model_copy(update={"inputs": inputs})

    def _settle(self, one: UrlInput, assignment: Assignment, stop: threading.Event) -> StoredInput:
        turn = self._turns.setdefault((assignment.submission, one.name), _Turn())
        while not turn.lock.acquire(timeout=1.0):
            if stop.is_set():
                raise stopped()
        try:
            turn.fixed = turn.fixed or self._fetch(one, assignment, stop)
            return turn.fixed
        finally:
            turn.lock.release()

    def _fetch(self, one: UrlInput, assignment: Assignment, stop: threading.Event) -> StoredInput:
        """Fetch a URL, and store the file unless control already has it or names another one."""
        if assignment.fetch_rules is None:
            raise NotStaged(ReturnReason.INPUT_MISSING, f"control has not said from where {one.name} may be fetched")
        self.place.mkdir(parents=True, mode=0o700, exist_ok=True)
        file = self.place / f"fetch-{next(self._numbers)}"
        try:
            file_bytes = self.fetch(one, file, assignment.fetch_rules, stop)
            hashed, size_bytes = hashlib.sha256(), 0
            for chunk in until(stop, _packed(file, file_bytes)):
                hashed.update(chunk)
                size_bytes += len(chunk)
            known = InputFetched(name=one.name, content=f"sha256:{hashed.hexdigest()}", size_bytes=size_bytes)
            fixed = self._ask(assignment, known, stop)
            if fixed is None:
                with self.storage.draft(input_key(assignment.group, known.content)) as draft:
                    draft.add(INPUT_PART, until(stop, _packed(file, file_bytes)))
                    digest = draft.publish({"content": known.content}).digest
                fixed = self._ask(assignment, known.model_copy(update={"digest": digest}), stop)
        except process.NodeFull as error:
            raise NotStaged(ReturnReason.NODE_LACKS, str(error)) from error
        except process.TransferFailure as error:
            why = ReturnReason.INPUT_UNREACHABLE if error.may_pass else ReturnReason.INPUT_MISSING
            raise NotStaged(why, f"the input {one.name}: {error}") from error
        except process.TransferStopped:
            raise stopped() from None
        finally:
            file.unlink(missing_ok=True)
        return cast("StoredInput", fixed)

    def _ask(self, assignment: Assignment, fetched: InputFetched, stop: threading.Event) -> StoredInput | None:
        """Return the input that control has fixed; None if `fetched` must be stored first."""
        give_up_s = self.clock.monotonic_s() + CONTROL_BACK_S
        while True:
            try:
                fixed = self.fix_input(assignment.job, assignment.attempt, fetched)
            except ControlRefused as error:  # a conflict can be temporary, for example for lack of room
                why_not = ReturnReason.INPUT_UNREACHABLE if error.status == CONFLICT else ReturnReason.INPUT_MISSING
                raise NotStaged(why_not, f"the input {fetched.name}: {error.detail}") from error
            except ControlSilent as error:
                why = f"control does not take the input {fetched.name}: {error}"
            else:
                if fixed is not None or fetched.digest is None:
                    return fixed
                why = f"control does not see the input {fetched.name} in the storage"
            if self.clock.monotonic_s() >= give_up_s:
                raise NotStaged(ReturnReason.INPUT_UNREACHABLE, why)
            if self.clock.wait(stop, ASK_EVERY_S):
                raise stopped()


def _packed(file: Path, size_bytes: int) -> Iterator[bytes]:
    """Yield the tar archive of a file, packed as `glean submit` does."""
    with file.open("rb") as content:
        chunks = iter(lambda: content.read(_CHUNK_BYTES), b"")
        yield from tar_pack.pack_files([tar_pack.File(CONTENT, size_bytes, chunks)])
