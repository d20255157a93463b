"""The answers of `scontrol show ... --json` on a job and on nodes (Slurm 23.02 and newer). Pure.

The answers are in JSON, since a job's name or comment is its owner's and may hold anything, line ends too. The process
with rights imports this module, so the module needs only the standard library and the records of `snapshot`.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode


def ask_job(name: str) -> tuple[str, ...]:
    """Return the question for all that Slurm knows of a job."""
    return ("scontrol", "show", "job", name, "--json")


def ask_all_nodes() -> tuple[str, ...]:
    """Return the question for all that Slurm knows of all nodes."""
    return ("scontrol", "show", "nodes", "--json")


def ask_nodes(names: Sequence[str]) -> tuple[str, ...]:
    """Return the question for all that Slurm knows of these nodes."""
    return ("scontrol", "show", "nodes", ",".join(names), "--json")


def parse_job(answer: str, name: str) -> SlurmJob | None:
    """Return the job of this name in the answer to `scontrol show job`; None if Slurm does not know it.

    For a task of an array, Slurm lists all records of the array. Tasks that Slurm has not yet split off share a record.
    """
    id_, _, task = name.partition("_")
    for one in listed(answer, "jobs", "scontrol"):
        array = number(one["array_job_id"]) or 0
        is_it = _is_task(one, int(task)) and str(array) == id_ if task else not array and str(one["job_id"]) == id_
        if is_it:
            return job_record(name, one)
    return None


def is_array(answer: str) -> bool:
    """Return True if the answer to `scontrol show job` is about tasks of an array."""
    return any(number(one["array_job_id"]) for one in listed(answer, "jobs", "scontrol"))


def parse_nodes(answer: str) -> dict[str, SlurmNode]:
    """Return each node in the answer to `scontrol show nodes`."""
    return {
        one["name"]: SlurmNode(
            name=one["name"],
            partitions=frozenset(one["partitions"]),
            states=states(one["state"]),
            reason=one.get("reason", ""),
            reason_by=one.get("reason_set_by_user", ""),
        )
        for one in listed(answer, "nodes", "scontrol")
    }


def tasks(text: str) -> set[int]:
    """Return the numbers of the tasks in a list as Slurm writes it.

    >>> sorted(tasks("1,3-5,10-20:5%2"))
    [1, 3, 4, 5, 10, 15, 20]
    """
    found: set[int] = set()
    for part in filter(None, text.partition("%")[0].split(",")):
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found |= set(range(int(first), int(last or first) + 1, int(step or 1)))
    return found


def job_record(name: str, one: Mapping[str, Any]) -> SlurmJob:
    """Return the record of one job, with the fields that the rules of the process with rights use."""
    return SlurmJob(
        id=name,
        partitions=tuple(one["partition"].split(",")),
        states=states(one["job_state"]),
        priority=number(one["priority"]) or 0,
        reason=one["state_reason"],
        comment=one["comment"] or "",
        admin_comment=one["admin_comment"] or "",
        nice=number(one["nice"]) or 0,
        restarts=number(one["restart_cnt"]) or 0,
        can_requeue=bool(one["requeue"]),
        is_batch=bool(one["batch_flag"]),
        submitted_s=number(one.get("submit_time")),
    )


def _is_task(one: Mapping[str, Any], task: int) -> bool:
    found = number(one["array_task_id"])
    return found == task if found is not None else task in tasks(one["array_task_string"])


def listed(answer: str, what: str, program: str) -> list[dict[str, Any]]:
    """Return the list in an answer in JSON. Raises `ClusterError` if there is no such list."""
    try:
        found: list[dict[str, Any]] = json.loads(answer)[what]
    except (ValueError, KeyError, TypeError) as error:
        raise ClusterError(f"{program} said {answer[:80]!r} where JSON with {what} was expected") from error
    return found


def states(given: str | list[str]) -> frozenset[str]:
    """Return the states of a job or a node. Slurm gives a list, or one word in older versions."""
    return frozenset([given] if isinstance(given, str) else given)


def number(given: int | Mapping[str, Any] | None) -> int | None:
    """Return one of Slurm's numbers: an object, or a plain number in older versions. None if it is not set."""
    if given is None or isinstance(given, int):
        return given
    return int(given["number"]) if given["set"] else None
