"""The admin's settings for the programs on Slurm's side: the owners' partitions, their classes, the heartbeat.

They are in one small text file that only root can write. slurmctld's job_submit.lua and the dead man's switch read the
same file. The account of the control program cannot write it, and therefore cannot extend the rights that the Slurm
admin service grants to control.
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
    """The file is missing or invalid, or users other than root can write it. The text is one line."""


@dataclass(frozen=True, slots=True)
class SlurmAdminSettings:
    """The validated settings."""

    control: str
    """The account of control, the only one whose requests the Slurm admin service accepts."""
    socket: Path
    heartbeat: Path
    partitions: Mapping[str, frozenset[str]]
    """The classes that each of the owners' partitions accepts. Jobs in these partitions are held for us."""
    drained: frozenset[str] = frozenset()
    """The partitions whose nodes can be drained, besides the owners' partitions."""
    fresh_for_s: float = 60
    dead_after_s: float = 300
    drain_at_most: float = 20
    """The greatest number of nodes that we keep drained at any one time."""
    drains_per_hour: float = 100
    """The greatest number of nodes that we drain in an hour, including those that have already been resumed."""


def load(path: Path = FILE) -> SlurmAdminSettings:
    """Return the settings in the file. Raises `WrongSettings`."""
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

    A line is a key word and its values, as in `partition shared non-preemptible preemptible`. A comment begins with #.
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
