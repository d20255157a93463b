"""The record of one replay by the real Slurm: its list of complete jobs, and the log of its controller."""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.model import Seconds

_PLAN = re.compile(r"_dump_job_sched: BACKFILL: JobId=\d+ to start at (\S+), end at \S+ on nodes (\S+) in partition")


class ReplayFailed(SimulationError):
    """The error for a real Slurm that failed. The message has Slurm's last words."""


@dataclass(frozen=True, slots=True)
class Pass:
    """One pass of backfilling, and its plan for the first job that it could not start."""

    at_s: float
    promised_s: float = math.nan
    """The time at which that job is to start; NaN if the pass planned nothing."""
    kept: frozenset[int] = frozenset()
    """The nodes that are kept for that job from then on."""


@dataclass(frozen=True, slots=True)
class Record:
    """One replay. Arrays have one entry per job, in the workload's order. Times count from the workload's origin."""

    offset_s: float
    """The workload's origin, as a time within the cycle of backfilling."""
    submit_s: Seconds
    start_s: Seconds
    end_s: Seconds
    by_backfill: NDArray[np.bool_]
    """True for a job that backfilling started, and not the quick look after each event."""
    nodes: tuple[frozenset[int], ...]
    """The nodes on which each job ran."""
    passes: tuple[Pass, ...]
    """The passes of backfilling: not one entry per job."""
    origin_s: float = 0.0
    """The workload's origin in seconds since 1970, which matters since Slurm rounds times of day."""


def record(answer: Mapping[str, Any], *, offset_s: float) -> Record:
    """Return the record in the driver's last line. Raise `ReplayFailed` if a job has not ended well."""
    ids: Sequence[int] = answer["ids"]
    found = complete_jobs(answer["jobs"])
    for job in ids:
        if job not in found:
            raise ReplayFailed(f"Slurm's record of complete jobs lacks job {job}")
        if (state := found[job]["JobState"]) != "COMPLETED":
            raise ReplayFailed(f"job {job} of the real Slurm ended as {state}, not COMPLETED")

    def times_s(field: str) -> Seconds:
        return np.array([moment_s(found[job][field]) for job in ids]) - float(answer["origin_s"])

    backfilled = started_by_backfill(answer["log"])
    return Record(
        offset_s=offset_s,
        submit_s=times_s("SubmitTime"),
        start_s=times_s("StartTime"),
        end_s=times_s("EndTime"),
        by_backfill=np.array([job in backfilled for job in ids], dtype=np.bool_),
        nodes=tuple(numbers(found[job]["NodeList"]) for job in ids),
        passes=passes(answer["log"], float(answer["origin_s"])),
        origin_s=float(answer["origin_s"]),
    )


def complete_jobs(text: str) -> dict[int, dict[str, str]]:
    r"""Return the fields of each line that jobcomp/filetxt wrote, by the job's number.

    >>> complete_jobs("JobId=7 JobState=COMPLETED StartTime=2026-01-01T00:00:09 \n")
    {7: {'JobState': 'COMPLETED', 'StartTime': '2026-01-01T00:00:09'}}
    """
    found: dict[int, dict[str, str]] = {}
    for line in text.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        if "JobId" in fields:
            found[int(fields.pop("JobId"))] = fields
    return found


def started_by_backfill(log: str) -> set[int]:
    """Return the numbers of the jobs that backfilling has started by slurmctld's log.

    >>> started_by_backfill("[...] sched/backfill: _start_job: Started JobId=4 in all on n14")
    {4}
    """
    return {int(job) for job in re.findall(r"sched/backfill: _start_job: Started JobId=(\d+)", log)}


def passes(log: str, origin_s: float) -> tuple[Pass, ...]:
    """Return the passes of backfilling in slurmctld's log, each with its beginning and its plan.

    >>> passes("[1970-01-01T00:01:00.250] sched/backfill: _attempt_backfill: beginning", 60)
    (Pass(at_s=0.25, promised_s=nan, kept=frozenset()),)
    """
    found: list[Pass] = []
    for line in log.splitlines():
        if begun := re.match(r"\[(\S+)\] sched/backfill: _attempt_backfill: beginning", line):
            found.append(Pass(moment_s(begun.group(1)) - origin_s))
        elif found and (plan := _PLAN.search(line)) and math.isnan(found[-1].promised_s):
            found[-1] = Pass(found[-1].at_s, moment_s(plan.group(1)) - origin_s, numbers(plan.group(2)))
    return tuple(found)


def numbers(nodes: str) -> frozenset[int]:
    """Return the numbers in a list of nodes as Slurm writes it.

    >>> sorted(numbers("n7")), sorted(numbers("n[1-3,9]"))
    ([7], [1, 2, 3, 9])
    """
    ranges = (part.partition("-") for part in nodes.strip("n[]").split(","))
    return frozenset(number for low, _, high in ranges for number in range(int(low), int(high or low) + 1))


def moment_s(text: str) -> float:
    """Return a time as Slurm writes it, in UTC, as seconds since 1970. Raise `ReplayFailed` if it is no time.

    >>> moment_s("1970-01-01T00:01:00")
    60.0
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ReplayFailed(f"Slurm wrote {text!r} where a time was expected") from None
