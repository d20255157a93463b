"""What the admin says of governing, for the programs beside Slurm: partitions, their classes, the heartbeat.

One small text file that only root may write; slurmctld's job_submit.lua and the dead man's switch read the same one.
The account of the control program has no say in it, so it cannot widen what the steward does for it.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FILE = Path("/etc/gleaner/governed.conf")

DEFAULT_CLASS = "non-preemptible"
"""What a job is that declares nothing: nothing is ever done to it once it runs."""
PREEMPTIBLE = "preemptible"
CHECKPOINTABLE = "checkpointable"
CLASSES = (DEFAULT_CLASS, PREEMPTIBLE, CHECKPOINTABLE)

_WORD = "gleaner:"
_NUMBERS = {
    "fresh-for-s": "fresh_for_s",
    "dead-after-s": "dead_after_s",
    "drain-at-most": "drain_at_most",
    "drains-per-hour": "drains_per_hour",
}
_TEXTS = ("control", "socket", "heartbeat")


class Misconfigured(Exception):
    """The file is missing or wrong, or somebody else than root could write it; one line."""


@dataclass(frozen=True, slots=True)
class Governed:
    """The file, checked."""

    control: str
    """The account that control runs as: the only one that is listened to."""
    socket: Path
    heartbeat: Path
    partitions: Mapping[str, frozenset[str]]
    """The classes that each governed partition takes."""
    drained: frozenset[str] = frozenset()
    """Nodes of these partitions may be drained, besides those of the governed ones."""
    fresh_for_s: float = 60
    dead_after_s: float = 300
    drain_at_most: float = 20
    """So many nodes are drained by us at one time, at most."""
    drains_per_hour: float = 100
    """So many nodes are drained by us in an hour, at most, set back meanwhile or not."""


def load(path: Path = FILE) -> Governed:
    """The file. Raises `Misconfigured`."""
    try:
        with path.open(encoding="utf-8") as file:
            facts = os.fstat(file.fileno())
            if facts.st_uid != 0 or facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise Misconfigured(f"{path} must be root's, and nobody else's to write: chown root, chmod 644")
            return parse(file.read(), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise Misconfigured(f"cannot read {path}: {error}") from error


def parse(text: str, path: str) -> Governed:
    """The file's meaning. Raises `Misconfigured` with the line's number.

    A line is a word and what belongs to it, as in `partition shared non-preemptible preemptible`; # begins a remark.
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
            case [key, value] if key in _NUMBERS and value.isascii() and value.isdigit() and int(value) > 0:
                numbers[_NUMBERS[key]] = float(value)
            case [key, value] if key in _TEXTS:
                texts[key] = value
            case _:
                raise Misconfigured(f"{path}, line {number}: {line.strip()[:80]!r} says nothing that is known here")
    for key in _TEXTS:
        if key not in texts:
            raise Misconfigured(f"{path}: there is no line {key!r}")
    return Governed(
        control=texts["control"],
        socket=Path(texts["socket"]),
        heartbeat=Path(texts["heartbeat"]),
        partitions=partitions,
        drained=frozenset(drained),
        **numbers,
    )


def class_of(comment: str) -> str | None:
    """The class that a job's comment declares; None if it names one that there is not, or two.

    >>> class_of("mine gleaner:preemptible"), class_of(""), class_of("gleaner:mortal")
    ('preemptible', 'non-preemptible', None)
    """
    words = comment.replace(",", " ").replace(";", " ").split()
    declared = {word.removeprefix(_WORD) for word in words if word.startswith(_WORD)}
    if not declared:
        return DEFAULT_CLASS
    return declared.pop() if len(declared) == 1 and declared <= set(CLASSES) else None
