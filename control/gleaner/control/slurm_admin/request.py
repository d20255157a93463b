"""The requests that control can send to the Slurm admin service, checked field by field.

The module is pure and does not access the system. Each request is one JSON object in one line. Its fields are plain
values within limits, and unknown fields are refused. Two fields are optional: `epoch`, the epoch of the leading
control, and, in a request about a job, `submitted_s`, the job's submission time. The job's number alone is not enough,
because it might have been given to another job since.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from gleaner.agent.privileged.common.request import Refused, check_fields
from gleaner.agent.system import untrusted
from gleaner.agent.system.ipc import Message

LONGEST_BYTES = 64 * 2**10
MOST_NODES = 1000
MOST_PARTITIONS = 200
LONGEST_TEXT = 200
LONGEST_PERSON = 41
_JOB = re.compile(r"[1-9][0-9]{0,9}(_(0|[1-9][0-9]{0,9}))?\Z", re.ASCII)
_NODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}\Z", re.ASCII)
_PARTITION = re.compile(r"[^\s,\x00-\x1f\x7f]{1,64}\Z")
_PERSON = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@-]{{0,{LONGEST_PERSON - 1}}}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Alive:
    """The report that control is alive and enforces entitlements in these partitions."""

    partitions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Awake:
    """The report that control is alive, so that its drained nodes are not resumed. Entitlements can be off."""


@dataclass(frozen=True, slots=True)
class Release:
    """The request to release a held job. With `top`, the job comes before all others."""

    job: str
    top: bool
    submitted_s: int | None = None


@dataclass(frozen=True, slots=True)
class Explain:
    """The request to write the reason why a job is held."""

    job: str
    text: str
    submitted_s: int | None = None


@dataclass(frozen=True, slots=True)
class Hold:
    """The request to hold again a job that was released and has not started."""

    job: str
    submitted_s: int | None = None


@dataclass(frozen=True, slots=True)
class Requeue:
    """The request to requeue a preemptible job. The job then waits, held, and starts from its beginning when it is
    released."""

    job: str
    submitted_s: int | None = None


@dataclass(frozen=True, slots=True)
class Signal:
    """The request to tell a checkpointable job to save itself. The job then requeues itself, held."""

    job: str
    submitted_s: int | None = None


@dataclass(frozen=True, slots=True)
class Drain:
    """The request to drain these nodes, so that nothing new starts there."""

    nodes: tuple[str, ...]
    by: str


@dataclass(frozen=True, slots=True)
class Resume:
    """The request to resume nodes that were drained by us."""

    nodes: tuple[str, ...]


JobRequest = Release | Explain | Hold | Requeue | Signal
NodeRequest = Drain | Resume
Request = Alive | Awake | JobRequest | NodeRequest


@dataclass(frozen=True, slots=True)
class Heard:
    """A request with the epoch of the control program that sent it, or None if it has no epoch."""

    request: Request
    epoch: int | None


def parse(line: bytes) -> Heard:
    """Return the request in this line. Raises `Refused`.

    >>> parse(b'{"do": "release", "job": "4711", "top": true, "epoch": 3}')
    Heard(request=Release(job='4711', top=True, submitted_s=None), epoch=3)
    """
    try:
        message = untrusted.json_of(line)
    except ValueError as error:
        raise Refused(f"a request that is no JSON: {error}") from error
    if not isinstance(message, dict):
        raise Refused("a request is one JSON object")
    fields = cast("dict[str, Any]", message)
    epoch = _optional(fields, "epoch")
    return Heard(_request(fields), epoch)


def _request(message: Message) -> Request:
    match message.get("do"):
        case "alive":
            return Alive(tuple(check_fields(message, partitions=_are_partitions)["partitions"]))
        case "awake":
            check_fields(message)
            return Awake()
        case "release":
            return Release(**_of_job(message, top=lambda value: isinstance(value, bool)))
        case "reason":
            return Explain(**_of_job(message, text=_is_text))
        case "hold":
            return Hold(**_of_job(message))
        case "requeue":
            return Requeue(**_of_job(message))
        case "signal":
            return Signal(**_of_job(message))
        case "drain":
            given = check_fields(message, nodes=_are_nodes, by=_is_person)
            return Drain(tuple(given["nodes"]), given["by"])
        case "resume":
            return Resume(tuple(check_fields(message, nodes=_are_nodes)["nodes"]))
        case other:
            raise Refused(f"there is no request {str(other)[:40]!r}")


def _of_job(message: Message, **wanted: Callable[[Any], bool]) -> Message:
    submitted_s = _optional(message, "submitted_s")
    return check_fields(message, job=_is_job, **wanted) | {"submitted_s": submitted_s}


def _optional(message: Message, field: str) -> int | None:
    """Remove a whole number from the message and return it, or None if the message does not have the field."""
    if field not in message:
        return None
    value = message.pop(field)
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise Refused(f"{field!r} is not what it must be: {str(value)[:80]!r}")
    return value


def _is_job(value: Any) -> bool:
    return isinstance(value, str) and bool(_JOB.match(value))


def _is_person(value: Any) -> bool:
    return isinstance(value, str) and bool(_PERSON.match(value))


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= LONGEST_TEXT and value.isprintable()


def _are_nodes(value: Any) -> bool:
    return _are_names(value, _NODE, MOST_NODES)


def _are_partitions(value: Any) -> bool:
    return _are_names(value, _PARTITION, MOST_PARTITIONS)


def _are_names(value: Any, each: re.Pattern[str], at_most: int) -> bool:
    if not isinstance(value, list):
        return False
    names = cast("list[object]", value)
    return (
        0 < len(names) <= at_most
        and all(isinstance(one, str) and each.match(one) for one in names)
        and len(set(names)) == len(names)
    )
