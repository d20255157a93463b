"""The admin's settings for the programs beside Slurm: the owners' partitions, their classes, the heartbeat.

They are in one small text file that only root may write. slurmctld's job_submit.lua and the dead man's switch read the
same file. The account of the control program cannot write it, so that account cannot widen what the Slurm admin service
does for control.
"""

import os
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from gleaner.control.slurm.snapshot import CLASSES

FILE = Path("/etc/gleaner/slurm-admin.conf")

_NUMBERS = {
    "fresh-for-s": "fresh_for_s",
    "dead-after-s": "dead_after_s",
    "drain-at-most": "drain_at_most",
    "drains-per-hour": "drains_per_hour",
}
_NUMBER = re.compile(r"0*[1-9][0-9]{0,8}")
_TEXTS = ("control", "socket", "heartbeat")


class WrongSettings(Exception):
    """The file is missing or wrong, or somebody other than root could write it; the text is one line."""


@dataclass(frozen=True, slots=True)
class SlurmAdminSettings:
    """The settings, checked."""

    control: str
    """The account that control runs as: the only account that the Slurm admin service listens to."""
    socket: Path
    heartbeat: Path
    partitions: Mapping[str, frozenset[str]]
    """The classes that each of the owners' partitions takes. Jobs in these partitions are held for us."""
    drained: frozenset[str] = frozenset()
    """Nodes of these partitions may be drained, besides those of the owners' partitions."""
    fresh_for_s: float = 60
    dead_after_s: float = 300
    drain_at_most: float = 20
    """The most nodes that are drained by us at one time."""
    drains_per_hour: float = 100
    """The most nodes that are drained by us in an hour, those that were set back meanwhile included."""


def load(path: Path = FILE) -> SlurmAdminSettings:
    """Return the file's settings. Raises `WrongSettings`."""
    try:
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != 0 or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise WrongSettings(f"{path} must be root's, and nobody else's to write: chown root, chmod 644")
            return parse(file.read(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise WrongSettings(f"cannot read {path}: {error}") from error


def parse(text: str, path: str) -> SlurmAdminSettings:
    """Return the settings in this text. Raises `WrongSettings` with the line's number.

    A line is a key word and its values, as in `partition shared non-preemptible preemptible`; # begins a comment.
    """
    texts: dict[str, str] = {}
    numbers: dict[str, float] = {}
    partitions: dict[str, frozenset[str]] = {}
    drained: set[str] = set()
    for number, line in enumerate(text.splitlines(), start=1):
        match line.partition("#")[0].split():
            case []:
                continue
            case ["partition", name, *classes] if classes and set(classes) <= set(CLASSES):
                partitions[name] = frozenset(classes)
            case ["drain", *names] if names:
                drained |= set(names)
            case [key, value] if key in _NUMBERS and _NUMBER.fullmatch(value):
                numbers[_NUMBERS[key]] = float(value)
            case [key, value] if key in _TEXTS:
                texts[key] = value
            case _:
                raise WrongSettings(f"{path}, line {number}: {line.strip()[:80]!r} says nothing that is known here")
    for key in _TEXTS:
        if key not in texts:
            raise WrongSettings(f"{path}: there is no line {key!r}")
    return SlurmAdminSettings(
        control=texts["control"],
        socket=Path(texts["socket"]),
        heartbeat=Path(texts["heartbeat"]),
        partitions=partitions,
        drained=frozenset(drained),
        **numbers,
    )
