"""The tables that `squeue` and `sinfo` print, read into the records of `snapshot`. Pure: no program is run here.

A name or a comment may hold anything that its user likes, line ends too. So each question makes up a word that ends
each field. Lines that do not have that word, and as often as there are fields, are no job. `parse_json` reads the
answers in JSON.
"""

import math
import re
from dataclasses import replace
from functools import partial

from gleaner.control.hostlist import expanded
from gleaner.control.slurm import parse_json
from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterError, SchedulerId
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot

UNSET = frozenset({"", "(null)", "N/A"})
"""The words by which Slurm says that a field has no value."""

NODE_FIELDS = ("NodeList", "StateLong", "CPUsState", "Memory", "AllocMem", "Features", "Available", "PartitionName")
"""The fields for `sinfo --Node --Format`, which prints one row for each partition that a node is in."""
JOB_FIELDS = (
    "JobArrayID", "State", "Account", "Partition", "NumCPUs", "NumTasks", "OverSubscribe", "ReqNodes", "ExcNodes",
    "NodeList", "tres-alloc", "SubmitTime", "StartTime", "EndTime", "EligibleTime", "PreemptTime", "PriorityLong",
    "Reason", "Dependency", "Feature", "restartcnt", "UserID", "admin_comment", "Comment", "Name",
)  # fmt: skip
"""The fields for `squeue --array --Format`."""

_WORDS = {
    "PLANNED": frozenset({"IDLE", "PLANNED"}),
    "DRAINED": frozenset({"IDLE", "DRAIN"}),
    "DRAINING": frozenset({"ALLOCATED", "DRAIN"}),
}
"""The long states of `sinfo` that stand for two of Slurm's words."""
_FLAGS = {
    "*": "NOT_RESPONDING", "~": "POWERED_DOWN", "#": "POWERING_UP", "!": "POWER_DOWN", "%": "POWERING_DOWN",
    "$": "MAINTENANCE", "@": "REBOOT_REQUESTED", "^": "REBOOT_ISSUED", "-": "PLANNED",
}  # fmt: skip
"""The signs that `sinfo` writes behind a node's long state (sinfo(1), NODE STATE CODES)."""
_UNITS_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMGTP]?)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
"""A whole number. A float holds each of these exactly."""


def parse_tables(nodes: str, jobs: str, word: str, *, own: int | None, read_s: float) -> Snapshot:
    """Return the snapshot in the answers of `sinfo` and `squeue`, in which each field ends with `word`.

    `own`: the uid of our user; None if only our jobs were asked for.
    """
    partitions: dict[str, set[str]] = {}
    once: dict[str, list[str]] = {}
    closed: dict[str, str] = {}
    for fields in _rows(nodes, word, len(NODE_FIELDS), "sinfo"):
        partitions.setdefault(fields[0], set()).add(fields[-1])
        once.setdefault(fields[0], fields)
        if fields[-2] != "up":
            closed[fields[-1]] = fields[-2]
    read, gaps = parse_json.read_each(once.values(), _node_of, lambda fields: f"node {fields[0]}")
    there = {node.name: replace(node, partitions=frozenset(partitions[node.name])) for node in read}
    rows = _rows(jobs, word, len(JOB_FIELDS), "squeue")

    def is_agent(fields: list[str]) -> bool:
        return _is_own(fields, own) and fields[-1].startswith(AGENT_PREFIX)

    def name(fields: list[str]) -> str:
        return f"agent {fields[-1]}" if is_agent(fields) else f"job {fields[0]}"

    found, job_gaps = parse_json.read_each(rows, partial(_job_of, own=own), name, is_needed=is_agent)
    return Snapshot(read_s, there, tuple(found), "; ".join(filter(None, (gaps, job_gaps))), closed)


def state_words(shown: str) -> frozenset[str]:
    """Return a node's states, from the long state that `sinfo` shows.

    >>> sorted(state_words("idle~")), sorted(state_words("draining")), sorted(state_words("planned"))
    (['IDLE', 'POWERED_DOWN'], ['ALLOCATED', 'DRAIN'], ['IDLE', 'PLANNED'])
    """
    base = shown.rstrip("".join(_FLAGS) + "+")
    words = _WORDS.get(base.upper(), frozenset({base.upper()}))
    return words | {_FLAGS.get(flag, flag) for flag in shown[len(base) :]}


def features_of(text: str) -> frozenset[str]:
    """Return a node's features, as Slurm lists them.

    >>> sorted(features_of("amd,fast")), features_of("(null)")
    (['amd', 'fast'], frozenset())
    """
    return frozenset() if text in UNSET else frozenset(text.split(","))


def parse_ids(answer: str) -> list[SchedulerId]:
    """Return the job ids in an answer of `squeue --format=%i`."""
    ids = answer.split()
    for id_ in ids:
        if not _NUMBER.fullmatch(id_):
            raise ClusterError(f"squeue said {id_!r} where a job id was expected")
    return [SchedulerId(id_) for id_ in ids]


def parse_submitted(answer: str) -> SchedulerId:
    """Return the job id in sbatch's answer.

    >>> parse_submitted("4711;cluster")
    '4711'
    """
    id_ = answer.strip().partition(";")[0]
    if not _NUMBER.fullmatch(id_):
        raise ClusterError(f"sbatch said {answer.strip()[:80]!r} where a job id was expected")
    return SchedulerId(id_)


def _rows(answer: str, word: str, count: int, program: str) -> list[list[str]]:
    """Return the fields of each row. A field may go over several lines."""
    pieces = answer.split(word)
    if len(pieces) % count != 1 or pieces[-1].strip():
        raise ClusterError(
            f"{program} said {answer[:80]!r}: {len(pieces) - 1} fields where a multiple of {count} was expected"
        )
    return [[field.strip() for field in pieces[at : at + count]] for at in range(0, len(pieces) - 1, count)]


def _node_of(fields: list[str]) -> SlurmNode:
    name, state, cpus, memory, allocated, features, *_ = fields
    parts = cpus.split("/")
    if len(parts) != 4:
        raise ValueError(f"{cpus[:40]!r}, where allocated/idle/other/total CPUs were expected")
    return SlurmNode(
        name=name,
        partitions=frozenset(),
        states=state_words(state),
        state=state,
        cpus=_whole(parts[3]),
        idle_cpus=_whole(parts[1]),
        memory_mib=_whole(memory),
        allocated_mib=_whole(allocated),
        features=features_of(features),
    )


def _is_own(fields: list[str], own: int | None) -> bool:
    return own is None or fields[JOB_FIELDS.index("UserID")] == str(own)


def _job_of(fields: list[str], own: int | None) -> SlurmJob:
    (id_, state, account, partition, cpus, tasks, shared, wanted, unwanted, hosts, tres, submitted, start, end, begins,
     preempted, priority, reason, dependency, constraint, restarts, _, admin, comment, name) = fields  # fmt: skip
    asked = dict(part.split("=", 1) for part in tres.split(",") if "=" in part)
    return SlurmJob(
        id=id_,
        name=name,
        is_own=_is_own(fields, own),
        account=account,
        partitions=tuple(partition.split(",")),
        states=frozenset({state}),
        nodes=tuple(expanded(hosts)),
        cpus=_whole(cpus),
        memory_mib=_mib(asked.get("mem", "0")),
        nodes_at_least=max(1, _whole(asked.get("node", "1"))),
        tasks=max(1, _whole(tasks)),
        is_exclusive=shared == "NO",
        wanted_nodes=tuple(expanded(wanted)),
        unwanted_nodes=tuple(expanded(unwanted)),
        constraint=_text(constraint),
        dependency=_text(dependency),
        priority=_whole(priority),
        reason=reason,
        comment=_text(comment),
        admin_comment=_text(admin),
        restarts=_whole(restarts),
        submitted_s=_whole(submitted),
        begins_s=_instant(begins),
        preempted_s=_instant(preempted),
        start_s=_instant(start),
        end_s=_instant(end),
    )


def _mib(text: str) -> int:
    """Return an amount of memory, as Slurm writes it.

    >>> _mib("4000M"), _mib("1.50G"), _mib("0")
    (4000, 1536, 0)
    """
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:40]!r}, where an amount of memory was expected")
    return math.ceil(float(found[1]) * _UNITS_MIB[found[2].upper()])


def _text(text: str) -> str:
    return "" if text in UNSET else text


def _whole(text: str) -> int:
    digits = text.rstrip("+")  # sinfo marks values that differ within a group
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{text[:40]!r}, where a number was expected")
    return int(digits)


def _instant(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
