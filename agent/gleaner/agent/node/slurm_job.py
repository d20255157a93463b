"""The agent's own Slurm job: read when it ends, and have it end to the second.

Slurm takes limits in whole minutes; the owner of a running job may lower its EndTime to the second
(scontrol(1), "EndTime"). Parsing is pure; the rest runs `scontrol`, each time with a time-out.
"""

import re
import time
from dataclasses import dataclass, replace
from datetime import datetime

import structlog

from gleaner.agent.privileged.common import system_programs

log = structlog.get_logger()

TIMEOUT_S = 20.0
USUAL_KILL_WAIT_S = 30.0
_MIB = {"K": 1 / 1024, "M": 1, "G": 1024, "T": 1024**2, "P": 1024**3}


@dataclass(frozen=True, slots=True)
class Allocation:
    """The resources that Slurm has given a job; None for what Slurm does not say.

    The memory is not in the environment: `--mem=0`, the whole node's, sets no variable.
    """

    end_s: float | None
    memory_mib: int | None


@dataclass(frozen=True, slots=True)
class Ending:
    """The end of a job as Slurm tells it. `runs`: the job has not been ended yet, so `end_s` is to come.

    Slurm ends a job that it preempts when the grace time is over, or at the job's own end if that is earlier: then only
    `is_preempted` tells. `end_s` is None if Slurm does not say.
    """

    end_s: float | None
    runs: bool
    is_preempted: bool


def parse_ending(shown: str) -> Ending:
    """Return the end of the job from the output of `scontrol show job`.

    >>> parse_ending("JobId=7 JobState=RUNNING EndTime=Unknown PreemptTime=2026-11-21T20:29:10")
    Ending(end_s=None, runs=True, is_preempted=True)
    """
    return Ending(
        end_s=parse_end_s(shown),
        runs=re.search(r"\bJobState=RUNNING\b", shown) is not None,
        is_preempted=re.search(r"\bPreemptTime=\d", shown) is not None,
    )


def parse_end_s(shown: str) -> float | None:
    """Return the EndTime in the output of `scontrol show job`, seconds since the epoch; None if there is none.

    >>> parse_end_s("JobId=7 EndTime=Unknown Deadline=N/A") is None
    True
    """
    found = re.search(r"\bEndTime=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", shown)
    try:
        return datetime.fromisoformat(found.group(1)).timestamp() if found else None
    except (ValueError, OverflowError):  # digits that are no time
        return None


def parse_memory_mib(shown: str) -> int | None:
    """Return the job's memory on its node, from AllocTRES, in MiB; None if Slurm does not count memory.

    >>> parse_memory_mib("AllocTRES=cpu=6,mem=4000M,node=1"), parse_memory_mib("AllocTRES=cpu=6,mem=1.50G,node=1")
    (4000, 1536)
    """
    found = re.search(r"\b(?:AllocTRES|TRES)=\S*?\bmem=(\d{1,15}(?:\.\d{1,15})?)([KMGTP])", shown, re.ASCII)
    return int(float(found.group(1)) * _MIB[found.group(2)]) if found else None


def parse_kill_wait_s(shown: str) -> float | None:
    """Return the KillWait in the output of `scontrol show config`, in seconds; None if there is none.

    >>> parse_kill_wait_s("KillWait                = 30 sec")
    30.0
    """
    found = re.search(r"^KillWait\s*=\s*(\d{1,9})\b", shown, re.MULTILINE | re.ASCII)
    return float(found.group(1)) if found else None


def kill_wait_s() -> float:
    """Return the seconds that Slurm waits between SIGTERM and SIGKILL; Slurm's default if Slurm does not say."""
    found = parse_kill_wait_s(_scontrol("show", "config") or "")
    return USUAL_KILL_WAIT_S if found is None else found


def ending(job: str) -> Ending:
    """Return the end of this job, as Slurm tells it now."""
    return parse_ending(_shown(job))


def lower_end(job: str, wanted_s: float) -> Allocation:
    """Have Slurm end this job at `wanted_s`, unless it ends earlier anyway; return what Slurm then says of the job.

    Slurm's clock and the node's agree, as munge demands; both programs run in the node's time zone. Slurm is asked
    once, and once more only after a change: all agents of a round start at about the same time.
    """
    shown = _shown(job)
    found = Allocation(end_s=parse_end_s(shown), memory_mib=parse_memory_mib(shown))
    if found.end_s is None or found.end_s <= wanted_s:
        return found
    stamp = datetime.fromtimestamp(wanted_s).strftime("%Y-%m-%dT%H:%M:%S")
    for pause_s in (0.5, 2.0, 0.0):
        if _scontrol("update", f"JobId={job}", f"EndTime={stamp}") is not None:
            break
        time.sleep(pause_s)
    return replace(found, end_s=ending(job).end_s)


def _shown(job: str) -> str:
    """Return the output of `scontrol show job`; empty if that does not work."""
    return _scontrol("show", "job", "--oneliner", job) or ""


def _scontrol(*words: str) -> str | None:
    try:
        done = system_programs.run(["scontrol", *words], within_s=TIMEOUT_S)
    except OSError as error:
        log.warning("scontrol does not work", words=words, error=str(error))
        return None
    if done.status != 0:
        log.warning("scontrol says no", words=words, error=done.stderr.strip())
        return None
    return done.stdout
