"""The checkpoints of a user job, in the user's own folder.

    ROOT/jobs/JOB/attempt-A/checkpoint-N/    as an agent's (`checkpoints.folder_storage`)
    ROOT/jobs/JOB/latest.json                the checkpoints that count, the newest first, and their program

A checkpoint that is not named in `latest.json` does not count. `checkpoints_to_keep` determines which ones stay in it.
"""

import hashlib
import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ValidationError

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError, checkpoint_key, checkpoints_to_keep
from gleaner.agent.messages import Checkpoint
from gleaner.agent.system import atomic

_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
"""A number in the form used here. A name like `007` was given by someone else."""
_STALE_S = 3600.0
"""The age in seconds after which a half-written checkpoint of a program that died is removed."""


class _Record(BaseModel):
    program: str
    checkpoints: tuple[Checkpoint, ...]


def program_of(image: str, command: Sequence[str]) -> str:
    """Return a digest of the image and the command, so that no other program's checkpoint is restored."""
    return hashlib.sha256(json.dumps([image, *command]).encode()).hexdigest()


def deaf_file(root: Path, job: str) -> Path:
    """Return the file that exists beside ROOT while a step of the job is starting and cannot yet receive signals."""
    return root.with_name(f".{root.name}-{job}-{os.getpid()}-deaf")


@dataclass(slots=True)
class Catalog:
    """The catalog of one job's checkpoints. Every method can raise `StorageError`."""

    root: Path
    job: int
    program: str

    @property
    def storage(self) -> FolderStorage:
        """The storage that contains the checkpoints."""
        return FolderStorage(self.root)

    def set_up(self, *, is_first: bool, now_s: float) -> None:
        """Prepare the folder.

        At the first start of a job, all checkpoints under its number belong to an older job and are removed. At a later
        start the folder must exist. If it is missing, this node does not see the shared folder.
        """
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
            raise StorageError(f"{self.root} does not exist: it must be a folder that all nodes share (--storage)")
        self.storage.sweep(before_s=now_s - _STALE_S)

    def remove_forgotten(self, jobs: frozenset[str]) -> None:
        """Remove checkpoints of the owner's jobs that were cancelled while they waited and that Slurm has forgotten."""
        keys = self.storage.keys("jobs") if (self.root / "jobs").is_dir() else ()
        for number in {key.split("/")[1] for key in keys} - jobs - {str(self.job)}:
            if _NUMBER.fullmatch(number):  # the user might have put other things into this folder
                replace(self, job=int(number)).clear()
        for left in self.root.parent.glob(f".{self.root.name}-*-deaf"):
            if left.name.split("-")[-3] not in jobs:
                with suppress(OSError):
                    left.unlink()

    def latest(self) -> tuple[Checkpoint, ...]:
        """Return the checkpoints that count, the newest first; empty if they belong to another program.

        An unreadable record raises an error and is not treated as a missing one, since otherwise the job would start
        from the beginning, and its next save would remove all earlier checkpoints.
        """
        stays = f"the checkpoints stay: `scontrol requeue {self.job}` restores the job as soon as"
        try:
            record = _Record.model_validate_json(self.record.read_bytes())
        except FileNotFoundError:
            return ()
        except OSError as error:
            raise StorageError(f"cannot read {self.record}: {error.strerror}; {stays} it can be read") from error
        except ValidationError as error:
            raise StorageError(f"{self.record} is damaged; {stays} it is repaired") from error
        return record.checkpoints if record.program == self.program else ()

    def next_attempt(self) -> int:
        """Return an attempt number that no checkpoint here has."""
        keys = self.storage.keys(f"jobs/{self.job}")
        numbers = (key.split("/")[2].removeprefix("attempt-") for key in keys if key.count("/") > 1)
        return 1 + max((int(number) for number in numbers if _NUMBER.fullmatch(number)), default=0)

    def record_checkpoint(self, new: Checkpoint) -> None:
        """Record that this checkpoint counts. Once the record is on the disk, remove the checkpoints that no longer
        count."""
        checkpoints = (new, *self.latest())
        that_count = tuple(checkpoints[at] for at in checkpoints_to_keep([one.chain for one in checkpoints]))
        self._write(that_count)
        self._remove_but({checkpoint_key(self.job, one.attempt, one.number) for one in that_count})

    def before(self, checkpoint: Checkpoint) -> Checkpoint | None:
        """Return the previous checkpoint that counts; None if there is none."""
        checkpoints = self.latest()
        older = checkpoints[checkpoints.index(checkpoint) + 1 :] if checkpoint in checkpoints else ()
        return older[0] if older else None

    def set_aside(self, broken: Checkpoint) -> None:
        """Set a broken checkpoint aside, so that it no longer counts."""
        self.storage.set_aside(checkpoint_key(self.job, broken.attempt, broken.number))
        self._write(tuple(one for one in self.latest() if one != broken))

    def _write(self, checkpoints: tuple[Checkpoint, ...]) -> None:
        text = _Record(program=self.program, checkpoints=checkpoints).model_dump_json()
        try:
            atomic.write(self.record, text.encode())
        except OSError as error:
            raise StorageError(f"cannot write {self.record}: {error.strerror}") from error

    def clear(self) -> None:
        """Remove all checkpoints of a job that has ended."""
        with suppress(FileNotFoundError):
            self.record.unlink()
        self._remove_but(set())
        self.storage.remove_set_aside(f"jobs/{self.job}")
        with suppress(OSError):
            self.record.parent.rmdir()

    def _remove_but(self, kept_keys: set[str]) -> None:
        storage = self.storage
        for key in storage.keys(f"jobs/{self.job}"):
            if key not in kept_keys:
                storage.delete(key)

    @property
    def record(self) -> Path:
        """The file that names the checkpoints that count."""
        return self.root / "jobs" / str(self.job) / "latest.json"
