"""The queries to `sinfo` and `squeue`, and the parsing of their answers into the records of `snapshot`. This module is
pure.

Users can put any text into a name or a comment, including line ends. Therefore each query chooses a random word that
ends each field. A line counts as a record only if it contains this word exactly once for each field. The fields that
users can write come last, so a forged record within them comes after the true one. Slurm can also answer in JSON, but
such answers are 14 times as long and take `squeue` 50 times as much time.

The privileged process imports this module, so the module needs only the standard library and `snapshot`.
"""

import math
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

from gleaner.control.hostlist import expanded
from gleaner.control.slurm.interface import AGENT_PREFIX, ClusterError, SchedulerId
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode, Snapshot

Given = TypeVar("Given")
Read = TypeVar("Read")
Record = Mapping[str, str]
"""The fields of a node or of a job, by Slurm's names."""

_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""The exceptions that occur when a malformed record is read."""
_LONGEST_LINE = 300
_UNSET = frozenset({"", "(null)", "N/A", "none"})
"""Slurm's words for a field without a value."""

NODE_FIELDS = (
    "NodeList", "StateComplete", "CPUsState", "Memory", "AllocMem", "Features", "Available", "PartitionName", "User",
    "Reason",
)  # fmt: skip
"""The fields for `sinfo --Node --Format`, which prints one row for each partition of a node."""
JOB_FIELDS = (
    "JobArrayID", "State", "Account", "Partition", "NumCPUs", "NumTasks", "OverSubscribe", "ReqNodes", "ExcNodes",
    "NodeList", "tres-alloc", "SubmitTime", "StartTime", "EndTime", "EligibleTime", "PreemptTime", "PriorityLong",
    "Nice", "Requeue", "BatchFlag", "Reason", "Dependency", "Feature", "restartcnt", "UserID", "UserName",
    "admin_comment", "Comment", "Name",
)  # fmt: skip
"""The fields for `squeue --array --Format`."""

_UNITS_MIB = {"K": 1 / 1024, "": 1, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}
_SIZE = re.compile(r"(\d{1,15}(?:\.\d{1,15})?)([KMGTP]?)", re.ASCII | re.IGNORECASE)
_NUMBER = re.compile(r"\d{1,15}", re.ASCII)
"""A whole number, small enough for a float to represent it exactly."""


def new_word() -> str:
    """Return a random word. It does not begin with a digit, because Slurm would read a digit as a column's width."""
    return "x" + secrets.token_hex(8)


def ask_nodes_in(word: str, partitions: Sequence[str]) -> tuple[str, ...]:
    """Return the query for all nodes of these partitions."""
    return _ask_nodes(word, f"--partition={','.join(partitions)}")


def ask_nodes(word: str, nodes: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the query for all nodes, or for those with these names. Slurm skips unknown names."""
    return _ask_nodes(word, "--all", *([f"--nodes={','.join(nodes)}"] if nodes else []))


def _ask_nodes(word: str, *among: str) -> tuple[str, ...]:
    return ("sinfo", "--noheader", "--Node", *among, _format(NODE_FIELDS, word))


def ask_jobs(word: str, *among: str) -> tuple[str, ...]:
    """Return the query for the jobs that these options of squeue select. Each task of an array is a separate job."""
    return ("squeue", "--noheader", "--array", *among, _format(JOB_FIELDS, word))


def ask_job(word: str, job: str) -> tuple[str, ...]:
    """Return the query for one job or for all tasks of an array. It also finds a job that ended minutes ago
    (MinJobAge)."""
    return ask_jobs(word, f"--jobs={job}", "--states=all")


def _format(fields: Sequence[str], word: str) -> str:
    return "--Format=" + ",".join(f"{field}:{word}" for field in fields)


def parse_tables(nodes: str, jobs: str, word: str, *, own: int | None = None, read_s: float = 0.0) -> Snapshot:
    """Return the snapshot from the answers of `sinfo` and `squeue`, in which each field ends with `word`.

    `own` is the uid of our user, or None if only our jobs were requested or if their user does not matter.
    """
    rows = (_records(nodes, word, NODE_FIELDS, "sinfo"), _records(jobs, word, JOB_FIELDS, "squeue"))
    return snapshot_of(*rows, own=own, read_s=read_s)


def parse_job(answer: str, word: str, job: str) -> SlurmJob | None:
    """Return the job with this id from the answer to `ask_job`, or None if it is missing.

    Raises `ClusterError` if it is missing and a record is unreadable.
    """
    found = parse_tables("", answer, word)
    if (known := next((one for one in found.jobs if one.id == job), None)) is None and found.gaps:
        raise ClusterError(found.gaps)
    return known


def snapshot_of(nodes: Iterable[Record], jobs: Iterable[Record], *, own: int | None, read_s: float) -> Snapshot:
    """Return the snapshot from these records (see `parse_tables`)."""
    partitions: dict[str, set[str]] = {}
    once: dict[str, Record] = {}
    closed: dict[str, str] = {}
    for node in nodes:
        partitions.setdefault(node["NodeList"], set()).add(node["PartitionName"])
        once.setdefault(node["NodeList"], node)
        if node["Available"] != "up":
            closed[node["PartitionName"]] = node["Available"]
    read, gaps = _read_each(once.values(), _node_of, lambda node: f"node {node['NodeList']}")
    there = {node.name: replace(node, partitions=frozenset(partitions[node.name])) for node in read}

    def is_agent(record: Record) -> bool:
        return _is_own(record, own) and record["Name"].startswith(AGENT_PREFIX)

    def name(record: Record) -> str:
        return f"agent {record['Name']}" if is_agent(record) else f"job {record['JobArrayID']}"

    found, job_gaps = _read_each(jobs, partial(_job_of, own=own), name, is_needed=is_agent)
    return Snapshot(read_s, there, tuple(found), "; ".join(filter(None, (gaps, job_gaps))), closed)


def _read_each(
    records: Iterable[Given],
    read: Callable[[Given], Read],
    name: Callable[[Given], str],
    *,
    is_needed: Callable[[Given], bool] = lambda _: False,
) -> tuple[list[Read], str]:
    """Return the parsed records, and a line about the unreadable ones, which are left out.

    `name` identifies a record. Raises `ClusterError` if an unreadable record is needed, because an agent that is left
    out would count as gone.
    """
    found: list[Read] = []
    lines: list[str] = []
    for one in records:
        try:
            found.append(read(one))
        except _UNREADABLE as error:
            line = f"Slurm said of {name(one)} what cannot be read: {error}"[:_LONGEST_LINE]
            if is_needed(one):
                raise ClusterError(line) from error
            lines.append(line)
    more = f" (and of {len(lines) - 1} more)" if len(lines) > 1 else ""
    return found, f"{lines[0]}{more}" if lines else ""


def parse_ids(answer: str) -> list[SchedulerId]:
    """Return the job ids from the output of `squeue --format=%i`."""
    ids = answer.split()
    for id_ in ids:
        if not _NUMBER.fullmatch(id_):
            raise ClusterError(f"squeue said {id_!r} where a job id was expected")
    return [SchedulerId(id_) for id_ in ids]


def parse_submitted(answer: str) -> SchedulerId:
    """Return the job id from sbatch's output.

    >>> parse_submitted("4711;cluster")
    '4711'
    """
    id_ = answer.strip().partition(";")[0]
    if not _NUMBER.fullmatch(id_):
        raise ClusterError(f"sbatch said {answer.strip()[:80]!r} where a job id was expected")
    return SchedulerId(id_)


def _records(answer: str, word: str, fields: Sequence[str], program: str) -> list[Record]:
    """Return the records of a table. A field can contain several lines."""
    pieces, count = answer.split(word), len(fields)
    if len(pieces) % count != 1 or pieces[-1].strip():
        raise ClusterError(
            f"{program} said {answer[:80]!r}: {len(pieces) - 1} fields where a multiple of {count} was expected"
        )
    texts = [piece.strip() for piece in pieces]
    return [dict(zip(fields, texts[at : at + count], strict=True)) for at in range(0, len(pieces) - 1, count)]


def _node_of(node: Record) -> SlurmNode:
    cpus = node["CPUsState"].split("/")
    if len(cpus) != 4:
        raise ValueError(f"{node['CPUsState'][:40]!r}, where allocated/idle/other/total CPUs were expected")
    return SlurmNode(
        name=node["NodeList"],
        partitions=frozenset(),
        states=frozenset(node["StateComplete"].upper().split("+")),
        state=node["StateComplete"],
        cpus=_whole(cpus[3]),
        idle_cpus=_whole(cpus[1]),
        memory_mib=_whole(node["Memory"]),
        allocated_mib=_whole(node["AllocMem"]),
        features=frozenset(filter(None, _text(node["Features"]).split(","))),
        reason=_text(node["Reason"]),
        reason_by=_text(node["User"]),
    )


def _is_own(record: Record, own: int | None) -> bool:
    return own is None or record["UserID"] == str(own)


def _job_of(record: Record, own: int | None) -> SlurmJob:
    asked = dict(part.split("=", 1) for part in record["tres-alloc"].split(",") if "=" in part)
    return SlurmJob(
        id=record["JobArrayID"],
        name=record["Name"],
        user=record["UserName"],
        is_own=_is_own(record, own),
        account=record["Account"],
        partitions=tuple(record["Partition"].split(",")),
        states=frozenset({record["State"]}),
        nodes=tuple(expanded(record["NodeList"])),
        cpus=_whole(record["NumCPUs"]),
        memory_mib=_mib(asked.get("mem", "0")),
        nodes_at_least=max(1, _whole(asked.get("node", "1"))),
        tasks=max(1, _whole(record["NumTasks"])),
        is_exclusive=record["OverSubscribe"] == "NO",
        wanted_nodes=tuple(expanded(record["ReqNodes"])),
        unwanted_nodes=tuple(expanded(record["ExcNodes"])),
        constraint=_text(record["Feature"]),
        dependency=_text(record["Dependency"]),
        priority=_whole(record["PriorityLong"]),
        nice=int(record["Nice"]),
        reason=record["Reason"],
        comment=_text(record["Comment"]),
        admin_comment=_text(record["admin_comment"]),
        restarts=_whole(record["restartcnt"]),
        can_requeue=record["Requeue"] == "1",
        is_batch=record["BatchFlag"] == "1",
        submitted_s=_whole(record["SubmitTime"]),
        begins_s=_instant(record["EligibleTime"]),
        preempted_s=_instant(record["PreemptTime"]),
        start_s=_instant(record["StartTime"]),
        end_s=_instant(record["EndTime"]),
    )


def _mib(text: str) -> int:
    """Return an amount of memory from Slurm's notation.

    >>> _mib("4000M"), _mib("1.50G"), _mib("0")
    (4000, 1536, 0)
    """
    found = _SIZE.fullmatch(text)
    if not found:
        raise ValueError(f"{text[:40]!r}, where an amount of memory was expected")
    return math.ceil(float(found[1]) * _UNITS_MIB[found[2].upper()])


def _text(text: str) -> str:
    return "" if text in _UNSET else text


def _whole(text: str) -> int:
    digits = text.rstrip("+")  # sinfo marks values that differ within a group
    if not _NUMBER.fullmatch(digits):
        raise ValueError(f"{text[:40]!r}, where a number was expected")
    return int(digits)


def _instant(text: str) -> float | None:
    return float(text) if _NUMBER.fullmatch(text) else None
