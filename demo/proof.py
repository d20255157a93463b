"""The proof that a job in several slices gave the right result, and really continued from its checkpoints. Pure."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

CPU_TOLERANCE = 0.15
PACE_AT_MOST = 1.4
"""The largest factor by which a machine can be slower or faster. A larger one could hide that all jobs computed
twice."""
_KILLED = (
    "node fault: its process was killed from outside",
    "node fault: its container was removed by somebody else",
)
"""The words with which a living agent reports a container that another program has ended."""
_AS_IT_SHOULD = {"saved", "succeeded"}


@dataclass(frozen=True, slots=True)
class Run:
    """The files that a job left, and its whole log, including the lines of lost attempts."""

    files: Mapping[str, bytes]
    log: Sequence[str]


@dataclass(frozen=True, slots=True)
class SlicedRun:
    """A job on the cluster, with the files that it left, and the nodes of its slices in order."""

    run: Run
    nodes: Sequence[str]
    restores: int
    ended_from_outside: Sequence[str] = ()
    """The slices that ended from outside Gleaner, in words. The work since their last checkpoints was computed
    again."""
    broken: Sequence[str] = ()
    """The slices that Gleaner itself has lost, in words."""


def ended_from_outside(attempts: Sequence[Mapping[str, object]], *, lost_nodes_of: Collection[str]) -> list[str]:
    """Return, in words, the slices that ended from outside Gleaner, because a node died or a container was killed.

    `lost_nodes_of` are the agents whose nodes Slurm has reported as down. An agent that fell silent on a node that is
    up has crashed, which does not count as an outside event.

    >>> attempts = [{"ending": "lost", "agent": "a1", "node": "n1", "detail": "a1 fell silent"}, {"ending": "saved"}]
    >>> ended_from_outside(attempts, lost_nodes_of={"a1"}), ended_from_outside(attempts, lost_nodes_of=())
    (['slice 1 on n1: lost: a1 fell silent'], [])
    """
    return [
        _in_words(number, attempt)
        for number, attempt in enumerate(attempts, start=1)
        if _is_from_outside(attempt, lost_nodes_of)
    ]


def broken(attempts: Sequence[Mapping[str, object]], *, lost_nodes_of: Collection[str]) -> list[str]:
    """Return, in words, the slices that Gleaner itself has lost. An attempt that computed nothing has lost nothing.

    >>> broken([{"ending": "returned", "node": "n1", "detail": "too late: no checkpoint"}], lost_nodes_of=())
    ['slice 1 on n1: returned: too late: no checkpoint']
    >>> broken([{"ending": "returned", "node": "n1", "detail": "unstarted: the agent was ending"}], lost_nodes_of=())
    []
    """
    return [
        _in_words(number, attempt)
        for number, attempt in enumerate(attempts, start=1)
        if attempt.get("ending") not in _AS_IT_SHOULD
        and not _has_lost_nothing(attempt)
        and not _is_from_outside(attempt, lost_nodes_of)
    ]


def _is_from_outside(attempt: Mapping[str, object], lost_nodes_of: Collection[str]) -> bool:
    match attempt.get("ending"):
        case "lost":
            return attempt.get("agent") in lost_nodes_of
        case "returned":
            return str(attempt.get("detail")).startswith(_KILLED)
        case _:
            return False


def _has_lost_nothing(attempt: Mapping[str, object]) -> bool:
    """Return True if the agent was ending when it received the job, or if the answer to its claim never reached it."""
    match attempt.get("ending"):
        case "returned":
            return str(attempt.get("detail")).startswith("unstarted")
        case "forgotten":
            return attempt.get("started_s") is None
        case _:
            return False


def _in_words(number: int, attempt: Mapping[str, object]) -> str:
    return f"slice {number} on {attempt.get('node')}: {attempt.get('ending')}: {attempt.get('detail') or ''}"


def starts(log: Sequence[str]) -> int:
    """Return the number of times that the process started."""
    return sum(line.startswith("start ") for line in log)


def event_numbers(log: Sequence[str]) -> list[int]:
    """Return the event numbers, in the order in which they were printed."""
    return [int(line.split()[1]) for line in log if line.startswith("event ")]


def cpu_s(log: Sequence[str]) -> float | None:
    """Return the processor time that the process itself measured, in seconds."""
    for line in reversed(log):
        if line.startswith("cpu_s "):
            return float(line.split()[1])
    return None


def pace(pairs: Iterable[tuple[Run, Run]]) -> float:
    """Return the median ratio of the processor time of a campaign's runs to that of the uninterrupted runs.

    The uninterrupted runs were made at another time, and other work on a machine changes its speed by up to a third in
    both directions. This affects all runs of a campaign alike, so a run that computed a part twice still stands out.

    >>> runs = [Run({}, ["cpu_s 12"]), Run({}, ["cpu_s 11"]), Run({}, ["cpu_s 30"])]
    >>> pace((run, Run({}, ["cpu_s 10"])) for run in runs)
    1.2
    """
    taken = ((cpu_s(mine.log), cpu_s(whole.log)) for mine, whole in pairs)
    found = [mine / whole for mine, whole in taken if mine and whole]
    return min(PACE_AT_MOST, max(1 / PACE_AT_MOST, median(found))) if found else 1.0


def files_differ(sliced: Run, whole: Run) -> list[str]:
    """Return the names of the files that are not identical byte for byte."""
    names = sorted(set(sliced.files) | set(whole.files))
    return [name for name in names if sliced.files.get(name) != whole.files.get(name)]


def doubts(
    sliced: SlicedRun,
    whole: Run,
    *,
    events: int,
    restores_at_least: int = 2,
    nodes_at_least: int = 2,
    at_pace: float | None = 1.0,
) -> list[str]:
    """Return everything that speaks against the claim, which is nothing if the claim is proven.

    The claim is that one process, which was saved and restored on several nodes, gave the same result byte for byte. If
    something outside Gleaner ended a slice, a part was computed twice, and only the result can be compared. A slice
    that Gleaner itself has lost speaks against the claim, whatever the result. The processor time is compared with that
    of the uninterrupted run, multiplied by the `pace` of the campaign (`at_pace`). If `at_pace` is None, because there
    are too few runs to measure it, the times are not compared.
    """
    found = list(sliced.broken)
    if not whole.files:
        found.append("the uninterrupted run left no files")
    if differing := files_differ(sliced.run, whole):
        found.append(f"files differ: {', '.join(differing)}")
    if sliced.ended_from_outside:
        return found
    if (started := starts(sliced.run.log)) != 1:
        found.append(f"the process started {started} times")
    numbers = event_numbers(sliced.run.log)
    if numbers != list(range(numbers[0] if numbers else 0, (numbers[0] if numbers else 0) + events)):
        found.append(f"the log holds {len(numbers)} event lines ({len(set(numbers))} different) for {events} events")
    if sliced.restores < restores_at_least:
        found.append(f"restored {sliced.restores} times, not {restores_at_least}")
    if len(set(sliced.nodes)) < nodes_at_least:
        found.append(f"ran on {sorted(set(sliced.nodes))} only")
    if at_pace is None:
        return found
    mine, reference = cpu_s(sliced.run.log), cpu_s(whole.log)
    if mine is None or reference is None:
        found.append("no processor time in the log")
    elif abs(mine - at_pace * reference) > CPU_TOLERANCE * at_pace * reference:
        found.append(f"{mine:.1f} s of processor time, {reference:.1f} s uninterrupted")
    return found
