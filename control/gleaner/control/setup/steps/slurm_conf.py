"""The lines of slurm.conf that Gleaner needs, as a minimal change of a site's own file. Pure.

A line that is right already stays. One that has to change stays above ours, as a comment. What is missing comes at the
end.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from gleaner.control.setup.steps.text_edits import replaced, with_block

EPILOG = "/usr/local/libexec/gleaner/epilog.sh"
PARTITION = "gleaner"
REGULAR_TIER = 10
_OWN_TIER = 1
_LEAST_ENFORCED = ("associations", "limits", "qos")
_MEMORY_KEYS = ("defmempercpu", "defmempernode")


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that differ between sites."""

    account: str
    memory_per_cpu_mib: int


@dataclass(frozen=True, slots=True)
class _Key:
    """A key of slurm.conf: the value for a file without it, and the value for a file that has another."""

    name: str
    value: str
    mended: Callable[[str], str]


def _keys(wanted: Wanted) -> tuple[_Key, ...]:
    def is_(value: str) -> Callable[[str], str]:
        return lambda _: value

    def with_words(*words: str) -> Callable[[str], str]:
        return lambda found: ",".join(dict.fromkeys((*filter(None, found.split(",")), *words)))

    return (
        _Key("SelectType", "select/cons_tres", is_("select/cons_tres")),
        _Key(
            "SelectTypeParameters",
            "CR_Core_Memory",
            _with_memory,
        ),
        _Key("DefMemPerCPU", str(wanted.memory_per_cpu_mib), lambda found: found),
        _Key("SchedulerType", "sched/backfill", is_("sched/backfill")),
        _Key("PreemptType", "preempt/partition_prio", is_("preempt/partition_prio")),
        _Key("PreemptMode", "REQUEUE", lambda found: found if "requeue" in found.lower() else "REQUEUE"),
        _Key("PreemptParameters", "send_user_signal", with_words("send_user_signal")),
        _Key("Epilog", EPILOG, lambda found: found),
        _Key("AccountingStorageEnforce", ",".join(_LEAST_ENFORCED), _enforced),
    )


def _with_memory(found: str) -> str:
    if "_memory" in found.lower():
        return found
    new = re.sub(r"\bCR_(core|cpu|socket)\b", r"CR_\1_Memory", found, flags=re.IGNORECASE)
    return new if new != found else "CR_Core_Memory"


def _enforced(found: str) -> str:
    words = [word for word in found.split(",") if word and word.lower() != "none"]
    known = {word.lower() for word in words}
    if known & {"all", "1"}:
        return found
    return ",".join((*words, *(word for word in _LEAST_ENFORCED if word not in known)))


def edit(wanted: Wanted) -> Callable[[str], str]:
    """Return the edit of a slurm.conf that has none of our lines."""

    def change(text: str) -> str:
        keys = {key.name.lower(): key for key in _keys(wanted)}
        lines: list[str] = []
        seen: set[str] = set()
        defaults: dict[str, str] = {}
        for line in text.split("\n"):
            name, value = _assignment(line)
            key = keys.get(name)
            seen.add(name)
            new = line
            if name == "partitionname":
                new = _partition(line, value, defaults)
                seen |= {f"partition {value.lower()}"}
            elif key is not None:
                right = key.mended(value)
                new = line if right.lower() == value.lower() else f"{key.name}={right}"
            lines += [line] if new == line or line.endswith("\\") else replaced(line, new)
        if seen & {*_MEMORY_KEYS}:
            seen |= {*_MEMORY_KEYS}
        missing = [f"{key.name}={key.value}" for name, key in keys.items() if name not in seen]
        if f"partition {PARTITION}" not in seen:
            missing.append(
                f"PartitionName={PARTITION} Nodes=ALL Default=NO MaxTime=1-00:00:00 PriorityTier={_OWN_TIER} "
                f"PreemptMode=REQUEUE GraceTime=120 AllowAccounts={wanted.account} AllowQos=gleaner State=UP"
            )
        return with_block("\n".join(lines), missing)

    return change


def _assignment(line: str) -> tuple[str, str]:
    """Return the first key of a line, in lower case, and its value; two empty texts for a comment.

    >>> _assignment(" SelectType = select/linear # old")
    ('selecttype', 'select/linear')
    """
    match = re.match(r"\s*([A-Za-z]\w*)\s*=\s*([^\s#]*)", line)
    return (match[1].lower(), match[2]) if match else ("", "")


def _partition(line: str, name: str, defaults: dict[str, str]) -> str:
    """Return the line of a partition: one of regular jobs is above the agents' tier, and nobody preempts it.

    What `PartitionName=DEFAULT` says counts for the lines after it, and is noted in `defaults`.
    """
    bare = line.split("#", maxsplit=1)[0]
    own = {key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", bare)}
    if name.lower() == "default":
        defaults |= own
        return line
    if name.lower() == PARTITION:
        return line
    values = defaults | own
    tier: str = values.get("prioritytier") or values.get("priority") or ""
    new = bare.rstrip()
    if not tier.isdigit() or int(tier) <= _OWN_TIER:
        new = re.sub(r"\s+PriorityTier\s*=\s*\S+", "", new, flags=re.IGNORECASE) + f" PriorityTier={REGULAR_TIER}"
    if "preemptmode" not in values:
        new += " PreemptMode=OFF"
    return line if new == bare.rstrip() else new


def remarks(text: str) -> tuple[str, ...]:
    """Return what has to be done by hand in a slurm.conf that has none of our lines, a line each."""
    found = [_assignment(line) for line in text.split("\n")]
    said: list[str] = []
    if others := [value for name, value in found if name == "epilog" and value != EPILOG]:
        said.append(f"slurm.conf has the Epilog {others[0]}: let it call {EPILOG}")
    keys = {key.name.lower() for key in _keys(Wanted("", 1))} | {"partitionname"}
    broken = [line for line in text.split("\n") if line.endswith("\\") and _assignment(line)[0] in keys]
    said += [f"slurm.conf: look at the line {line[:60]!r} by hand: it goes on in the next" for line in broken]
    return tuple(said)
