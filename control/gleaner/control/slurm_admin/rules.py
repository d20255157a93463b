"""The rules of the Slurm admin service: the commands for each request, and the refusals.

The module is pure, and turns requests and facts into command lines. Jobs outside the owners' partitions, jobs of
another class, holds that are not ours and nodes with another mark are refused, whatever control requests.

A job that we hold has a mark in its AdminComment, which only administrators can write: `gleaner: ` and the reason why
it waits. A job that we released has `gleaner: released`. The order of the commands matters. If the Slurm admin service
is killed between any two of them, it leaves a job that runs, or a job that is held and marked as waiting. It never
leaves a held job that would not be released.

A job is identified by the submission time that control sends. The same snapshot provides this time and all other facts
for the decision. Slurm's programs identify a job only by its number, so one threat remains. Slurm forgets a job
MinJobAge (usually 300 s) after its end, and numbers begin again after MaxJobId. If the Slurm admin service were
suspended for that long between the snapshot and the command, just when the numbers begin again, it could act on another
job.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import assert_never

from gleaner.agent.privileged.common.request import Refused
from gleaner.control.slurm.snapshot import (
    ASKED_TO_SAVE,
    CHECKPOINTABLE,
    DEFAULT_CLASS,
    DRAINED_BY,
    OURS,
    PREEMPTIBLE,
    RELEASED,
    RELEASED_ON_TOP,
    WAITS_FOR_ITS_TURN,
    SlurmJob,
    SlurmNode,
    class_of,
    is_held_for_us,
)
from gleaner.control.slurm_admin.request import (
    Drain,
    Explain,
    Hold,
    JobRequest,
    NodeRequest,
    Release,
    Requeue,
    Resume,
    Signal,
)
from gleaner.control.slurm_admin.settings import SlurmAdminSettings

TOP_NICE = 2_000_000_000
"""The number by which the nice of a job on top is reduced. A priority cannot be set while a job is held, and a priority
that is set after the release comes too late for the scheduler's next pass. A nice can be set while the job is held, and
the original nice can be calculated from it later."""

NICEST = TOP_NICE // 2 - 1
"""The highest nice that a job can have after it was on top. A higher original nice is replaced by this one, because it
could not be distinguished from ours."""

_DRAINED = frozenset({"DRAIN", "DRAINED", "DRAINING", "DOWN", "FAIL", "FAILING", "POWERED_DOWN", "POWERING_DOWN"})

HOUR_S = 3600.0

Command = tuple[str, ...]


def check_partitions(named: Collection[str], settings: SlurmAdminSettings) -> None:
    """Raise `Refused` unless control enforces entitlements in exactly the partitions whose jobs slurmctld's script
    holds.

    A job that is held in a partition that control never reads would wait forever.
    """
    wrong: list[str] = []
    if held := sorted(settings.partitions.keys() - set(named)):
        wrong.append(
            f"slurm-admin.conf holds the jobs of {', '.join(held)}, which [entitlements] partitions does not name:"
            " name it there and restart control, or take its line out of slurm-admin.conf"
        )
    if passed := sorted(set(named) - settings.partitions.keys()):
        wrong.append(
            f"[entitlements] partitions names {', '.join(passed)}, which has no line in slurm-admin.conf:"
            " add one, or take it out of [entitlements] and restart control"
        )
    if wrong:
        raise Refused(f"no entitlements are enforced: {'; '.join(wrong)}")


def commands_for_job(request: JobRequest, job: SlurmJob, settings: SlurmAdminSettings) -> list[Command]:
    """Return the commands for a request about a job, in order. Raises `Refused`."""
    _check_is_meant(request, job)
    _check_partition(job, settings)
    match request:
        case Release():
            _check_held_by_us(job)
            return _release(job, top=request.top)
        case Explain():
            _check_held_by_us(job)
            return [_update(job, f"AdminComment={_mark(request.text)}")]
        case Hold():
            _check_pending(job)
            # Any mark suffices, since a job that another program requeued still has the mark from before its start.
            if job.priority == 0 or not job.admin_comment.startswith(OURS):
                raise Refused(f"job {job.id} was not released by us")
            return [_marked_as_waiting(job), ("scontrol", "uhold", job.id)]
        case Requeue():
            _check_running(job, PREEMPTIBLE)
            if not job.is_requeuable:
                raise Refused(f"job {job.id} cannot be requeued: it is interactive, or says --no-requeue")
            return [_marked_as_waiting(job), ("scontrol", "requeuehold", job.id)]
        case Signal():
            _check_running(job, CHECKPOINTABLE)
            # The signal goes only to the job's steps, because it would end the batch shell. A job that requeues itself
            # waits for us.
            return [_update(job, f"AdminComment={ASKED_TO_SAVE}"), ("scancel", "--signal=USR1", job.id)]
        case _:
            assert_never(request)


def commands_for_nodes(
    request: NodeRequest, nodes: Mapping[str, SlurmNode], settings: SlurmAdminSettings, account: str
) -> list[Command]:
    """Return the commands for all nodes of a request. Raises `Refused`, and then nothing is done for any of them.

    `account` is the account that runs the commands. For a drain, `nodes` are all nodes that Slurm knows.
    """
    for name in request.nodes:
        if name not in nodes:
            raise Refused(f"Slurm knows no node {name}")
        if not nodes[name].partitions & (settings.drained | settings.partitions.keys()):
            raise Refused(f"node {name} is in no partition that Gleaner may drain")
        _check_node(request, nodes[name], account)
    named = f"NodeName={','.join(request.nodes)}"
    match request:
        case Drain():
            _check_number(len(request.nodes), nodes, settings, account)
            return [("scontrol", "update", named, "State=DRAIN", f"Reason={DRAINED_BY}{request.by}")]
        case Resume():
            # UNDRAIN and not RESUME, which would also bring up a node that is down.
            return [("scontrol", "update", named, "State=UNDRAIN")]
        case _:
            assert_never(request)


def check_rate(wanted: int, drained: Sequence[tuple[float, int]], settings: SlurmAdminSettings, now_s: float) -> None:
    """Raise `Refused` if draining `wanted` more nodes would exceed the hourly limit.

    `drained` contains the times of earlier drains, each with its number of nodes.
    """
    this_hour = sum(count for at_s, count in drained if abs(now_s - at_s) < HOUR_S)
    if this_hour + wanted > settings.drains_per_hour:
        raise Refused(
            f"drains-per-hour in slurm-admin.conf is {settings.drains_per_hour:g}, {this_hour} nodes were drained"
            f" within the last hour, and {wanted} more are asked for: wait, or raise it"
        )


def _check_number(wanted: int, nodes: Mapping[str, SlurmNode], settings: SlurmAdminSettings, account: str) -> None:
    ours = sum(_is_ours(node, account) for node in nodes.values())
    if ours + wanted > settings.drain_at_most:
        raise Refused(
            f"drain-at-most in slurm-admin.conf is {settings.drain_at_most:g}, {ours} nodes are drained by us, and"
            f" {wanted} more are asked for: set some back first, or raise it"
        )


def _release(job: SlurmJob, *, top: bool) -> list[Command]:
    nice = min(own_nice(job.nice), NICEST) - TOP_NICE if top else own_nice(job.nice)
    changes = [] if nice == job.nice else [f"Nice={nice}"]
    if job.restarts > 0:
        changes.append("StartTime=now")  # otherwise Slurm delays a requeued job by two minutes, even if nodes are idle
    first = [_update(job, *changes)] if changes else []
    mark = RELEASED_ON_TOP if top else RELEASED
    return [*first, ("scontrol", "release", job.id), _update(job, f"AdminComment={mark}")]


def own_nice(nice: int) -> int:
    """Return the nice that the job's owner requested.

    >>> own_nice(7), own_nice(7 - TOP_NICE)
    (7, 7)
    """
    return nice + TOP_NICE if nice < -TOP_NICE // 2 else nice


def _mark(text: str) -> str:
    mark = OURS + text.removeprefix(OURS)
    if mark.startswith(RELEASED):
        raise Refused(f"{text[:40]!r} is no reason to be held")
    return mark


def _marked_as_waiting(job: SlurmJob) -> Command:
    return _update(job, f"AdminComment={WAITS_FOR_ITS_TURN}", f"Nice={own_nice(job.nice)}")


def _update(job: SlurmJob, *changes: str) -> Command:
    return ("scontrol", "update", f"JobId={job.id}", *changes)


def _check_is_meant(request: JobRequest, job: SlurmJob) -> None:
    if request.submitted_s is not None and request.submitted_s != job.submitted_s:
        raise Refused(
            f"job {job.id} is not the one that is meant: it was submitted or requeued at {job.submitted_s}, that one"
            f" at {request.submitted_s}"
        )


def _check_partition(job: SlurmJob, settings: SlurmAdminSettings) -> None:
    for partition in job.partitions:
        if partition not in settings.partitions:
            raise Refused(f"job {job.id} is in partition {partition}, which has no entitlements")


def _check_alive(job: SlurmJob) -> None:
    if job.has_ended:
        raise Refused(f"job {job.id} has ended ({_state(job)})")


def _check_pending(job: SlurmJob) -> None:
    _check_alive(job)
    if not job.is_pending:
        raise Refused(f"job {job.id} does not wait ({_state(job)})")


def _check_held_by_us(job: SlurmJob) -> None:
    _check_pending(job)
    if job.priority != 0:
        raise Refused(f"job {job.id} is not held")
    if not is_held_for_us(job):
        raise Refused(f"job {job.id} is held by somebody else ({job.reason})")


def _check_running(job: SlurmJob, wanted: str) -> None:
    _check_alive(job)
    declared = class_of(job.comment)
    if declared != wanted:
        raise Refused(f"job {job.id} is not {wanted}: it {_declares(declared)}")
    if not job.is_running:
        raise Refused(f"job {job.id} does not run ({_state(job)})")


def _declares(declared: str | None) -> str:
    if declared is None:
        return "declares no class that there is"
    return "is left alone once it runs" if declared == DEFAULT_CLASS else f"declares {declared}"


def _state(job: SlurmJob) -> str:
    return "+".join(sorted(job.states))


def _check_node(request: NodeRequest, node: SlurmNode, account: str) -> None:
    if isinstance(request, Drain):
        if found := node.states & _DRAINED:
            raise Refused(f"node {node.name} is {'+'.join(sorted(found))} already ({node.reason or 'no reason given'})")
    elif not _is_ours(node, account):
        raise Refused(f"node {node.name} was not drained by us ({node.reason or 'not drained'})")


def _is_ours(node: SlurmNode, account: str) -> bool:
    return "DRAIN" in node.states and node.reason.startswith(DRAINED_BY) and node.reason_by == account
