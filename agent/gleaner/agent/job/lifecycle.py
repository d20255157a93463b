"""One job on one node, as a pure step function that turns an event into the next state and the things to do.

The executor (`job.executor`) carries them out, one after the other, and feeds the outcomes back. There is no clock and
no I/O here. The order of the things to do keeps a job safe. A process is killed only after its checkpoint is published,
and a published checkpoint is reported at once, before anything else can fail. After a periodic save a process continues
only when the report can no longer be lost with the agent.

A workload that saves itself receives its signal, and its folder is published when it has exited with the agreed code.
"""

from dataclasses import dataclass, replace
from enum import Enum
from signal import Signals
from typing import TypeAlias

from gleaner.agent.job_spec import SelfSave
from gleaner.agent.messages import Checkpoint, ReturnReason
from gleaner.agent.runtime.interface import ContainerId

SAVE_TRIES = 3
"""The number of failed saves after which no further save is tried for the same reason."""
NO_CHECKPOINT = "no checkpoint was published before the agent's end"


class Unexpected(Exception):
    """An event that cannot happen in this state, and therefore reveals a bug in Gleaner."""


# ── states ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Preparing:
    """The job's folder and container are being made. With `vacating` the job must not begin to compute."""

    saves_itself: SelfSave | None = None
    vacating: bool = False
    dropped: bool = False


@dataclass(frozen=True, slots=True)
class Running:
    """The job's process runs. With `vacating` the agent is ending, and failed saves count from then on.

    Failed periodic saves do not count. Of the failures since the last checkpoint, `failure` is the one to report
    (`_failure_to_report`).
    """

    container: ContainerId
    failed_saves: int = 0
    vacating: bool = False
    saves_itself: SelfSave | None = None
    failure: "SaveFailed | None" = None


@dataclass(frozen=True, slots=True)
class Saving:
    """The job is paused, or soon will be, and its checkpoint is being written. With `periodic` it continues
    afterwards."""

    container: ContainerId
    failed_saves: int = 0
    vacating: bool = False
    periodic: bool = False
    failure: "SaveFailed | None" = None


@dataclass(frozen=True, slots=True)
class Signalled:
    """The job's process has been sent the signal to save itself and exit. `vacating` is as in `Running`."""

    container: ContainerId
    saves_itself: SelfSave
    vacating: bool = False


@dataclass(frozen=True, slots=True)
class Storing:
    """The job's process has saved itself and exited, and the job's folder is being published as a checkpoint."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class Finishing:
    """The job's process exited on its own, and the job's folder is being published."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class Ended:
    """Nothing is left to decide. A `late` job was returned for lack of time, and can still be stored."""

    late: bool = False


Task: TypeAlias = Preparing | Running | Saving | Signalled | Storing | Finishing | Ended


# ── events ────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Started:
    """The process runs, from the beginning or from its checkpoint."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The container could not be made, and nothing of it is left."""

    why: ReturnReason
    detail: str


@dataclass(frozen=True, slots=True)
class Exited:
    """The process ended on its own, or was killed because it reached its memory limit."""

    exit_code: int
    out_of_memory: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Lost:
    """The runtime disappeared, or the process or its container was killed from outside. The job is not to blame."""

    detail: str
    why: ReturnReason = ReturnReason.NODE_FAULT


class JobLimit(Enum):
    """A limit that ends a job. The value is the exit code of a process that is ended by the corresponding signal."""

    DISK = 153
    """The job has written more than its limit. The exit code is that of SIGXFSZ."""
    COMPUTING = 152
    """The job has used up its computing time. The exit code is that of SIGXCPU."""
    SILENCE = 142
    """The job has computed for too long without writing anything. The exit code is that of SIGALRM."""


@dataclass(frozen=True, slots=True)
class LimitPassed:
    """The job has passed a limit, perhaps before it began here, which is a failure of the job itself."""

    detail: str
    limit: JobLimit = JobLimit.DISK


@dataclass(frozen=True, slots=True)
class SaveDue:
    """The job has computed for so long that a save is worth its cost, in case the node is lost."""


@dataclass(frozen=True, slots=True)
class VacateAsked:
    """Control wants this job to be saved."""


@dataclass(frozen=True, slots=True)
class AgentEnds:
    """The clock, control or Slurm requires all jobs of the agent to be saved. This event is repeated until they are
    saved."""


@dataclass(frozen=True, slots=True)
class DropAsked:
    """Control reports that this attempt is over, because it was cancelled or is no longer the current one."""


@dataclass(frozen=True, slots=True)
class SaveDone:
    """The checkpoint is published."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class SaveFailed:
    """No checkpoint was published, and the container is still there. `why` is SAVE_FAILED if the next try might
    succeed."""

    detail: str
    why: ReturnReason = ReturnReason.SAVE_FAILED


@dataclass(frozen=True, slots=True)
class OutOfTime:
    """The agent's end has come, so the agent no longer waits for a publication.

    `storage_fault` describes the storage's failure, if that was the reason.
    """

    storage_fault: str = ""


@dataclass(frozen=True, slots=True)
class Finished:
    """The folder is published and the report is written."""


Event: TypeAlias = (
    Started
    | NotStarted
    | Exited
    | Lost
    | LimitPassed
    | SaveDue
    | VacateAsked
    | AgentEnds
    | DropAsked
    | SaveDone
    | SaveFailed
    | OutOfTime
    | Finished
)


# ── things to do ──────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Save:
    """Pause the container, and write and publish its checkpoint."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class GoOn:
    """Let a paused container continue."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class SendSignal:
    """Resume the process if it is paused, and send it the signal."""

    container: ContainerId
    signal: str


@dataclass(frozen=True, slots=True)
class StoreFolder:
    """Publish the folder as a checkpoint."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class Finish:
    """Publish the folder and report the exit."""

    container: ContainerId
    exit_code: int
    out_of_memory: bool = False
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Kill:
    """End the container and remove it."""

    container: ContainerId


@dataclass(frozen=True, slots=True)
class ReportSaved:
    """Report the checkpoint."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ReportCheckpointed:
    """Report the checkpoint of an attempt that continues."""

    checkpoint: Checkpoint


@dataclass(frozen=True, slots=True)
class ReportStopped:
    """Report that the job was ended because it passed a limit."""

    reason: str
    limit: JobLimit = JobLimit.DISK


@dataclass(frozen=True, slots=True)
class ReportReturned:
    """Report that this attempt ends without a checkpoint."""

    why: ReturnReason
    detail: str


@dataclass(frozen=True, slots=True)
class Clean:
    """Remove the job's folder from the node."""


Todo: TypeAlias = (
    Save
    | GoOn
    | SendSignal
    | StoreFolder
    | Finish
    | Kill
    | ReportSaved
    | ReportCheckpointed
    | ReportStopped
    | ReportReturned
    | Clean
)


def step(task: Task, event: Event) -> tuple[Task, list[Todo]]:  # noqa: PLR0912 - one case per transition
    """Return the state after `event`, and the things to do, in order.

    >>> step(Running(ContainerId("c1")), VacateAsked())
    (Saving(container='c1', failed_saves=0, vacating=False, periodic=False, failure=None), [Save(container='c1')])
    """
    match task, event:
        case Ended(late=True), SaveDone(checkpoint):
            return Ended(), [ReportSaved(checkpoint)]
        case Ended(), _:
            return task, []

        case Preparing(saves_itself, vacating=False, dropped=False), Started(container):
            return Running(container, saves_itself=saves_itself), []
        case Preparing(dropped=True), Started(container):
            return Ended(), [Kill(container), Clean()]
        case Preparing(), Started(container):
            # Nothing was computed, so the old checkpoint is still the newest state.
            return Ended(), [Kill(container), ReportReturned(ReturnReason.UNSTARTED, "the agent was ending"), Clean()]
        case Preparing(dropped=True), NotStarted():
            return Ended(), [Clean()]
        case Preparing(), NotStarted(ReturnReason() as why, detail):
            return Ended(), [ReportReturned(why, detail), Clean()]
        case Preparing(dropped=dropped), LimitPassed(detail, limit):  # no container was made
            return Ended(), [] if dropped else [ReportStopped(detail, limit)]
        case Preparing(), VacateAsked() | AgentEnds() | OutOfTime():
            return replace(task, vacating=True), []
        case Preparing(), DropAsked():
            return replace(task, dropped=True), []

        case Running(container, failed, vacating=False, saves_itself=None, failure=failure), SaveDue():
            return Saving(container, failed, periodic=True, failure=failure), [Save(container)]
        case _, SaveDue():  # the job saves itself, or is already being saved
            return task, []

        case Running(container, saves_itself=SelfSave() as how), VacateAsked() | AgentEnds():
            return Signalled(container, how, vacating=isinstance(event, AgentEnds)), [SendSignal(container, how.signal)]
        case Signalled(container, how, vacating=False), AgentEnds():  # the first signal might have been missed
            return replace(task, vacating=True), [SendSignal(container, how.signal)]

        # The agent's end is a new reason to save. A save that failed earlier might succeed now, and this is the last
        # chance.
        case Running(container, vacating=False, failure=failure), AgentEnds():
            return Saving(container, 0, vacating=True, failure=failure), [Save(container)]
        case Saving(vacating=False), AgentEnds():
            return replace(task, failed_saves=0, vacating=True, periodic=False), []
        # The job has not run since the periodic save began, and stays paused until that save is published.
        case Saving(periodic=True), VacateAsked():
            return replace(task, periodic=False), []
        case Running(container, failed, vacating, failure=failure), VacateAsked() | AgentEnds():
            if failed >= SAVE_TRIES:
                return task, []
            return Saving(container, failed, vacating, failure=failure), [Save(container)]
        case Saving(container, failed, vacating, periodic, failure), SaveFailed():
            failure = _failure_to_report(failure, event)
            return Running(container, failed + (not periodic), vacating, failure=failure), [GoOn(container)]
        case Saving(container, failed, vacating, periodic=True), SaveDone(checkpoint):
            return Running(container, failed, vacating), [ReportCheckpointed(checkpoint), GoOn(container)]
        case ((Saving(container) | Storing(container)), SaveDone(checkpoint)):
            return Ended(), [ReportSaved(checkpoint), Kill(container), Clean()]

        # As with HTCondor, this exit code counts even if no save was requested.
        case ((Running(container, saves_itself=SelfSave() as how) | Signalled(container, how)), Exited(exit_code)) if (
            exit_code == how.exit_code
        ):
            return Storing(container), [StoreFolder(container)]
        case Signalled(container, how), Exited(exit_code) if exit_code == 128 + Signals[how.signal]:
            back = ReportReturned(ReturnReason.SAVE_FAILED, f"{how.signal} has ended it, and it has not saved itself")
            return Ended(), [back, Kill(container), Clean()]
        # The exit of the process takes precedence over a save that is not yet published.
        case ((Running(container) | Saving(container) | Signalled(container)), Exited() as end):
            return Finishing(container), [Finish(container, end.exit_code, end.out_of_memory, end.reason)]
        case Finishing(container), Finished():
            return Ended(), [Kill(container), Clean()]
        case Finishing(container), OutOfTime(fault):
            back = _unstored(ReturnReason.TOO_LATE, "its result was not stored before the agent's end", fault)
            return Ended(late=True), [back, Kill(container), Clean()]

        case ((Running(container) | Saving(container) | Signalled(container)), Lost(detail, why)):
            return Ended(), [Kill(container), ReportReturned(why, detail), Clean()]
        case ((Finishing() | Storing()), Lost()):  # the process exited first
            return task, []
        case ((Running(container) | Saving(container) | Signalled(container)), LimitPassed(detail, limit)):
            return Ended(), [Kill(container), ReportStopped(detail, limit), Clean()]
        case ((Finishing() | Storing()), LimitPassed()):  # the process no longer writes, and the folder is being stored
            return task, []
        case (Signalled(container), OutOfTime()):
            back = ReportReturned(ReturnReason.SAVE_FAILED, "it had not saved itself and exited before the agent's end")
            return Ended(), [back, Kill(container), Clean()]
        case (
            (Running(container, failed, failure=failure) | Saving(container, failed, failure=failure)),
            OutOfTime(fault),
        ):
            back = _unsaved(failure, failed, fault)
            return Ended(late=isinstance(task, Saving)), [back, Kill(container), Clean()]
        case Storing(container), OutOfTime(fault):
            back = _unstored(ReturnReason.TOO_LATE, NO_CHECKPOINT, fault)
            return Ended(late=True), [back, Kill(container), Clean()]
        case (
            (Running(container) | Saving(container) | Signalled(container) | Storing(container) | Finishing(container)),
            DropAsked(),
        ):
            return Ended(), [Kill(container), Clean()]

        # A second or late request, which is already being carried out.
        case ((Saving() | Signalled() | Storing() | Finishing()), (VacateAsked() | AgentEnds())):
            return task, []
        case ((Finishing() | Running()), (SaveFailed() | SaveDone())):  # the exit won the race
            return task, []
        case _:
            raise Unexpected(f"{event} in {task}")


def unsaved_line(task: Running | Saving) -> str:
    """Return why saves have failed since the last checkpoint, in the words of a returned job's report, or "" if none
    has failed.

    >>> unsaved_line(Running("c1", failure=SaveFailed("it has a queue", ReturnReason.UNSAVABLE)))
    'cannot be saved: it has a queue'
    """
    if task.failure is None:
        return ""
    return f"{task.failure.why}: {task.failure.detail}"


def _failure_to_report(first: SaveFailed | None, then: SaveFailed) -> SaveFailed:
    """Return the first failure, or the later one if only that one is permanent."""
    passes = ReturnReason.SAVE_FAILED
    return then if first is None or (first.why is passes and then.why is not passes) else first


def _unsaved(failure: SaveFailed | None, failed_saves: int, storage_fault: str) -> ReportReturned:
    """Return the report of a job that ran and was not saved at the agent's end."""
    if failure is None:
        return _unstored(ReturnReason.TOO_LATE, NO_CHECKPOINT, storage_fault)
    if failed_saves or failure.why is not ReturnReason.SAVE_FAILED:
        return _unstored(failure.why, NO_CHECKPOINT, storage_fault, detail=failure.detail)
    detail = f"{NO_CHECKPOINT}; an earlier save had failed: {failure.detail}"
    return _unstored(ReturnReason.TOO_LATE, NO_CHECKPOINT, storage_fault, detail=detail)


def _unstored(why: ReturnReason, what: str, storage_fault: str, *, detail: str = "") -> ReportReturned:
    return (
        ReportReturned(ReturnReason.STORAGE_FAULT, f"{what}: {storage_fault}")
        if storage_fault
        else ReportReturned(why, detail or what)
    )
