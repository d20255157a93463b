"""The models of drains: the nodes to empty and the jobs on them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from gleaner.agent.job_spec import Flag, Shape
from gleaner.control.models.base import Reply
from gleaner.control.policy.draining import Deed, Spanning
from gleaner.control.slurm_admin.request import MOST_NODES

Nodes = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=10_000)], ...],
    Field(fail_fast=True, min_length=1, max_length=MOST_NODES),
]


class DrainTask(StrEnum):
    """An admin's request."""

    DRAIN = "drain"
    DRY_RUN = "dry run"
    """Report what a drain would do."""
    RESUME = "resume"


class DrainPhase(StrEnum):
    """The progress of a request.

    Each phase is recorded before its work begins, so that control continues from there after a restart.
    """

    ASKED = "asked"
    MARKING = "marking"
    """The nodes are being marked, and their jobs examined."""
    EMPTYING = "emptying"
    SETTING_BACK = "setting back"
    EMPTY = "empty"
    """Finished: nothing runs on the nodes any more."""
    LOOKED = "looked"
    """Finished: this was a dry run."""
    REFUSED = "refused"
    """Nothing was changed, or every change was undone."""
    RESUMED = "resumed"
    STOPPED = "stopped"
    """Another person or program has resumed a node during the drain."""


class DrainRequest(Shape):
    """Nodes to drain, in the notation of Slurm's lists: `node[1-3]`."""

    nodes: Nodes
    spanning: Spanning = Spanning.REFUSE
    """The treatment of a job that also runs on other nodes."""
    leave_others: Flag = False
    """True if the drain ends when only jobs are left that must not be disturbed."""
    dry_run: Flag = False


class ResumeRequest(Shape):
    """Nodes to resume."""

    nodes: Nodes


class DrainedJob(Reply):
    """A Slurm job on nodes that are being drained."""

    job: str
    user: str
    deed: Deed
    nodes: tuple[str, ...]
    until_s: float | None
    """The latest time at which the scheduler ends the job."""
    at_first: int = 1
    """The number of our queue's jobs that the agent had when the drain first found it, or 1 if the Slurm job is not an
    agent."""
    left: int = 1
    told_s: float | None = None
    gone_s: float | None = None
    released: bool = False
    """True if the job has been released to Slurm's queue again, or needs no release."""


class DrainRow(Reply):
    """An admin's request to drain or resume nodes, with its state."""

    id: int
    task: DrainTask
    phase: DrainPhase
    nodes: tuple[str, ...]
    by: str
    spanning: Spanning = Spanning.REFUSE
    leaves_others: bool = False
    asked_s: float
    ended_s: float | None = None
    """The end of the drain, or None while it is in progress."""
    said: str = ""
    """The reason why the drain waits, was refused, or would be refused, or "" if there is none."""
    jobs: tuple[DrainedJob, ...] = ()

    @property
    def is_over(self) -> bool:
        """Return True if the request is finished."""
        return self.ended_s is not None
