"""Read what Slurm's programs print, once for all checks of Slurm."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gleaner.control.doctor.finding import Unread
from gleaner.control.doctor.look import Look
from gleaner.control.hostlist import expanded
from gleaner.control.settings import ClusterSettings

_LIMIT = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class PartitionRecord:
    """A partition of Slurm."""

    name: str
    nodes: frozenset[str]
    tier: int
    values: Mapping[str, str]


def cluster(look: Look) -> ClusterSettings:
    """Return how agents are submitted. Raises `Unread` where there is no Slurm."""
    found = look.settings.cluster
    if found.backend == "local":
        raise Unread("[cluster] backend is local: there is no Slurm")
    return found


def config(look: Look) -> dict[str, str]:
    """Return the settings that slurmctld has in force."""
    cluster(look)
    lines = (line.partition("=") for line in look.printed("scontrol", "show", "config").splitlines())
    found = {key.strip(): value.strip() for key, is_there, value in lines if is_there}
    if "SelectType" not in found:
        raise Unread("scontrol show config prints what cannot be read")
    return found


def partitions(look: Look) -> dict[str, PartitionRecord]:
    """Return the partitions by name."""
    cluster(look)
    found: dict[str, PartitionRecord] = {}
    for values in records(look.printed("scontrol", "--oneliner", "show", "partition")):
        try:
            name, tier = values["PartitionName"], int(values["PriorityTier"])
            found[name] = PartitionRecord(name, nodes_in(values["Nodes"]), tier, values)
        except (LookupError, ValueError) as error:
            raise Unread("scontrol show partition prints what cannot be read") from error
    return found


def ours(look: Look) -> PartitionRecord:
    """Return the agents' partition."""
    name = cluster(look).partition
    found = partitions(look).get(name)
    if found is None:
        raise Unread(f"there is no partition {name}")
    return found


def our_nodes(look: Look) -> list[dict[str, str]]:
    """Return the records of the nodes of the agents' partition. A reason is all that follows it on its line."""
    own = ours(look)
    return [
        node | {"Reason": line.partition(" Reason=")[2]}
        for line in look.printed("scontrol", "--oneliner", "show", "nodes").splitlines()
        for node in records(line)
        if node.get("NodeName") in own.nodes
    ]


def mib_for_jobs(node: Mapping[str, str]) -> int:
    """Return the memory that a node has for jobs."""
    return number_in(node.get("RealMemory", "")) - number_in(node.get("MemSpecLimit", ""))


def records(text: str) -> Iterator[dict[str, str]]:
    """Yield the records of `scontrol --oneliner`. The first value of a key counts: a comment may hold anything."""
    for line in text.splitlines():
        found: dict[str, str] = {}
        for key, value in re.findall(r"(\w+)=(\S*)", line):
            found.setdefault(key, value)
        if found:
            yield found


def nodes_in(words: str) -> frozenset[str]:
    """Return the nodes of a list as Slurm writes it."""
    try:
        return frozenset(expanded("" if words == "(null)" else words))
    except ValueError as error:
        raise Unread("scontrol prints a list of nodes that cannot be read") from error


def rows(look: Look, *words: str, columns: int) -> list[list[str]]:
    """Return the rows that `sacctmgr show` prints. Raises `Unread` also where one has other columns."""
    cluster(look)
    text = look.printed("sacctmgr", "--parsable2", "--noheader", "--readonly", "show", *words)
    found = [line.split("|") for line in text.splitlines() if line.strip()]
    if any(len(row) != columns for row in found):
        raise Unread("sacctmgr prints what cannot be read")
    return found


def number_in(text: str) -> int:
    """Return the whole number with which a text begins; 0 if there is none.

    >>> number_in("30 sec"), number_in("UNLIMITED")
    (30, 0)
    """
    match = re.match(r"\d{1,15}", text)
    return int(match[0]) if match else 0


def seconds_in(limit: str) -> int | None:
    """Return the seconds of a time as Slurm prints it; None if it is not a time.

    >>> [seconds_in(limit) for limit in ("1-00:00:00", "00:01:00", "UNLIMITED")]
    [86400, 60, None]
    """
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def version_in(text: str) -> tuple[int, ...]:
    """Return the first version number in a text, for comparing; empty if there is none.

    >>> version_in("Version: 4.1.1"), version_in("slurm 24.11.5"), version_in("?")
    ((4, 1, 1), (24, 11, 5), ())
    """
    match = re.search(r"\d{1,6}(?:\.\d{1,6})+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it."""
    return ".".join(map(str, version))
