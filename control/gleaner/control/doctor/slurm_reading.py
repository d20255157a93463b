"""Read the output of Slurm's programs, once for all checks of Slurm."""

import re
from collections.abc import Mapping

from gleaner.control.doctor.finding import Unread
from gleaner.control.doctor.look import Look
from gleaner.control.hostlist import expanded
from gleaner.control.setup.slurm_lines import read_config, read_partitions, read_records

_LIMIT = re.compile(r"(?:(\d{1,6})-)?(\d{1,6}):(\d{2}):(\d{2})")


def config(look: Look) -> Mapping[str, str]:
    """Return the settings that slurmctld has in force, except unset ones."""
    return read_config(look.printed("scontrol", "show", "config"))


def partitions(look: Look) -> dict[str, Mapping[str, str]]:
    """Return the partitions by name."""
    shown = read_partitions(look.printed("scontrol", "--oneliner", "show", "partition"))
    return {one["PartitionName"]: one for one in shown}


def ours(look: Look) -> Mapping[str, str]:
    """Return the agents' partition."""
    name = look.settings.cluster.partition
    found = partitions(look).get(name)
    if found is None:
        raise Unread(f"there is no partition {name}")
    return found


def our_nodes(look: Look) -> list[dict[str, str]]:
    """Return the records of the nodes of the agents' partition. A reason extends to the end of its line."""
    own = nodes_in(ours(look))
    return [
        node | {"Reason": line.partition(" Reason=")[2]}
        for line in look.printed("scontrol", "--oneliner", "show", "nodes").splitlines()
        for node in read_records(line)
        if node.get("NodeName") in own
    ]


def nodes_in(partition: Mapping[str, str]) -> frozenset[str]:
    """Return the nodes of a partition."""
    words = partition.get("Nodes", "(null)")
    return frozenset(expanded("" if words == "(null)" else words))


def rows(look: Look, *words: str, columns: int) -> list[list[str]]:
    """Return the rows that `sacctmgr show` prints. Raises `Unread`, also if a row has other columns."""
    text = look.printed("sacctmgr", "--parsable2", "--noheader", "--readonly", "show", *words)
    found = [line.split("|") for line in text.splitlines() if line.strip()]
    if any(len(row) != columns for row in found):
        raise Unread("sacctmgr prints what cannot be read")
    return found


def number_in(text: str) -> int:
    """Return the whole number at the beginning of a text, or 0 if there is none.

    >>> number_in("30 sec"), number_in("UNLIMITED")
    (30, 0)
    """
    match = re.match(r"\d{1,15}", text)
    return int(match[0]) if match else 0


def seconds_in(limit: str) -> int | None:
    """Return the seconds of a time in Slurm's notation, or None if the text is not a time.

    >>> [seconds_in(limit) for limit in ("1-00:00:00", "00:01:00", "UNLIMITED")]
    [86400, 60, None]
    """
    match = _LIMIT.fullmatch(limit)
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def dotted(version: tuple[int, ...]) -> str:
    """Return a version in the usual notation."""
    return ".".join(map(str, version))
