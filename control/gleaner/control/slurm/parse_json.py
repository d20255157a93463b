"""The answers in JSON of `squeue` and of `scontrol show`, read into the records of `snapshot`. Pure.

Slurm 22.05 prints plain numbers, and a state as one word; newer versions print numbers as `{set, infinite, number}`,
and states as lists. `scontrol` prints JSON since 23.02. A job's name or comment is its owner's and may hold anything,
line ends too: in JSON it ends nothing. The process with rights imports this module, so the module needs only the
standard library and the records of `snapshot`.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from gleaner.agent.system import untrusted
from gleaner.control.hostlist import expanded
from gleaner.control.slurm.interface import ClusterError
from gleaner.control.slurm.snapshot import SlurmJob, SlurmNode

Given = TypeVar("Given")
Read = TypeVar("Read")

_UNREADABLE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError)
"""The errors that Python raises for a record that is not as Slurm writes it."""
_LARGEST = 2**53
"""No number that is read here is larger in Slurm."""
_LONGEST_LINE = 300
_SPAN = re.compile(r"(\d{1,9})(?:-(\d{1,9}))?(?::(\d{1,9}))?", re.ASCII)


def read_each(
    records: Iterable[Given],
    read: Callable[[Given], Read],
    name: Callable[[Given], str],
    *,
    is_needed: Callable[[Given], bool] = lambda _: False,
) -> tuple[list[Read], str]:
    """Return what `read` makes of each record, and a line about those that cannot be read: they are left out.

    `name` tells which record it is. Raises `ClusterError` for a record that is needed and cannot be read: an agent that
    is left out would be taken for gone.
    """
    found: list[Read] = []
    lines: list[str] = []
    for one in records:
        try:
            found.append(read(one))
        except _UNREADABLE as error:
            line = f"Slurm said of {name(one)} what cannot be read: {_reason(error)}"[:_LONGEST_LINE]
            if is_needed(one):
                raise ClusterError(line) from error
            lines.append(line)
    more = f" (and of {len(lines) - 1} more)" if len(lines) > 1 else ""
    return found, f"{lines[0]}{more}" if lines else ""


def _reason(error: Exception) -> str:
    return f"there is no {error}" if isinstance(error, KeyError) else str(error)


def ask_jobs_on(nodes: Sequence[str]) -> tuple[str, ...]:
    """Return the question for everybody's jobs on these nodes. If one name is unknown, squeue refuses all."""
    return ("squeue", "--json", f"--nodelist={','.join(nodes)}")


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
    Raises `ClusterError` if the job is in no record that can be read, but may be in another.
    """
    records, gaps = read_each(listed(answer, "jobs", "scontrol"), lambda one: _named(one, name), name_of)
    found = next((job for job in records if job is not None), None)
    if found is None and gaps:
        raise ClusterError(gaps)
    return found


def _named(one: Mapping[str, Any], name: str) -> SlurmJob | None:
    """Return the job if the record is about the job of this name, else None."""
    id_, _, task = name.partition("_")
    array = number(one["array_job_id"]) or 0
    is_it = _is_task(one, int(task)) and str(array) == id_ if task else not array and str(one["job_id"]) == id_
    return replace(_job(one), id=name) if is_it else None


def is_array(answer: str) -> bool:
    """Return True if the answer to `scontrol show job` is about tasks of an array."""
    records, _ = read_each(listed(answer, "jobs", "scontrol"), lambda one: bool(number(one["array_job_id"])), name_of)
    return any(records)


def parse_jobs_on(answer: str, nodes: Sequence[str]) -> tuple[tuple[SlurmJob, ...], str]:
    """Return the jobs that have a part of these nodes, in the answer of `squeue --json`.

    The second value is a line about the jobs that cannot be read.
    """
    jobs, gaps = read_each(listed(answer, "jobs", "squeue"), _job, name_of)
    return tuple(job for job in jobs if not job.is_pending and set(job.nodes) & set(nodes)), gaps


def parse_nodes(answer: str) -> tuple[dict[str, SlurmNode], str]:
    """Return each node in the answer to `scontrol show nodes`, and a line about those that cannot be read."""
    nodes, gaps = read_each(listed(answer, "nodes", "scontrol"), _node, name_of)
    return {node.name: node for node in nodes}, gaps


def _node(one: Mapping[str, Any]) -> SlurmNode:
    return SlurmNode(
        name=text(one["name"]),
        partitions=texts(one["partitions"]),
        states=frozenset(word.upper() for word in texts(one["state"]) | texts(one.get("state_flags", []))),
        reason=text(one.get("reason")),
        reason_by=text(one.get("reason_set_by_user")),
    )


def is_among(task: int, listed_tasks: str) -> bool:
    """Return True if a task is in a list of tasks as Slurm writes it.

    >>> [task for task in range(30) if is_among(task, "1,3-5,10-20:5%2")]
    [1, 3, 4, 5, 10, 15, 20]
    """
    return any(task in _span(part) for part in filter(None, listed_tasks.partition("%")[0].split(",")))


def _span(part: str) -> range:
    found = _SPAN.fullmatch(part)
    if not found:
        raise ValueError(f"{part[:40]!r} names no tasks")
    first, last, step = found.groups()
    return range(int(first), int(last or first) + 1, int(step or 1))


def _job(one: Mapping[str, Any]) -> SlurmJob:
    array, task, priority = number(one["array_job_id"]), number(one["array_task_id"]), number(one["priority"])
    return SlurmJob(
        id=f"{array}_{task}" if array and task is not None else str(number(one["job_id"])),
        user=text(one["user_name"]),
        partitions=tuple(text(one["partition"]).split(",")),
        states=texts(one["job_state"]),
        nodes=tuple(expanded(text(one["nodes"]))),
        priority=1 if priority is None else priority,  # Slurm has not computed it yet, so nobody holds the job
        reason=text(one["state_reason"]),
        comment=text(one["comment"]),
        admin_comment=text(one["admin_comment"]),
        nice=number(one["nice"]) or 0,
        restarts=number(one["restart_cnt"]) or 0,
        can_requeue=bool(one["requeue"]),
        is_batch=bool(one["batch_flag"]),
        submitted_s=needed(one["submit_time"]),
        end_s=_end_s(one["end_time"]),
    )


def _end_s(given: object) -> int | None:
    """Return the time at which a job ends, in seconds since the epoch; None for never, or if nobody knows."""
    end_s = number(given)
    said = cast("dict[str, object]", given) if isinstance(given, dict) else {}
    return None if said.get("infinite") else end_s or None


def _is_task(one: Mapping[str, Any], task: int) -> bool:
    found = number(one["array_task_id"])
    return found == task if found is not None else is_among(task, text(one["array_task_string"]))


def name_of(one: Any) -> str:
    """Return the name of a node's or a job's record, however wrong the record is."""
    known = cast("dict[str, object]", one) if isinstance(one, dict) else {}
    return f"node {known.get('name')!r}" if "partitions" in known else f"job {known.get('job_id')!r}"


def listed(answer: str, what: str, program: str) -> list[dict[str, Any]]:
    """Return the list in an answer in JSON. Raises `ClusterError` if there is no such list."""
    try:
        found = untrusted.json_of(answer, for_display=True)[what]
        if not isinstance(found, list):
            raise TypeError(f"{what} is no list")
    except (ValueError, KeyError, TypeError) as error:
        shown = f"{program} said {answer[:80]!r} where JSON with {what} was expected"
        raise ClusterError(f"{shown}: {_reason(error)}") from error
    return cast("list[dict[str, Any]]", found)


def texts(given: object) -> frozenset[str]:
    """Return the states of a job or a node, or its partitions. Slurm gives a list, or one word in older versions."""
    several = cast("list[object]", given) if isinstance(given, list) else [given]
    return frozenset(text(one) for one in several)


def text(given: object) -> str:
    """Return one of Slurm's texts; empty if it is not set."""
    if given is None:
        return ""
    if not isinstance(given, str):
        raise TypeError(f"{given!r:.40} is no text")
    return given


def needed(given: object) -> int:
    """Return a number that is always set. Raises `ValueError` if it is not."""
    found = number(given)
    if found is None:
        raise ValueError("a number is not set")
    return found


def number(given: object) -> int | None:
    """Return one of Slurm's numbers: an object, or a plain number in older versions. None if it is not set."""
    if isinstance(given, dict):
        said = cast("dict[str, object]", given)
        given = said["number"] if said["set"] else None
    if given is None:
        return None
    if not isinstance(given, int | float) or not abs(given) <= _LARGEST:
        raise ValueError(f"{given!r:.40} is no number of Slurm's")
    return int(given)
