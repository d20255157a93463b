"""The generations of a user's own job, in the user's own folder.

    ROOT/jobs/JOB/attempt-A/generation-N/    as an agent's (`storage.folder`)
    ROOT/jobs/JOB/latest.json                which of them count, the newest first, and of what program they are

What is not named there does not count. The newest two stay, so that one that turns out to be broken costs only what
was computed since the one before, and the newest that shares no file with the newest of all.
"""

import hashlib
import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gleaner.agent.durable import write_whole
from gleaner.agent.protocol import Generation
from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.protocol import StorageError, generation_key

NEWEST_KEPT = 2
_STALE_S = 3600.0
"""What a program that died has left half written is removed after this long."""


class _Record(BaseModel):
    program: str
    generations: tuple[Generation, ...]


def program_of(image: str, command: Sequence[str]) -> str:
    """What is run, in short: a generation of another program is not for this one."""
    return hashlib.sha256(json.dumps([image, *command]).encode()).hexdigest()


def counting(known: Sequence[Generation]) -> tuple[Generation, ...]:
    """Those that still count; the newest comes first. See control's `attempts.surplus`."""
    newest = tuple(known[:NEWEST_KEPT])
    apart = next((one for one in known if one.chain != newest[0].chain), None)
    return newest if apart is None or apart in newest else (*newest, apart)


@dataclass(slots=True)
class Kept:
    """One job's. Every method may raise `StorageError`."""

    root: Path
    job: int
    program: str

    @property
    def storage(self) -> FolderStorage:
        """Where they are."""
        return FolderStorage(self.root)

    def set_up(self, *, is_first: bool, now_s: float) -> None:
        """Make the folder ready. Of a job that starts for the first time nothing can be there: what is, was another's
        of the same number. For one that starts again the folder must be there, or it is not the one of before."""
        if is_first:
            try:
                self.root.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as error:
                raise StorageError(
                    f"cannot make {self.root.parent}: {error.strerror}; choose another --storage"
                ) from error
            self.storage.prepare()
            self.clear()
        elif not self.root.is_dir():
            raise StorageError(f"{self.root} is not there: it must be a folder that all nodes share (--storage)")
        self.storage.sweep(before_s=now_s - _STALE_S)

    def remove_forgotten(self, known: frozenset[str]) -> None:
        """What is left of the owner's other jobs that Slurm does not know any more: cancelled while they waited."""
        keys = self.storage.keys("jobs") if (self.root / "jobs").is_dir() else ()
        for number in {key.split("/")[1] for key in keys} - known - {str(self.job)}:
            replace(self, job=int(number)).clear()

    def latest(self) -> tuple[Generation, ...]:
        """What counts, the newest first; nothing if it is of another program.

        A record that cannot be read is not one that is not there: whoever took it for that would begin anew, and
        remove with the next save all that was saved before.
        """
        stays = f"what was saved stays: scontrol requeue {self.job} lets it go on from that, once"
        try:
            found = _Record.model_validate_json(self.record.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageError(f"cannot read {self.record}: {error.strerror}; {stays} that can be read") from error
        except ValidationError as error:
            raise StorageError(f"{self.record} says nothing that is known here; {stays} that is mended") from error
        return found.generations if found.program == self.program else ()

    def next_attempt(self) -> int:
        """A number that no generation here has."""
        keys = self.storage.keys(f"jobs/{self.job}")
        return 1 + max((int(key.split("/")[2].removeprefix("attempt-")) for key in keys), default=0)

    def note(self, new: Generation) -> None:
        """From now on this one counts, and some of those before; the others go, once that is on the disk."""
        now = counting((new, *self.latest()))
        self._write(now)
        self._remove_but({generation_key(self.job, one.attempt, one.number) for one in now})

    def before(self, used: Generation) -> Generation | None:
        """The one that counted before this one."""
        known = self.latest()
        older = known[known.index(used) + 1 :] if used in known else ()
        return older[0] if older else None

    def drop(self, broken: Generation) -> None:
        """Set one aside that is of no use; it does not count any more."""
        self.storage.set_aside(generation_key(self.job, broken.attempt, broken.number))
        self._write(tuple(one for one in self.latest() if one != broken))

    def _write(self, now: tuple[Generation, ...]) -> None:
        text = _Record(program=self.program, generations=now).model_dump_json()
        try:
            write_whole(self.record, text.encode(), draft=self.record.with_suffix(".new"))
        except OSError as error:
            raise StorageError(f"cannot write {self.record}: {error.strerror}") from error

    def clear(self) -> None:
        """The job has ended."""
        with suppress(FileNotFoundError):
            self.record.unlink()
        self._remove_but(set())
        self.storage.remove_set_aside(f"jobs/{self.job}")
        with suppress(OSError):
            self.record.parent.rmdir()

    def _remove_but(self, kept: set[str]) -> None:
        storage = self.storage
        for key in storage.keys(f"jobs/{self.job}"):
            if key not in kept:
                storage.delete(key)

    @property
    def record(self) -> Path:
        """The file that names what counts."""
        return self.root / "jobs" / str(self.job) / "latest.json"
