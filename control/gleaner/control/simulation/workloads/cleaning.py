"""The removal of log entries that no simulation can use. Each rule has a name and a count, so none is applied silently.

The rules follow the Parallel Workloads Archive, whose definition of the Standard Workload Format explains the states of
a job and unknown values. They also follow the advice of Feitelson, Tsafrir and Krakov (Experience with using the
Parallel Workloads Archive, JPDC 74(10), 2014). A person has to judge each flurry, which is the archive's name for a
user's burst of thousands of jobs. The archive's cleaned logs leave flurries out.
"""

from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gleaner.control.simulation.errors import BadTrace
from gleaner.control.simulation.model import Classes, Cleaning, Counts, Seconds, Workload
from gleaner.control.simulation.settings import SettingsTable

UNKNOWN = -1
"""The mark for an unknown value in any number of a record, as in the Standard Workload Format."""

_LONGEST_S = 50 * 365 * 86400.0
"""No machine is in service for longer than this. A longer time is a mistake in the log, such as a run since 1970."""

Mask = NDArray[np.bool_]
Size: TypeAlias = Literal["requested", "allocated"]


class Conventions(SettingsTable):
    """`[workload.conventions]`: the interpretation of jobs in a log, which differs between simulators. The defaults are
    the usual choices.

    These choices make it possible to reproduce the results of another simulator.
    """

    size: Size | None = None
    """The number of processors in a log, of two, that counts as the job's size. If the log lacks it, the other one is
    used. The default is the requested number in the Standard Workload Format, and the allocated number in Slurm's
    accounting."""
    past_limit: Literal["ends", "raised"] = "ends"
    """A job that ran past its limit ends at the limit, or its limit is raised to its run time."""
    zero_run_time: Literal["kept", "second", "left-out"] = "kept"
    """A job that ran for 0 s is kept, takes a second, or is left out."""
    too_large: Literal["left-out", "shrunk"] = "left-out"
    """A job that is larger than the machine is left out, or becomes as large as the machine."""
    ties: Literal["number", "file"] = "number"
    """The order of jobs that were submitted at the same instant, either by their numbers or as in the file."""


USUAL = Conventions()


class TraceEnding(IntEnum):
    """The way in which a job ended according to the source, as far as a rule needs it."""

    ENDED = 0
    """The job ended in any other way. This includes failed jobs, which also held their processors."""
    CANCELLED = 1
    """A user or an administrator cancelled the job, before it started or while it ran."""
    PART = 2
    """The line is one part of a job, which another line summarizes (states 2, 3 and 4 of the Standard Workload
    Format)."""
    WAITING = 3
    """The job had not started when the log was written."""
    RUNNING = 4
    """The job had not ended when the log was written."""
    REQUEUED = 5
    """Slurm ended the run and has, or might have, queued the job again."""
    NEVER_STARTED = 6
    """The job ended without a start, for example because its launch failed."""
    BACKWARDS = 7
    """The job ended before it started."""


@dataclass(frozen=True, slots=True)
class Records:
    """A log as it was read, with one job per line, before any rule is applied. A value that is not known is
    `UNKNOWN`."""

    jobs: Workload
    wait_s: Seconds
    """The time that each job waited in the real system."""
    ending: Classes
    passed_over: tuple[tuple[str, int], ...] = ()
    """The rules by which the reader itself left lines out, with their counts."""
    told: tuple[tuple[str, Mask], ...] = ()
    """The rules by which the reader itself changed jobs or made a choice about them, with the jobs that each rule
    matched."""

    def only(self, chosen: Mask | Counts) -> "Records":
        """Return only the records of these lines, in the given order."""
        told = tuple((rule, mask[chosen]) for rule, mask in self.told)
        return Records(self.jobs.only(chosen), self.wait_s[chosen], self.ending[chosen], self.passed_over, told)


def differing(size: Size) -> str:
    """Return the name of the rule that decides which number of processors counts if a log has two."""
    if size == "requested":
        return "kept: as many processors as it asked for, though it was given others"
    return "kept: as many processors as it was given, though it asked for others"


def clean(
    path: Path, records: Records, *, processors: int | None, conventions: Conventions
) -> tuple[Workload, Seconds, Cleaning]:
    """Return the jobs that can be simulated on this number of processors (None for any), their waits, and the cleaning.

    The waits are those in the real system, or NaN if they are not known. The jobs are sorted by time of submission,
    then by number. A run time of 0 is kept unless another convention is set, because it means less than half a second
    in a log with whole seconds. Raise `BadTrace` if no job is left. The error names the rules that removed the jobs.
    """
    met = [(f"left out: {rule}", count) for rule, count in records.passed_over]
    read = len(records.jobs) + sum(count for _, count in records.passed_over)
    if not read:
        raise BadTrace(f"{path}: it holds no jobs")
    left = np.ones(len(records.jobs), bool)
    for rule, mask in _unusable(records, processors, conventions):
        count = int((left & mask).sum())
        left &= ~mask
        if count:
            met.append((f"left out: {rule}", count))
    if not left.any():
        raise BadTrace(_nothing_left(path, records, read, met, processors))
    chosen = np.flatnonzero(left)
    keys = (records.jobs.job[chosen], records.jobs.submit_s[chosen])
    order = np.lexsort(keys[1:] if conventions.ties == "file" else keys)
    kept = records.only(chosen[order])
    workload, changes = _changed(kept.jobs, processors, conventions)
    met.extend((rule, int(mask.sum())) for rule, mask in (*kept.told, *changes) if mask.any())
    wait_s = np.where(kept.wait_s < 0, np.nan, kept.wait_s)
    return workload, wait_s, Cleaning(read, tuple(met))


def _changed(
    jobs: Workload, processors: int | None, conventions: Conventions
) -> tuple[Workload, list[tuple[str, Mask]]]:
    """Return the jobs with the necessary changes, and the jobs to which each change or choice applied."""
    is_zero, no_limit = jobs.run_s == 0, jobs.limit_s <= 0
    run_s = np.where(is_zero, 1.0, jobs.run_s) if conventions.zero_run_time == "second" else jobs.run_s
    limit_s = np.where(no_limit, np.maximum(run_s, 1.0), jobs.limit_s)
    is_past = run_s > limit_s
    told: list[tuple[str, Mask]] = []
    size = jobs.processors
    if processors is not None and conventions.too_large == "shrunk":
        told.append((f"changed: larger than the machine ({processors} processors), now as large", size > processors))
        size = np.minimum(size, processors)
    told.append(("changed: no limit, so its run time is its limit", no_limit))
    if conventions.past_limit == "raised":
        told.append(("changed: it ran past its limit, which is now its run time", is_past))
        limit_s = np.maximum(limit_s, run_s)
    else:
        told.append(("changed: it ran past its limit, where it now ends", is_past))
        run_s = np.minimum(run_s, limit_s)
    takes = "changed: it ran for 0 s, now for 1 s" if conventions.zero_run_time == "second" else "kept: it ran for 0 s"
    told.append((takes, is_zero))
    return replace(
        jobs, run_s=run_s, limit_s=limit_s, processors=size, memory_mib=np.maximum(jobs.memory_mib, 0.0)
    ), told


def _unusable(records: Records, processors: int | None, conventions: Conventions) -> list[tuple[str, Mask]]:
    """Return the rules that leave a job out, in order, and the jobs of each. The first rule that matches a job
    counts."""
    ran = records.jobs.run_s > 0
    rules = [
        ("one part of a job that another line sums up", records.ending == TraceEnding.PART),
        ("cancelled before it started", (records.ending == TraceEnding.CANCELLED) & ~ran),
        ("it never started", records.ending == TraceEnding.NEVER_STARTED),
        ("it ended before it started", records.ending == TraceEnding.BACKWARDS),
        ("still waiting when the log was written", records.ending == TraceEnding.WAITING),
        ("still running when the log was written", records.ending == TraceEnding.RUNNING),
        ("submitted at a negative time", records.jobs.submit_s < 0),
        ("run time unknown", records.jobs.run_s == UNKNOWN),
        ("negative run time", records.jobs.run_s < 0),
        ("it ran for more than 50 years", records.jobs.run_s > _LONGEST_S),
        ("submitted more than 50 years before or after the others", _far_from_the_others(records.jobs.submit_s)),
        ("no number of processors", records.jobs.processors <= 0),
    ]
    if conventions.zero_run_time == "left-out":
        rules.append(("it ran for 0 s", records.jobs.run_s == 0))
    if processors is not None and conventions.too_large == "left-out":
        rules.append((f"larger than the machine ({processors} processors)", records.jobs.processors > processors))
    return rules


def _far_from_the_others(submit_s: Seconds) -> Mask:
    """Return a mask of the jobs that were submitted far from the median time. A single such job could make the log
    centuries long."""
    if not len(submit_s):
        return np.zeros(0, bool)
    middle = (len(submit_s) - 1) // 2
    most_s = float(np.partition(submit_s, middle)[middle])
    return np.asarray(np.abs(submit_s - most_s) > _LONGEST_S, bool)


def _nothing_left(path: Path, records: Records, read: int, met: list[tuple[str, int]], processors: int | None) -> str:
    sizes = records.jobs.processors[records.jobs.processors > 0]
    if processors is not None and len(sizes) and sizes.min() > processors:
        fit = f"fits on {processors} processors; the smallest asks for {sizes.min()}"
        return f"{path}: none of its {len(records.jobs)} jobs {fit}"
    reasons = "; ".join(f"{rule}: {count}" for rule, count in met)
    return f"{path}: none of its {read} jobs can be simulated ({reasons})"
