"""Ask Slurm about one job, check the answer field by field, and let a job's owner lower its end or requeue it.

The answer is read as JSON, because the text of `scontrol show job` mixes the users' own words (such as a job's name)
with the fields, and the words could be mistaken for fields. An unexpected answer is an error, and its meaning is never
guessed.

Root's programs only query Slurm (`Slurm`). `JobHandle`, which changes a job, runs with the rights of the job's owner,
as Slurm demands.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import re
import threading
import time
from typing import Any, NamedTuple

from ...system import untrusted
from . import system_programs

_NUMBER = re.compile(r"[1-9][0-9]{0,9}\Z")
_TIMEOUT_S = 20.0
_CHANGE_WITHIN_S = 10.0
_AGAIN_S = 1.0
_TRIES = 3
USUAL_KILL_WAIT_S = 30.0
"""Slurm's default."""
CACHED_FOR_S = 3.0
"""The time for which an answer from Slurm is used for further requests."""
_MOST_CACHED = 4096


class Unknown(Exception):
    """Slurm does not answer, or its answer cannot be understood. The message is one line."""


class NoJob(Unknown):
    """Slurm knows no job with this number."""


class NotRequeued(Exception):
    """Slurm does not requeue the job. The message is one line."""


class Share(NamedTuple):
    """The part of one node that a job has. `memory_mib` is None if Slurm does not count memory."""

    cpus: int
    memory_mib: int | None


class SlurmJobRecord(NamedTuple):
    """One job, as Slurm reports it now."""

    id: str
    uid: int
    states: tuple[str, ...]
    end_s: int | None
    nodes: dict[str, Share]
    admin_comment: str
    restarts: int
    may_requeue: bool
    """True for a batch job whose owner has not forbidden a requeue."""
    is_preempted: bool
    """True once Slurm has decided to preempt the job.

    Slurm ends the job when the grace time is over, or at the job's own end if that is earlier. In the second case, only
    this field shows that the job was preempted.
    """

    @property
    def is_running(self) -> bool:
        """True if RUNNING is the job's only state, so that nothing has ended it."""
        return self.states == ("RUNNING",)

    @property
    def memory_mib(self) -> int | None:
        """The memory that the job has on all its nodes, or None if Slurm does not count memory.

        A job's environment does not contain it, because `--mem=0` (the whole node's memory) sets no variable.
        """
        return sum(part.memory_mib or 0 for part in self.nodes.values()) or None


def is_number(value: Any) -> bool:
    """Return True for a job's number, as text.

    >>> is_number("66"), is_number("66_1"), is_number("0"), is_number(66)
    (True, False, False, False)
    """
    return isinstance(value, str) and bool(_NUMBER.match(value))


def parse(text: str, job: str) -> SlurmJobRecord:
    """Return the one job in the answer of `scontrol show job JOB --json`. Raises `Unknown`."""
    try:
        (job_fields,) = [one for one in untrusted.json_of(text, for_display=True)["jobs"] if one["job_id"] == int(job)]
        has: Any = job_fields["job_resources"]
        parts: list[Any] = has["nodes"]["allocation"] if has else []
        return SlurmJobRecord(
            id=job,
            uid=_whole(job_fields["user_id"]),
            states=tuple(str(state) for state in job_fields["job_state"]),
            end_s=_number(job_fields["end_time"]),
            nodes={str(part["name"]): _share(part) for part in parts},
            admin_comment=str(job_fields.get("admin_comment", "")),
            restarts=_whole(job_fields["restart_cnt"]),
            may_requeue=job_fields["requeue"] is True and job_fields["batch_flag"] is True,
            is_preempted="preempt_time" in job_fields and _number(job_fields["preempt_time"]) is not None,
        )
    except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise Unknown(f"Slurm's answer about job {job} is not understood ({type(error).__name__}: {error})") from error


def _share(part: dict[str, Any]) -> Share:
    memory_mib = _whole(part["memory"]["allocated"])
    return Share(_whole(part["cpus"]["count"]), memory_mib or None)


def _number(value: Any) -> int | None:
    """Return one of Slurm's numbers, or None if it is marked as not set or infinite, or is 0."""
    return _whole(value["number"]) or None if value["set"] and not value["infinite"] else None


def _whole(value: Any) -> int:
    if type(value) is not int or value < 0:
        raise ValueError(f"{value!r} is no number")
    return value


def parse_kill_wait_s(text: str) -> float | None:
    """Return the KillWait in the output of `scontrol show config`, in seconds, or None if it is not there.

    >>> parse_kill_wait_s("KillWait                = 30 sec")
    30.0
    """
    match = re.search(r"^KillWait\s*=\s*(\d{1,9})\b", text, re.MULTILINE | re.ASCII)
    return float(match.group(1)) if match else None


class Slurm:
    """A client of Slurm that runs `scontrol` and keeps its answers for some seconds. Safe for threads."""

    def __init__(self, scontrol: str, *, cached_for_s: float = CACHED_FOR_S, timeout_s: float = _TIMEOUT_S) -> None:
        self._scontrol = scontrol
        self._timeout_s = timeout_s
        self._cached_for_s = cached_for_s
        self._lock = threading.Lock()
        self._cache: dict[str, tuple[float, SlurmJobRecord]] = {}

    def job(self, number: str, *, anew: bool = False) -> SlurmJobRecord:
        """Return one job. With `anew`, no cached answer is used. Raises `NoJob` or `Unknown`."""
        if not is_number(number):
            raise NoJob(f"{number[:40]!r} is no number of a Slurm job")
        question_s = time.monotonic()
        with self._lock:
            cached = self._cache.get(number)
        if cached is not None and not anew and question_s < cached[0] + self._cached_for_s:
            return cached[1]
        answer = parse(self._show(number), number)
        with self._lock:
            if len(self._cache) >= _MOST_CACHED:
                self._cache.clear()
            self._cache[number] = question_s, answer  # the answer can be as old as the question
        return answer

    def _show(self, number: str) -> str:
        try:
            return _output([self._scontrol, "show", "job", number, "--json"], self._timeout_s)
        except Unknown as error:
            if "Invalid job id" in str(error):
                raise NoJob(f"Slurm knows no job {number}") from None
            raise Unknown(f"Slurm does not say what job {number} is: {error}") from None


class JobHandle:
    """A job of our own account. Its owner can lower its end and requeue it. No answer from Slurm is cached."""

    def __init__(self, number: str, *, timeout_s: float = _TIMEOUT_S) -> None:
        self.number = number
        self._slurm = Slurm("scontrol", cached_for_s=0, timeout_s=timeout_s)

    def must_look(self) -> SlurmJobRecord:
        """Return the job as Slurm reports it now. Raises `Unknown`."""
        return self._slurm.job(self.number)

    def look(self) -> SlurmJobRecord | None:
        """Return the job as Slurm reports it now, or None if Slurm does not answer."""
        try:
            return self.must_look()
        except Unknown:
            return None

    def lower_end(self, new_end_s: float) -> SlurmJobRecord:
        """Have Slurm end the job at `new_end_s`, to the second, unless it ends earlier, and return the updated job.

        Slurm takes limits in whole minutes, but the owner of a running job is allowed to lower its EndTime
        (scontrol(1)). Slurm's clock and the node's agree, as munge demands. The end is given in UTC. In a local time
        zone an hour can occur twice, and an end in the past would end the job immediately. Slurm is asked only once,
        and once more after a change, because many agents start at about the same time. If Slurm does not lower the end,
        the returned job keeps its later end. Raises `Unknown` if Slurm does not report the job.
        """
        job = self.must_look()
        if job.end_s is None or job.end_s <= new_end_s:
            return job
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(new_end_s))
        words = ["scontrol", "update", f"JobId={self.number}", f"EndTime={stamp}"]
        for _ in range(_TRIES):
            try:
                _output(words, _CHANGE_WITHIN_S, environment={**os.environ, "TZ": "UTC"})
                return self.look() or job._replace(end_s=int(new_end_s))
            except Unknown:
                time.sleep(_AGAIN_S)
        return job

    def requeue(self, *, held: bool, within_s: float) -> None:
        """Have Slurm end the job now and start it again later or, if `held`, once it is released.

        Raises `NotRequeued`. Slurm ends our own processes soon after. If Slurm's controller does not answer, it is
        asked repeatedly for `within_s`.
        """
        give_up_s = time.monotonic() + within_s
        while True:
            try:
                _output(["scontrol", "requeuehold" if held else "requeue", self.number], _CHANGE_WITHIN_S)
                return
            except Unknown as error:
                if time.monotonic() >= give_up_s:
                    raise NotRequeued(f"Slurm does not requeue job {self.number}: {error}") from error
            time.sleep(_AGAIN_S)


def account_jobs() -> frozenset[str] | None:
    """Return the numbers of all our account's jobs that Slurm still knows, or None if Slurm does not answer."""
    try:
        return frozenset(_output(["squeue", "--me", "--noheader", "--states=all", "--format=%A"], _TIMEOUT_S).split())
    except Unknown:
        return None


def kill_wait_s() -> float:
    """Return the seconds between Slurm's SIGTERM and SIGKILL, or the default if Slurm does not report them."""
    try:
        wait_s = parse_kill_wait_s(_output(["scontrol", "show", "config"], _TIMEOUT_S))
    except Unknown:
        wait_s = None
    return USUAL_KILL_WAIT_S if wait_s is None else wait_s


def _output(words: list[str], within_s: float, environment: dict[str, str] | None = None) -> str:
    """Return the output of one of Slurm's programs. Raises `Unknown` with the program's reason."""
    try:
        result = system_programs.run(words, within_s=within_s, folder="/", environment=environment)
    except OSError as error:
        raise Unknown(str(error)) from error
    if result.status != 0:
        raise Unknown(" ".join(result.stderr.split())[:300] or "no reason given")
    return result.stdout
