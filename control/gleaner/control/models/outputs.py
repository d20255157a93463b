"""The targets to which the results of jobs are delivered, and the deliveries."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import replace
from enum import StrEnum

from gleaner.agent.common.allowed_urls import TARGET_SCHEMES, Location, location
from gleaner.control.models.base import Reply


class DeliveryPhase(StrEnum):
    """The phases of a delivery."""

    WAITING = "waiting"
    TAKEN = "taken"
    """An agent is at it."""
    DELIVERED = "delivered"
    FAILED = "failed"
    """Given up. The result is in the storage all the same."""


class DeliveryRow(Reply):
    """The delivery of a job's result."""

    to: str
    phase: DeliveryPhase
    tries: int
    """The number of times that an agent has begun with it."""
    problem: str
    """Why the latest try failed; empty if it has not."""
    files: int | None
    size_bytes: int | None
    ended_s: float | None
    """The time at which all was there, or at which it was given up."""

    @property
    def trouble(self) -> str:
        """Return the problem of a delivery that has not ended, in words; "" if it has none."""
        return f"the last try failed: {self.problem}" if self.problem else ""


def listed_folders(locations: Iterable[Location]) -> list[str]:
    """Return the paths of those locations that are folders of the node.

    >>> listed_folders(map(location, ["file:///data/pub/", "https://data.example.org/pub/"]))
    ['/data/pub']
    """
    return [f"/{'/'.join(one.folders)}" for one in locations if one.scheme == "file"]


def above_groups(entry: str) -> Location:
    """Return the folder in which an entry of the allowed targets has one folder for each group. Raises `ValueError`.

    >>> above_groups("file:///data/{group}/results/").folders
    ('data',)
    """
    if entry.count("{group}") != 1 or "/{group}/" not in f"{entry}/" or "?" in entry:
        raise ValueError("needs {group} once, as the whole name of a folder: so each group has a folder of its own")
    where = location(entry)
    if where.scheme not in TARGET_SCHEMES:
        raise ValueError(f"results are delivered to {' and '.join(TARGET_SCHEMES)}")
    if "*" in where.host:
        raise ValueError("a target is on one host: write its name without *")
    return replace(where, folders=where.folders[: where.folders.index("{group}")])


def check_targets(entries: Sequence[str]) -> None:
    """Raise `ValueError` unless each group has its own folders in these allowed targets."""
    above: dict[str, Location] = {}
    for entry in entries:
        try:
            above[entry] = above_groups(entry)
        except ValueError as error:
            raise ValueError(f"{entry}: {error}") from None
    for inner, outer in itertools.permutations(above, 2):
        if above[inner] != above[outer] and above[inner].is_within(above[outer]):
            raise ValueError(f"{inner} is in the folder in which {outer} has those of the groups: use another folder")


def for_group(targets: Iterable[str], group: str) -> tuple[str, ...]:
    """Return the allowed targets for one group: `{group}` in them is its name.

    >>> for_group(["file:///data/{group}/"], "atlas")
    ('file:///data/atlas/',)
    """
    return tuple(entry.replace("{group}", group) for entry in targets)
