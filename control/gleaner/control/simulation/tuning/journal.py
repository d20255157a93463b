"""The journal of a sweep, kept on disk: one line of JSON for each outcome, appended as it comes.

A sweep that is interrupted or killed keeps all lines, except perhaps the line that it was writing. That line has no
line end, and is removed when the journal is opened again. A line's key is made of everything on which its outcome
depends, so an outcome of other inputs, or of another version of the simulator, is never taken for an answer.
"""

import fcntl
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

from gleaner.control.simulation.errors import SimulationError

Outcome = dict[str, list[float]]


class BadState(SimulationError):
    """The error for a sweep's folder or journal that cannot be used."""


def key_of(**parts: object) -> str:
    """Return the name of these inputs. Equal values give equal names, in whatever order the inputs are given.

    >>> key_of(a=1, b=[2.5]) == key_of(b=[2.5], a=1), key_of(a=1) == key_of(a=2)
    (True, False)
    """
    text = json.dumps(parts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


class Journal:
    """The outcomes of one sweep by key. One process writes the journal; a second process is refused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: BinaryIO = path.open("a+b")
        except OSError as error:
            raise BadState(f"{path}: cannot be written ({error.strerror}); --state names another folder") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.outcomes = self._read()
        except BlockingIOError as error:
            self._file.close()
            raise BadState(
                f"{path}: the same sweep is running already; wait for it, or name another --state"
            ) from error
        except BaseException:
            self._file.close()
            raise

    def add(self, key: str, outcome: Outcome) -> None:
        """Keep one more outcome. It is on its way to the disk afterwards, whatever becomes of the process.

        Raise `BadState` if the journal cannot be written.
        """
        line = json.dumps({"key": key, "outcome": outcome}, separators=(",", ":"), allow_nan=False)
        try:
            self._file.write(line.encode() + b"\n")
            self._file.flush()
        except OSError as error:
            raise BadState(f"{self.path}: cannot be written ({error.strerror})") from error
        self.outcomes[key] = outcome

    def _read(self) -> dict[str, Outcome]:
        self._file.seek(0)
        text = self._file.read()
        whole = text.rfind(b"\n") + 1
        if whole < len(text):  # a sweep was killed while it wrote this line
            os.truncate(self._file.fileno(), whole)
        outcomes: dict[str, Outcome] = {}
        for number, line in enumerate(text[:whole].splitlines(), start=1):
            try:
                entry = cast("Mapping[str, object]", json.loads(line))
                outcomes[str(entry["key"])] = _outcome(entry["outcome"])
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise BadState(f"{self.path}, line {number}: not an outcome of a sweep; remove the file") from error
        return outcomes

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def _outcome(value: object) -> Outcome:
    """Return the value as an outcome. Raise Python's own errors if the value is no outcome."""
    figures = cast("Outcome", value)
    return {name: [float(one) for one in found] for name, found in figures.items()}
