"""The lines of slurm.conf that Gleaner needs, as a minimal change of a site's own file. Pure.

A line that is right already stays. One that has to change stays above ours, as a comment. What is missing comes at the
end.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gleaner.control.setup.steps.text_edits import replaced, with_block

EPILOG = "/usr/local/libexec/gleaner/epilog.sh"
PARTITION = "gleaner"
REGULAR_TIER = 10
_OWN_TIER = 1
_LEAST_ENFORCED = ("associations", "limits", "qos")
_MEMORY_KEYS = ("defmempercpu", "defmempernode")
_RECORDS = ("nodename", "nodeset", "downnodes", "frontendname")
"""The first keys of lines whose other keys belong to them. A partition is one, too."""
_PAIR = re.compile(r"(?<!\S)([A-Za-z]\w*)\s*=\s*(\"[^\"]*\"|\S*)")
_INCLUDE = re.compile(r"\s*include\s+(\S.*?)\s*$", re.IGNORECASE)

Included = Mapping[str, str]
"""The texts of included files, by the names that stand in `Include`."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The values that differ between sites."""

    account: str
    memory_per_cpu_mib: int
    grace_s: int = 120


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


def edit(wanted: Wanted, included: Included | None = None) -> Callable[[str], str]:
    """Return the edit of a slurm.conf that has none of our lines. `included` are the files that it includes."""

    def change(text: str) -> str:
        walk = _Walk(wanted, included or {})
        lines = walk.mended_lines(text)
        return with_block("\n".join(lines), walk.missing())

    return change


def remarks(wanted: Wanted, included: Included | None = None) -> Callable[[str], tuple[str, ...]]:
    """Return what tells the things to do by hand in a slurm.conf that has none of our lines, a line each."""

    def told(text: str) -> tuple[str, ...]:
        walk = _Walk(wanted, included or {})
        walk.mended_lines(text)
        return tuple(walk.said)

    return told


def read_included(text: str, read: Callable[[str], str | None]) -> Included:
    """Return the files that a slurm.conf includes, and those that they include. `read` gives None for no file."""
    found: dict[str, str] = {}
    waiting = _included_names(text)
    while waiting:
        name = waiting.pop()
        content = None if name in found else read(name)
        if content is not None:
            found[name] = content
            waiting += _included_names(content)
    return found


def _included_names(text: str) -> list[str]:
    matches = (_INCLUDE.match(_joined(statement)) for statement in _statements(text))
    return [match[1] for match in matches if match]


class _Walk:
    """A way through a slurm.conf, from its first statement to the last."""

    def __init__(self, wanted: Wanted, included: Included) -> None:
        self._wanted = wanted
        self._keys = {key.name.lower(): key for key in _keys(wanted)}
        self._included = included
        self._seen: set[str] = set()
        self._defaults: dict[str, str] = {}
        self._inside: tuple[str, ...] = ()
        self.said: list[str] = []

    def mended_lines(self, text: str) -> list[str]:
        """Return the lines that stand for those of a text."""
        return [line for statement in _statements(text) for line in self._mended(statement)]

    def _mended(self, statement: list[str]) -> list[str]:
        """Return the lines that stand for those of a statement. One of several lines stays as it is."""
        code = _joined(statement)
        if include := _INCLUDE.match(code):
            self._include(include[1])
            return statement
        new = self._mended_code(code)
        if new == code:
            return statement
        line = statement[0]
        if self._inside:
            self.said.append(f"{self._inside[-1]}, which slurm.conf includes, needs by hand: {new.strip()}")
            return statement
        if _goes_on(line):
            self.said.append(f"slurm.conf: look at the line {line[:60]!r} by hand: it goes on in the next")
            return statement
        return replaced(line, new + line[len(code) :])

    def _include(self, name: str) -> None:
        """Note what an included file sets. One that cannot be read may set what must not stand there twice."""
        if name in self._inside:
            return
        if name not in self._included:
            self._seen |= {"epilog", *_MEMORY_KEYS}
            self.said.append(
                f"slurm.conf includes {name}, which setup cannot read: "
                f"see by hand that the Epilog calls {EPILOG}, and that DefMemPerCPU is set"
            )
            return
        self._inside = (*self._inside, name)
        self.mended_lines(self._included[name])
        self._inside = self._inside[:-1]

    def _mended_code(self, code: str) -> str:
        """Return a statement with the values that are needed. All else in it stays."""
        pairs = list(_PAIR.finditer(code))
        if not pairs:
            return code
        first, value = pairs[0][1].lower(), pairs[0][2]
        if first == "partitionname":
            self._seen.add(f"partition {value.lower()}")
            return _partition(code, value, self._defaults)
        if first in _RECORDS:
            return code
        new = code
        for pair in reversed(pairs):
            right = self._right_value(pair[1].lower(), pair[2])
            if right.lower() != pair[2].lower():
                new = f"{new[: pair.start()]}{self._keys[pair[1].lower()].name}={right}{new[pair.end() :]}"
        return new

    def _right_value(self, name: str, value: str) -> str:
        self._seen.add(name)
        if name == "epilog" and value != EPILOG:
            self.said.append(f"slurm.conf has the Epilog {value}: let it call {EPILOG}")
        return self._keys[name].mended(value) if name in self._keys else value

    def missing(self) -> list[str]:
        """Return the lines that no statement until now makes needless."""
        seen = set(self._seen)
        if seen & {*_MEMORY_KEYS}:
            seen |= {*_MEMORY_KEYS}
        missing = [f"{key.name}={key.value}" for name, key in self._keys.items() if name not in seen]
        if f"partition {PARTITION}" not in seen:
            missing.append(
                f"PartitionName={PARTITION} Nodes=ALL Default=NO MaxTime=1-00:00:00 PriorityTier={_OWN_TIER} "
                f"PreemptMode=REQUEUE GraceTime={self._wanted.grace_s} AllowAccounts={self._wanted.account} "
                "AllowQos=gleaner State=UP"
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
