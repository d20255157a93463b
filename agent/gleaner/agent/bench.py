"""What all jobs of one agent share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.agent.client import Outbox
from gleaner.agent.disk import DiskLimits
from gleaner.agent.estimates import Estimates
from gleaner.agent.lanes import Lanes
from gleaner.agent.protocol import NodeFacts, Way
from gleaner.agent.runtime.protocol import Runtime
from gleaner.agent.storage.protocol import Storage


@dataclass(frozen=True, slots=True)
class Bench:
    """The agent's node, its tools, and its time."""

    agent: str
    slurm_job: str | None
    facts: NodeFacts
    runtime: Runtime
    storage: Storage
    work: Path
    outbox: Outbox
    estimates: Estimates
    saves: Lanes
    begins: Lanes
    can_save: bool
    """Whether this node can save and restore memory; if not, only workloads that save themselves are for it."""
    end_s: Callable[[], float]
    now_s: Callable[[], float]
    """The time by which the agent ends; see `clock`."""
    cut_s: Callable[[], float]
    """When nothing is waited for any more: a little before the agent must have left the storage and its containers."""

    images_allowed: tuple[str, ...] = ("*",)
    limits: DiskLimits = field(default_factory=DiskLimits)

    @property
    def way(self) -> Way:
        """How this node saves memory."""
        return self.estimates.way
