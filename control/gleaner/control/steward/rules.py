"""What the steward does for a request, and what it refuses. Pure: facts go in, command lines come out.

Jobs of other partitions than the governed ones, jobs of another class, holds that are not ours and nodes that carry
another mark are refused, whatever control asks.

A job that we hold says so in its AdminComment, which only administrators write: `gleaner: ` and why it waits. One that
we released says `gleaner: released`. The order of the commands matters: killed between any two of them, the steward
leaves a job that runs, or one that is held and marked as waiting, never one that is held and nobody's.

A job is the one that control means if it was submitted then, in the very look by which all else is decided. Slurm's
programs take a number only, so between that look and the act nothing can be asked for by more than that. What remains:
Slurm forgets a job that has ended after MinJobAge (300 s, usually) and numbers begin anew after MaxJobId, so a steward
that stands still for that long between the two, just when the numbers come round, could act on another job.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

from gleaner.agent.privileged.request import Refused
from gleaner.control.cluster.slurm_records import JobRecord, NodeRecord
from gleaner.control.steward.conf import CHECKPOINTABLE, DEFAULT_CLASS, PREEMPTIBLE, Governed, class_of
from gleaner.control.steward.marks import (
    ASKED_TO_SAVE,
    DRAINED_BY,
    OURS,
    RELEASED,
    RELEASED_ON_TOP,
    WAITS_FOR_ITS_TURN,
    is_held_for_us,
)
from gleaner.control.steward.request import (
    Drain,
    Hold,
    JobRequest,
    NodeRequest,
    Reason,
    Release,
    Requeue,
    Resume,
    Signal,
)

TOP_NICE = 2_000_000_000
"""Taken off the nice of a job on top. A priority cannot be set while a job is held, and what is set after its release
comes too late for the scheduler's next pass; a nice can, and what its owner asked for is found again."""

NICEST = TOP_NICE // 2 - 1
"""Whoever asks for more is as nice as this after it was on top: else its own nice would not be told from ours."""

_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN"})

HOUR_S = 3600.0

Command = tuple[str, ...]


def check_governs(named: Collection[str], governed: Governed) -> None:
    """Raise `Refused` unless control governs the very partitions whose jobs the script holds.

    A job that is held in one where control never looks would wait for ever.
    """
    wrong: list[str] = []
    if held := sorted(governed.partitions.keys() - set(named)):
        wrong.append(
            f"governed.conf holds the jobs of {', '.join(held)}, which [governing] partitions does not name:"
            " name it there and restart control, or take its line out of governed.conf"
        )
    if passed := sorted(set(named) - governed.partitions.keys()):
        wrong.append(
            f"[governing] partitions names {', '.join(passed)}, which has no line in governed.conf:"
            " add one, or take it out of [governing] and restart control"
        )
    if wrong:
        raise Refused(f"nothing is governed: {'; '.join(wrong)}")


def commands_for_job(request: JobRequest, job: JobRecord, governed: Governed) -> list[Command]:
    """What to run, in order. Raises `Refused`."""
    _check_is_meant(request, job)
    _check_governed(job, governed)
    match request:
        case Release():
            _check_held_by_us(job)
            return _release(job, top=request.top)
        case Reason():
            _check_held_by_us(job)
            return [_update(job, f"AdminComment={_mark(request.text)}")]
        case Hold():
            _check_pending(job)
            # Any mark will do: one that was requeued by somebody else still says what it said before it started.
            if job.priority == 0 or not job.admin_comment.startswith(OURS):
                raise Refused(f"job {job.name} was not released by us")
            return [_marked_as_waiting(job), ("scontrol", "uhold", job.name)]
        case Requeue():
            _check_running(job, PREEMPTIBLE)
            if not job.can_requeue or not job.is_batch:
                raise Refused(f"job {job.name} cannot be requeued: it is interactive, or says --no-requeue")
            return [_marked_as_waiting(job), ("scontrol", "requeuehold", job.name)]
        case Signal():
            _check_running(job, CHECKPOINTABLE)
            # To its steps, not to the batch shell, which would die of it. When it requeues itself it waits for us.
            return [_update(job, f"AdminComment={ASKED_TO_SAVE}"), ("scancel", "--signal=USR1", job.name)]
        case _:
            assert_never(request)


def commands_for_nodes(
    request: NodeRequest, nodes: Mapping[str, NodeRecord], governed: Governed, account: str
) -> list[Command]:
    """What to run, as this account. All of the nodes or none. Raises `Refused`.

    For a drain `nodes` are all that Slurm knows.
    """
    for name in request.nodes:
        if name not in nodes:
            raise Refused(f"Slurm knows no node {name}")
        if not nodes[name].partitions & (governed.drained | governed.partitions.keys()):
            raise Refused(f"node {name} is in no partition that Gleaner may drain")
        _check_node(request, nodes[name], account)
    named = f"NodeName={','.join(request.nodes)}"
    match request:
        case Drain():
            _check_number(len(request.nodes), nodes, governed, account)
            return [("scontrol", "update", named, "State=DRAIN", f"Reason={DRAINED_BY}{request.by}")]
        case Resume():
            # Not RESUME, which would also call a node up that is down.
            return [("scontrol", "update", named, "State=UNDRAIN")]
        case _:
            assert_never(request)


def check_rate(wanted: int, drained: Sequence[tuple[float, int]], governed: Governed, now_s: float) -> None:
    """Raise `Refused` if so many more nodes are too many for an hour. `drained`: when, and how many were then."""
    this_hour = sum(count for at_s, count in drained if abs(now_s - at_s) < HOUR_S)
    if this_hour + wanted > governed.drains_per_hour:
        raise Refused(
            f"drains-per-hour in governed.conf is {governed.drains_per_hour:g}, {this_hour} nodes were drained within"
            f" the last hour, and {wanted} more are asked for: wait, or raise it"
        )


def _check_number(wanted: int, nodes: Mapping[str, NodeRecord], governed: Governed, account: str) -> None:
    ours = sum(_is_ours(node, account) for node in nodes.values())
    if ours + wanted > governed.drain_at_most:
        raise Refused(
            f"drain-at-most in governed.conf is {governed.drain_at_most:g}, {ours} nodes are drained by us, and"
            f" {wanted} more are asked for: set some back first, or raise it"
        )


def is_held_by_us(job: JobRecord) -> bool:
    """Whether it is held, and for us."""
    is_held = job.is_pending and job.priority == 0
    return is_held and is_held_for_us(job.admin_comment, restarted=job.restarts > 0, reason=job.reason)


def _release(job: JobRecord, *, top: bool) -> list[Command]:
    nice = min(own_nice(job.nice), NICEST) - TOP_NICE if top else own_nice(job.nice)
    changes = [] if nice == job.nice else [f"Nice={nice}"]
    if job.restarts > 0:
        changes.append("StartTime=now")  # else Slurm lets a requeued job wait for two minutes, whatever is idle
    first = [_update(job, *changes)] if changes else []
    mark = RELEASED_ON_TOP if top else RELEASED
    return [*first, ("scontrol", "release", job.name), _update(job, f"AdminComment={mark}")]


def own_nice(nice: int) -> int:
    """The nice that the job's owner asked for.

    >>> own_nice(7), own_nice(7 - TOP_NICE)
    (7, 7)
    """
    return nice + TOP_NICE if nice < -TOP_NICE // 2 else nice


def _mark(text: str) -> str:
    mark = OURS + text.removeprefix(OURS)
    if mark.startswith(RELEASED):
        raise Refused(f"{text[:40]!r} is no reason to be held")
    return mark


def _marked_as_waiting(job: JobRecord) -> Command:
    return _update(job, f"AdminComment={WAITS_FOR_ITS_TURN}", f"Nice={own_nice(job.nice)}")


def _update(job: JobRecord, *changes: str) -> Command:
    return ("scontrol", "update", f"JobId={job.name}", *changes)


def _check_is_meant(request: JobRequest, job: JobRecord) -> None:
    if request.submitted_s is not None and job.submitted_s is not None and request.submitted_s != job.submitted_s:
        raise Refused(
            f"job {job.name} is not the one that is meant: it was submitted or requeued at {job.submitted_s}, that one"
            f" at {request.submitted_s}"
        )


def _check_governed(job: JobRecord, governed: Governed) -> None:
    for partition in job.partitions:
        if partition not in governed.partitions:
            raise Refused(f"job {job.name} is in partition {partition}, which is not governed")


def _check_alive(job: JobRecord) -> None:
    if job.has_ended:
        raise Refused(f"job {job.name} has ended ({_state(job)})")


def _check_pending(job: JobRecord) -> None:
    _check_alive(job)
    if not job.is_pending:
        raise Refused(f"job {job.name} does not wait ({_state(job)})")


def _check_held_by_us(job: JobRecord) -> None:
    _check_pending(job)
    if job.priority != 0:
        raise Refused(f"job {job.name} is not held")
    if not is_held_by_us(job):
        raise Refused(f"job {job.name} is held by somebody else ({job.reason})")


def _check_running(job: JobRecord, wanted: str) -> None:
    _check_alive(job)
    declared = class_of(job.comment)
    if declared != wanted:
        raise Refused(f"job {job.name} is not {wanted}: it {_declares(declared)}")
    if not job.is_running:
        raise Refused(f"job {job.name} does not run ({_state(job)})")


def _declares(declared: str | None) -> str:
    if declared is None:
        return "declares no class that there is"
    return "is left alone once it runs" if declared == DEFAULT_CLASS else f"declares {declared}"


def _state(job: JobRecord) -> str:
    return "+".join(sorted(job.states))


def _check_node(request: NodeRequest, node: NodeRecord, account: str) -> None:
    if isinstance(request, Drain):
        if found := node.states & _DRAINED:
            raise Refused(f"node {node.name} is {'+'.join(sorted(found))} already ({node.reason or 'no reason given'})")
    elif not _is_ours(node, account):
        raise Refused(f"node {node.name} was not drained by us ({node.reason or 'not drained'})")


def _is_ours(node: NodeRecord, account: str) -> bool:
    return "DRAIN" in node.states and node.reason.startswith(DRAINED_BY) and node.reason_by == account
