"""A month in Slurm's accounting, with the waiting times of regular jobs, and the energy of agents if Slurm measures
it."""

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime

from gleaner.control.slurm import run

_FIELDS = ("UID", "Submit", "Eligible", "Start", "ConsumedEnergyRaw")
_MOST_JOULES = 1e15
"""If the energy is unknown, Slurm prints a number larger than this."""
_JOULES_A_KWH = 3.6e6
_LATE = 0.95


@dataclass(frozen=True, slots=True)
class AccountedMonth:
    """The number of regular jobs that started in a month, and the seconds for which they had waited.

    `agents_kwh` is the energy of the agents that started in the month, or None if Slurm has not measured any.
    """

    jobs: int
    mean_wait_s: float | None
    median_wait_s: float | None
    late_wait_s: float | None
    """The 95th percentile of the waiting times."""
    agents_kwh: float | None


def ask(begin_s: float, end_s: float) -> list[str]:
    """Return the query for all jobs that existed at some time between the two instants."""
    begin, end = (datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%S") for at_s in (begin_s, end_s))
    return [
        "sacct", "--allusers", "--allocations", "--duplicates", "--noheader", "--parsable2",
        f"--starttime={begin}", f"--endtime={end}", f"--format={','.join(_FIELDS)}",
    ]  # fmt: skip


def accounted(begin_s: float, end_s: float, *, own: int, timeout_s: float) -> AccountedMonth:
    """Query Slurm's accounting. `own` is the uid of the agents. Raises `ClusterUnavailable` or `ClusterRefused`."""
    answer = run.run(ask(begin_s, end_s), timeout_s=timeout_s)
    return parse(answer.splitlines(), begin_s=begin_s, end_s=end_s, own=own)


def parse(lines: Iterable[str], *, begin_s: float, end_s: float, own: int) -> AccountedMonth:
    """Return the month's figures from these lines. Unreadable lines are left out.

    A job's waiting time begins at its submission, or at the time from which it can start, whichever is later.

    >>> parse(["1001|100|100|160|0", "1001|100|130|130|", "4200|100|100|101|7200000"], begin_s=0, end_s=999, own=4200)
    AccountedMonth(jobs=2, mean_wait_s=30.0, median_wait_s=30.0, late_wait_s=60.0, agents_kwh=2.0)
    """
    waits_s: list[float] = []
    joules = 0.0
    for line in lines:
        fields = line.split("|")
        if len(fields) != len(_FIELDS) or not all(_is_number(field) for field in fields[:4]):
            continue  # for example a job that has not started
        uid, submit_s, eligible_s, start_s = (int(field) for field in fields[:4])
        if not begin_s <= start_s < end_s:
            continue
        if uid != own:
            waits_s.append(max(0.0, float(start_s - max(submit_s, eligible_s))))
        elif _is_number(fields[4]) and int(fields[4]) < _MOST_JOULES:
            joules += int(fields[4])
    kwh = joules / _JOULES_A_KWH if joules else None
    if not waits_s:
        return AccountedMonth(0, None, None, None, kwh)
    waits_s.sort()
    late_s = waits_s[min(len(waits_s) - 1, int(_LATE * len(waits_s)))]
    return AccountedMonth(len(waits_s), statistics.fmean(waits_s), statistics.median(waits_s), late_s, kwh)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
