"""The models of drains: the nodes to empty and the jobs on them."""

from enum import StrEnum
from typing import Annotated

from pydantic import Field, StringConstraints

from gleaner.agent.job_spec import Flag, Shape
from gleaner.control.models.base import Reply
from gleaner.control.policy.draining import Deed, Kind, Spanning
from gleaner.control.slurm_admin.request import MOST_NODES

Nodes = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=10_000)], ...],
    Field(fail_fast=True, min_length=1, max_length=MOST_NODES),
]


class DrainTask(StrEnum):
    """An admin's request."""

    DRAIN = "drain"
    DRY_RUN = "dry run"
    """Say what a drain would do."""
    RESUME = "resume"


class DrainPhase(StrEnum):
    """The progress of a request. Each phase is written down before its work is done, so that a killed control goes on
    there."""

    ASKED = "asked"
    MARKING = "marking"
    """The nodes are being marked, and their jobs looked at."""
    EMPTYING = "emptying"
    SETTING_BACK = "setting back"
    EMPTY = "empty"
    """Done: nothing runs there any more."""
    LOOKED = "looked"
    """Done: a dry run."""
    REFUSED = "refused"
    """Nothing was done, or it was undone."""
    RESUMED = "resumed"
    STOPPED = "stopped"
    """Somebody else has set a node back meanwhile."""


OVER = (DrainPhase.EMPTY, DrainPhase.LOOKED, DrainPhase.REFUSED, DrainPhase.RESUMED, DrainPhase.STOPPED)


class DrainRequest(Shape):
    """Nodes to empty, as in Slurm's lists: `node[1-3]`."""

    nodes: Nodes
    spanning: Spanning = Spanning.REFUSE
    """The treatment of a job that also runs on other nodes."""
    leave_others: Flag = False
    """Be done when nothing is left that may be touched."""
    dry_run: Flag = False


class ResumeRequest(Shape):
    """Nodes to use again."""

    nodes: Nodes


class DrainedJob(Reply):
    """A job of Slurm's on nodes that are drained."""

    job: str
    user: str
    kind: Kind
    deed: Deed
    nodes: tuple[str, ...]
    until_s: float | None
    """The latest time at which the scheduler ends the job."""
    at_first: int = 1
    """The number of jobs of our queue that the agent had when it was first seen; 1 for a job that is no agent."""
    left: int = 1
    told_s: float | None = None
    gone_s: float | None = None
    released: bool = False
    """True if it has been let into Slurm's queue again, or needs no such thing."""


class DrainRow(Reply):
    """A request of an admin to drain or resume nodes, with its state."""

    id: int
    task: DrainTask
    phase: DrainPhase
    nodes: tuple[str, ...]
    by: str
    spanning: Spanning = Spanning.REFUSE
    leaves_others: bool = False
    asked_s: float
    ended_s: float | None = None
    """The end of the drain; None while it goes on."""
    said: str = ""
    """The reason why the drain waits, was refused, or would be refused; empty if there is none."""
    jobs: tuple[DrainedJob, ...] = ()

    @property
    def is_over(self) -> bool:
        """True if nothing more will be done for it."""
        return self.phase in OVER
