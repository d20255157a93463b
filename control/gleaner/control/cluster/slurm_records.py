"""What `scontrol show ... --json` says of a job and of nodes (Slurm 23.02 and newer). Pure: no program is run here.

JSON, because a job's name or comment is its owner's and may hold anything, line ends too.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gleaner.control.cluster.gateway import GatewayError

_FINAL = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "LAUNCH_FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "REVOKED", "TIMEOUT",
    }
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class JobRecord:
    """One job, or one task of an array, as far as anybody decides by it."""

    name: str
    """As people write it: 4711, or 4711_3 for a task of an array."""
    partitions: tuple[str, ...]
    states: frozenset[str]
    priority: int
    reason: str
    comment: str
    admin_comment: str
    nice: int
    restarts: int
    can_requeue: bool
    is_batch: bool
    submitted_s: int | None = None
    """When it was submitted, or put back into the queue."""

    @property
    def is_pending(self) -> bool:
        """Whether it waits, held or not, and nothing of it is left on a node from an earlier start."""
        return "PENDING" in self.states and "COMPLETING" not in self.states

    @property
    def is_running(self) -> bool:
        """Whether it computes now."""
        return "RUNNING" in self.states and "COMPLETING" not in self.states

    @property
    def has_ended(self) -> bool:
        """Whether it is over for good."""
        return bool(self.states & _FINAL)


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """One node."""

    name: str
    partitions: frozenset[str]
    states: frozenset[str]
    reason: str
    reason_by: str


def ask_job(name: str) -> tuple[str, ...]:
    """All that is known of a job."""
    return ("scontrol", "show", "job", name, "--json")


def ask_all_nodes() -> tuple[str, ...]:
    """All that is known of all nodes."""
    return ("scontrol", "show", "nodes", "--json")


def ask_nodes(names: Sequence[str]) -> tuple[str, ...]:
    """All that is known of these nodes."""
    return ("scontrol", "show", "nodes", ",".join(names), "--json")


def job(answer: str, name: str) -> JobRecord | None:
    """The job of this name in the answer to `scontrol show job`; None if Slurm does not know it.

    For a task of an array Slurm lists all records of the array; tasks that have not been told apart share one.
    """
    id_, _, task = name.partition("_")
    for one in _listed(answer, "jobs"):
        array = _number(one["array_job_id"]) or 0
        is_it = _is_task(one, int(task)) and str(array) == id_ if task else not array and str(one["job_id"]) == id_
        if is_it:
            return _job(name, one)
    return None


def is_array(answer: str) -> bool:
    """Whether the answer to `scontrol show job` is about tasks of an array."""
    return any(_number(one["array_job_id"]) for one in _listed(answer, "jobs"))


def nodes(answer: str) -> dict[str, NodeRecord]:
    """Each node in the answer to `scontrol show nodes`."""
    return {
        one["name"]: NodeRecord(
            name=one["name"],
            partitions=frozenset(one["partitions"]),
            states=_states(one["state"]),
            reason=one.get("reason", ""),
            reason_by=one.get("reason_set_by_user", ""),
        )
        for one in _listed(answer, "nodes")
    }


def tasks(text: str) -> set[int]:
    """The tasks in a list like Slurm's.

    >>> sorted(tasks("1,3-5,10-20:5%2"))
    [1, 3, 4, 5, 10, 15, 20]
    """
    found: set[int] = set()
    for part in filter(None, text.partition("%")[0].split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def _job(name: str, one: Mapping[str, Any]) -> JobRecord:
    return JobRecord(
        name=name,
        partitions=tuple(one["partition"].split(",")),
        states=_states(one["job_state"]),
        priority=_number(one["priority"]) or 0,
        reason=one["state_reason"],
        comment=one["comment"] or "",
        admin_comment=one["admin_comment"] or "",
        nice=_number(one["nice"]) or 0,
        restarts=_number(one["restart_cnt"]) or 0,
        can_requeue=bool(one["requeue"]),
        is_batch=bool(one["batch_flag"]),
        submitted_s=_number(one.get("submit_time")),
    )


def _is_task(one: Mapping[str, Any], task: int) -> bool:
    number = _number(one["array_task_id"])
    return number == task if number is not None else task in tasks(one["array_task_string"])


def _listed(answer: str, what: str) -> list[dict[str, Any]]:
    try:
        found: list[dict[str, Any]] = json.loads(answer)[what]
    except (ValueError, KeyError, TypeError) as error:
        raise GatewayError(f"scontrol said {answer[:80]!r} where JSON with {what} was expected") from error
    return found


def _states(given: str | list[str]) -> frozenset[str]:
    return frozenset([given] if isinstance(given, str) else given)


def _number(given: int | Mapping[str, Any] | None) -> int | None:
    """Slurm's numbers are objects, plain ones in older versions."""
    if given is None or isinstance(given, int):
        return given
    return int(given["number"]) if given["set"] else None
