"""The inputs that an agent fetches from URLs.

What is fetched first goes into the storage, like an input that a user has sent, and control notes it: all later slices,
and all jobs that were submitted together, read these very bytes, whatever the server has by then. An agent asks control
for an input once for all of its jobs that were submitted together.

    WORK/AGENT/fetch-N     a file on its way from a URL to the storage
"""

import hashlib
import itertools
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import Clock
from gleaner.agent.job.inputs import CONTENT, INPUT_PART, InputBroken, NotStaged, input_key, stopped, until
from gleaner.agent.messages import (
    Assignment,
    CredentialGiven,
    FetchRules,
    InputFetched,
    ReturnReason,
    StoredInput,
    UrlInput,
)
from gleaner.agent.reporting.client import CONFLICT, ControlRefused, ControlSilent
from gleaner.agent.system import tar_pack
from gleaner.agent.transfer import fetch, process
from gleaner.agent.transfer.credentials import Credential

CONTROL_BACK_S = 120.0
"""Control may be silent for so long before the job is returned."""
ASK_EVERY_S = 3.0
_CHUNK_BYTES = 2**20


class FetchUrl(Protocol):
    """Fetches a URL into a new file, as `transfer.fetch.Fetch` does."""

    def __call__(
        self,
        url: str,
        into: Path,
        *,
        rules: FetchRules,
        sha256: str | None,
        stop: threading.Event,
        credential: Credential | None,
    ) -> fetch.Fetched: ...


def credential_of(given: CredentialGiven | None) -> Credential | None:
    """Return the secret that control has given; None if the group has none."""
    if given is None or given.url is None or given.value is None:
        return None
    return Credential(given.url, given.value.get_secret_value())


@dataclass(slots=True)
class _Turn:
    """The turn of the jobs that want one URL, what the latest of them has fetched, and what control has fixed."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    latest: InputFetched | None = None
    fixed: dict[tuple[int, str], StoredInput] = field(default_factory=dict[tuple[int, str], StoredInput])
    """By submission and name. An input that was fixed stays, as long as a job of its submission has not ended."""


@dataclass(slots=True)
class UrlInputs:
    """Fetches for one agent. Safe for threads."""

    place: Path
    """The agent's own folder on the node's disk."""
    storage: FolderStorage
    clock: Clock
    fetch: FetchUrl
    fix_input: Callable[[int, int, InputFetched], StoredInput | None]
    """Asks control, as `ControlClient.fix_input` does."""
    ask_credential: Callable[[int, int, str], CredentialGiven]
    """Asks control for what a server wants to see, as `ControlClient.ask_credential` does. It is asked anew for each
    fetch, and forgotten after it."""
    _turns: dict[tuple[str, str, str | int], _Turn] = field(default_factory=dict[tuple[str, str, str | int], _Turn])
    """By group, URL, and digest. Without a digest only the jobs of one submission share what was fetched."""
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _numbers: Iterator[int] = field(default_factory=itertools.count)

    def settle(self, assignment: Assignment, stop: threading.Event) -> Assignment:
        """Return the assignment with all its inputs in the storage. Raises `NotStaged`, `StorageError` or `OSError`."""
        inputs = tuple(
            one if isinstance(one, StoredInput) else self._settle(one, assignment, stop) for one in assignment.inputs
        )
        return assignment.model_copy(update={"inputs": inputs})

    def report_broken(self, found: InputBroken, assignment: Assignment, stop: threading.Event) -> NotStaged:
        """Report an input that is not whole in the storage. Return the error with which the job is returned.

        Control looks for itself. If it agrees, the next attempt fetches the URL anew. Raises `NotStaged`.
        """
        one = found.broken
        with self._lock:
            self._turns.clear()
        told = InputFetched(name=one.name, content=one.content, size_bytes=one.size_bytes, is_broken=True)
        counts = self._ask(assignment, told, stop)
        if counts is None or counts.digest != one.digest:
            return NotStaged(ReturnReason.INPUT_UNREACHABLE, f"{found}; the next attempt fetches it anew")
        return found

    def _settle(self, one: UrlInput, assignment: Assignment, stop: threading.Event) -> StoredInput:
        with self._lock:
            turn = self._turns.setdefault((assignment.group, one.url, one.sha256 or assignment.submission), _Turn())
        while not turn.lock.acquire(timeout=1.0):
            if stop.is_set():
                raise stopped()
        try:
            fixed = turn.fixed.get((assignment.submission, one.name))
            if fixed is None and turn.latest is not None:
                fixed = self._ask(assignment, turn.latest.model_copy(update={"name": one.name}), stop)
            if fixed is None:
                turn.latest, fixed = self._fetch(one, assignment, stop)
            turn.fixed[assignment.submission, one.name] = fixed
            return fixed
        finally:
            turn.lock.release()

    def _fetch(self, one: UrlInput, assignment: Assignment, stop: threading.Event) -> tuple[InputFetched, StoredInput]:
        """Fetch a URL, and store the file unless control has it or names another one."""
        if assignment.fetch_rules is None:
            raise NotStaged(ReturnReason.INPUT_MISSING, f"control has not said from where {one.name} may be fetched")
        self.place.mkdir(parents=True, mode=0o700, exist_ok=True)
        file = self.place / f"fetch-{next(self._numbers)}"
        try:
            credential = self._credential(one, assignment, stop)
            found = self.fetch(
                one.url, file, rules=assignment.fetch_rules, sha256=one.sha256, stop=stop, credential=credential
            )
            hashed, size_bytes = hashlib.sha256(), 0
            for chunk in until(stop, _packed(file, found.size_bytes)):
                hashed.update(chunk)
                size_bytes += len(chunk)
            known = InputFetched(name=one.name, content=f"sha256:{hashed.hexdigest()}", size_bytes=size_bytes)
            fixed = self._ask(assignment, known, stop)
            if fixed is None:
                with self.storage.draft(input_key(assignment.group, known.content)) as draft:
                    draft.add(INPUT_PART, until(stop, _packed(file, found.size_bytes)))
                    digest = draft.publish({"content": known.content}).digest
                stored = known.model_copy(update={"digest": digest})
                fixed = cast("StoredInput", self._ask(assignment, stored, stop))
        except process.TransferFailure as error:
            why = ReturnReason.INPUT_UNREACHABLE if error.may_pass else ReturnReason.INPUT_MISSING
            raise NotStaged(why, f"the input {one.name}: {error}") from error
        except process.TransferStopped:
            raise stopped() from None
        except fetch.NodeFull as error:
            raise NotStaged(ReturnReason.NODE_LACKS, str(error)) from error
        finally:
            file.unlink(missing_ok=True)
        return known, fixed

    def _credential(self, one: UrlInput, assignment: Assignment, stop: threading.Event) -> Credential | None:
        """Ask control for the group's secret for this URL. None: there is none. Raises `NotStaged`."""
        give_up_s = self.clock.monotonic_s() + CONTROL_BACK_S
        while True:
            try:
                given = self.ask_credential(assignment.job, assignment.attempt, one.name)
            except ControlRefused as error:
                raise NotStaged(ReturnReason.INPUT_UNREACHABLE, f"the input {one.name}: {error.detail}") from error
            except ControlSilent as error:
                why = f"control does not say which secret is for the input {one.name}: {error}"
            else:
                return credential_of(given)
            if self.clock.monotonic_s() >= give_up_s:
                raise NotStaged(ReturnReason.INPUT_UNREACHABLE, why)
            if self.clock.wait(stop, ASK_EVERY_S):
                raise stopped()

    def _ask(self, assignment: Assignment, fetched: InputFetched, stop: threading.Event) -> StoredInput | None:
        """Ask control which input counts. None: it is to be stored first, so never if `fetched` is stored."""
        give_up_s = self.clock.monotonic_s() + CONTROL_BACK_S
        while True:
            try:
                fixed = self.fix_input(assignment.job, assignment.attempt, fetched)
            except ControlRefused as error:  # a conflict may pass: there may be room for it later
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
    """Yield the tar archive of a file, as `glean submit` packs one."""
    with file.open("rb") as content:
        chunks = iter(lambda: content.read(_CHUNK_BYTES), b"")
        yield from tar_pack.pack_files([tar_pack.File(CONTENT, size_bytes, chunks)])
