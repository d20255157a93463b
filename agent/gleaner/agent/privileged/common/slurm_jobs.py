"""Ask Slurm to whom a job belongs and what it has on this node, and check the answer field by field.

The answer is JSON: in the text of `scontrol show job`, a user's own words (a job's name, say) stand between the fields
and could be taken for some. An answer that is not as it should be is an error, never a guess.
"""

from __future__ import annotations  # the node may have Python 3.9

import re
import threading
import time
from typing import Any, NamedTuple

from ...system import untrusted
from . import system_programs

_NUMBER = re.compile(r"[1-9][0-9]{0,9}\Z")
_TIMEOUT_S = 20.0
KEPT_S = 3.0
"""The time for which an answer of Slurm's serves further requests."""
_MOST_KEPT = 4096


class Unknown(Exception):
    """Slurm does not answer, or answers in a way that is not understood here; one line."""


class NoJob(Unknown):
    """Slurm knows no job of this number."""


class Share(NamedTuple):
    """The part of one node that a job has. `memory_mib` is None if Slurm does not count memory."""

    cpus: int
    memory_mib: int | None


class SlurmJob(NamedTuple):
    """One job, as Slurm has it now."""

    id: str
    uid: int
    states: tuple[str, ...]
    end_s: int | None
    nodes: dict[str, Share]
    admin_comment: str
    restarts: int
    may_requeue: bool
    """True for a batch job whose owner has not forbidden a requeue."""

    @property
    def is_running(self) -> bool:
        """True if the job runs and nothing has ended it."""
        return self.states == ("RUNNING",)


def is_number(value: Any) -> bool:
    """Return True for a job's number, as text.

    >>> is_number("66"), is_number("66_1"), is_number("0"), is_number(66)
    (True, False, False, False)
    """
    return isinstance(value, str) and bool(_NUMBER.match(value))


def parse(text: str, job: str) -> SlurmJob:
    """Return the one job in the answer of `scontrol show job JOB --json`. Raises `Unknown`."""
    try:
        (found,) = [one for one in untrusted.json_of(text, is_shown=True)["jobs"] if one["job_id"] == int(job)]
        has: Any = found["job_resources"]
        parts: list[Any] = has["nodes"]["allocation"] if has else []
        return SlurmJob(
            id=job,
            uid=_whole(found["user_id"]),
            states=tuple(str(state) for state in found["job_state"]),
            end_s=_number(found["end_time"]),
            nodes={str(part["name"]): _share(part) for part in parts},
            admin_comment=str(found.get("admin_comment", "")),
            restarts=_whole(found["restart_cnt"]),
            may_requeue=found["requeue"] is True and found["batch_flag"] is True,
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Unknown(f"Slurm's answer about job {job} is not understood ({type(error).__name__}: {error})") from error


def _share(part: dict[str, Any]) -> Share:
    memory_mib = _whole(part["memory"]["allocated"])
    return Share(_whole(part["cpus"]["count"]), memory_mib or None)


def _number(value: Any) -> int | None:
    """Return one of Slurm's numbers; None if Slurm says that it is not set, is infinite, or is 0."""
    return _whole(value["number"]) or None if value["set"] and not value["infinite"] else None


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


class Slurm:
    """A client of Slurm that runs `scontrol` and keeps its answers for some seconds. Safe for threads."""

    def __init__(self, scontrol: str, *, kept_s: float = KEPT_S, timeout_s: float = _TIMEOUT_S) -> None:
        self._scontrol = scontrol
        self._timeout_s = timeout_s
        self._kept_s = kept_s
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, SlurmJob]] = {}

    def job(self, number: str, *, anew: bool = False) -> SlurmJob:
        """Return one job; with `anew`, as it is at a moment after this call. Raises `NoJob` or `Unknown`."""
        if not is_number(number):
            raise NoJob(f"{number[:40]!r} is no number of a Slurm job")
        asked_s = time.monotonic()
        with self._lock:
            known = self._known.get(number)
        if known is not None and not anew and asked_s < known[0] + self._kept_s:
            return known[1]
        found = parse(self._shown(number), number)
        with self._lock:
            if len(self._known) >= _MOST_KEPT:
                self._known.clear()
            self._known[number] = asked_s, found  # the answer may be as old as the question
        return found

    def _shown(self, number: str) -> str:
        words = [self._scontrol, "show", "job", number, "--json"]
        try:
            done = system_programs.run(words, within_s=self._timeout_s, folder="/")
        except OSError as error:
            raise Unknown(f"Slurm cannot be asked: {error}") from error
        if done.status != 0:
            said = " ".join(done.stderr.split())[:300]
            if "Invalid job id" in said:
                raise NoJob(f"Slurm knows no job {number}")
            raise Unknown(f"Slurm does not say what job {number} is: {said or 'no reason given'}")
        return done.stdout
