"""The record of one replay by the real Slurm, from its list of complete jobs."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import numpy as np

from gleaner.control.simulation.errors import SimulationError
from gleaner.control.simulation.model import Seconds


class ReplayFailed(SimulationError):
    """The error for a real Slurm that failed. The message contains the end of Slurm's output."""


@dataclass(frozen=True, slots=True)
class Record:
    """One replay. Arrays have one entry per job, in the workload's order. Times are counted from the workload's
    origin."""

    offset_s: float
    """The workload's origin, as a time within the backfilling cycle."""
    submit_s: Seconds
    start_s: Seconds
    end_s: Seconds


def record(answer: Mapping[str, Any], *, offset_s: float) -> Record:
    """Return the record from the driver's last line. Raise `ReplayFailed` if a job has not ended successfully."""
    ids: Sequence[int] = answer["ids"]
    found = complete_jobs(answer["jobs"])
    for job in ids:
        if job not in found:
            raise ReplayFailed(f"Slurm's record of complete jobs lacks job {job}")
        if (state := found[job]["JobState"]) != "COMPLETED":
            raise ReplayFailed(f"job {job} of the real Slurm ended as {state}, not COMPLETED")

    def times_s(field: str) -> Seconds:
        return np.array([moment_s(found[job][field]) for job in ids]) - float(answer["origin_s"])

    return Record(
        offset_s=offset_s,
        submit_s=times_s("SubmitTime"),
        start_s=times_s("StartTime"),
        end_s=times_s("EndTime"),
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


def moment_s(text: str) -> float:
    """Return a time that Slurm has written in UTC as seconds since 1970. Raise `ReplayFailed` for any other text.

    >>> moment_s("1970-01-01T00:01:00")
    60.0
    """
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ReplayFailed(f"Slurm wrote {text!r} where a time was expected") from None
