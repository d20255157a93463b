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
_FIRST = re.compile(r"\s*([A-Za-z]\w*)\s*=\s*([^\s]*)")


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
        walk = _Walk(wanted)
        lines = [line for statement in _statements(text) for line in walk.mended(statement)]
        return with_block("\n".join(lines), walk.missing())

    return change


def remarks(text: str) -> tuple[str, ...]:
    """Return what has to be done by hand in a slurm.conf that has none of our lines, a line each."""
    walk = _Walk(Wanted("", 1))
    for statement in _statements(text):
        walk.mended(statement)
    return tuple(walk.said)


class _Walk:
    """A way through a slurm.conf, from its first statement to the last."""

    def __init__(self, wanted: Wanted) -> None:
        self._wanted = wanted
        self._keys = {key.name.lower(): key for key in _keys(wanted)}
        self._seen: set[str] = set()
        self._defaults: dict[str, str] = {}
        self.said: list[str] = []

    def mended(self, statement: list[str]) -> list[str]:
        """Return the lines that stand for those of a statement. One of several lines stays as it is."""
        code = _joined(statement)
        new = self._mended_code(code)
        if new == code:
            return statement
        line = statement[0]
        if _goes_on(line):
            self.said.append(f"slurm.conf: look at the line {line[:60]!r} by hand: it goes on in the next")
            return statement
        return replaced(line, new + line[len(code) :])

    def _mended_code(self, code: str) -> str:
        match = _FIRST.match(code)
        if match is None:
            return code
        name, value = match[1].lower(), match[2]
        self._seen.add(name)
        if name == "partitionname":
            self._seen.add(f"partition {value.lower()}")
            return _partition(code, value, self._defaults)
        if name == "epilog" and value != EPILOG:
            self.said.append(f"slurm.conf has the Epilog {value}: let it call {EPILOG}")
        if name not in self._keys:
            return code
        key = self._keys[name]
        right = key.mended(value)
        return code if right.lower() == value.lower() else f"{key.name}={right}"

    def missing(self) -> list[str]:
        """Return the lines that no statement until now makes needless."""
        seen = self._seen | ({*_MEMORY_KEYS} if self._seen & {*_MEMORY_KEYS} else set())
        missing = [f"{key.name}={key.value}" for name, key in self._keys.items() if name not in seen]
        if f"partition {PARTITION}" not in seen:
            missing.append(
                f"PartitionName={PARTITION} Nodes=ALL Default=NO MaxTime=1-00:00:00 PriorityTier={_OWN_TIER} "
                f"PreemptMode=REQUEUE GraceTime=120 AllowAccounts={self._wanted.account} AllowQos=gleaner State=UP"
            )
        return missing


def _code(line: str) -> str:
    """Return a line without its comment."""
    return re.split(r"(?<!\\)#", line, maxsplit=1)[0]


def _goes_on(line: str) -> bool:
    """Return True if the next line belongs to this one, as Slurm reads it: a backslash is the last of it."""
    code = _code(line).rstrip()
    return (len(code) - len(code.rstrip("\\"))) % 2 == 1


def _statements(text: str) -> list[list[str]]:
    r"""Return the lines of a text; those that Slurm reads as one are together.

    >>> _statements("a=1\nb=2 \\\n c=3\n")
    [['a=1'], ['b=2 \\', ' c=3'], ['']]
    """
    found: list[list[str]] = [[]]
    for line in text.split("\n"):
        found[-1].append(line)
        if not _goes_on(line):
            found.append([])
    return [statement for statement in found if statement]


def _joined(statement: list[str]) -> str:
    codes = [_code(line) for line in statement]
    return "".join(code.rstrip()[:-1] if _goes_on(code) else code for code in codes)


def _partition(code: str, name: str, defaults: dict[str, str]) -> str:
    """Return the line of a partition: one of regular jobs is above the agents' tier, and nobody preempts it.

    What `PartitionName=DEFAULT` says counts for the lines after it, and is noted in `defaults`.
    """
    own = {key.lower(): value for key, value in re.findall(r"(\w+)\s*=\s*(\S+)", code)}
    if name.lower() == "default":
        defaults |= own
        return code
    if name.lower() == PARTITION:
        return code
    values = defaults | own
    tier: str = values.get("prioritytier") or values.get("priority") or ""
    bare = code.rstrip()
    new = bare
    if not tier.isdigit() or int(tier) <= _OWN_TIER:
        new = re.sub(r"\s+PriorityTier\s*=\s*\S+", "", new, flags=re.IGNORECASE) + f" PriorityTier={REGULAR_TIER}"
    if "preemptmode" not in values:
        new += " PreemptMode=OFF"
    return new + code[len(bare) :]
