"""What is sent and received about nodes that are drained and jobs that are moved."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from gleaner.agent.protocol import Flag
from gleaner.control.api.shapes import Name, Reply, Shape
from gleaner.control.steward.request import MOST_NODES

Nodes = Annotated[
    tuple[Annotated[str, StringConstraints(min_length=1, max_length=10_000)], ...],
    Field(min_length=1, max_length=MOST_NODES),
]


class DrainRequest(Shape):
    """Nodes to empty, as in Slurm's lists: `node[1-3]`."""

    nodes: Nodes
    spanning: Literal["wait", "requeue", "refuse"] = "refuse"
    """What becomes of a job that also runs on other nodes."""
    leave_others: Flag = False
    """Be done when nothing is left that may be touched."""
    dry_run: Flag = False


class ResumeRequest(Shape):
    """Nodes to use again."""

    nodes: Nodes


class DrainedJobRow(Reply):
    """One job of the scheduler's on these nodes."""

    job: str
    user: str
    kind: str
    """agent, checkpointable, preemptible, or other: its owner has not declared that anything may be done to it."""
    deed: str
    """send home, save, requeue, or wait."""
    nodes: tuple[str, ...]
    until_s: float | None
    """When the scheduler ends it at the latest."""
    at_first: int
    """How many jobs of our queue an agent had; 1 for whatever is no agent."""
    left: int
    told_s: float | None
    gone_s: float | None


class DrainRow(Reply):
    """What an admin has asked to be done to nodes, and how far it is."""

    id: int
    task: str
    """drain, dry run or resume."""
    phase: str
    """asked, marking, emptying, setting back; then empty, looked, refused, resumed or stopped."""
    nodes: tuple[str, ...]
    by: str
    asked_s: float
    ended_s: float | None
    """None: it goes on."""
    said: str
    """Why it waits, was refused, or would be; empty if there is nothing to say."""
    jobs: tuple[DrainedJobRow, ...]


class MigrateRequest(Shape):
    """Where a job is to go on; None: on any other node."""

    to: Name | None = None
