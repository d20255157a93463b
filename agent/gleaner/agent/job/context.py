"""The tools, facts and settings that all jobs on a node share."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.common.clock import Clock
from gleaner.agent.common.limiter import Limiter
from gleaner.agent.job.inputs import Inputs
from gleaner.agent.job.url_inputs import UrlInputs
from gleaner.agent.messages import NodeFacts, Way
from gleaner.agent.node.disk_usage import DiskLimits
from gleaner.agent.reporting.client import Outbox
from gleaner.agent.runtime.interface import Runtime
from gleaner.agent.timing.save_cost import SaveEstimates


@dataclass(frozen=True, slots=True, kw_only=True)
class JobContext:
    """The tools of an executor: the runtime, the clock, the estimates of saves, and the limit on simultaneous saves."""

    runtime: Runtime
    estimates: SaveEstimates
    saves: Limiter
    clock: Clock
    hard_stop_s: Callable[[], float]
    """A function that returns the instant after which the executor no longer waits, shortly before the process must
    exit."""
    cleaner: str = "the watchdog"
    """The program that removes containers that this process cannot remove."""

    @property
    def way(self) -> Way:
        """The way in which this node saves memory."""
        return self.estimates.way


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext(JobContext):
    """An agent's node, its tools, and its settings."""

    agent: str
    slurm_job: str | None
    facts: NodeFacts
    storage: FolderStorage
    work: Path
    outbox: Outbox
    reports: Path
    """The folder on the storage in which control finds the reports that did not reach it."""
    begins: Limiter
    can_save: bool
    """True if this node can save and restore memory. Otherwise only workloads that save themselves can run here."""
    end_s: Callable[[], float]
    inputs: Inputs
    url_inputs: UrlInputs
    images_allowed: tuple[str, ...] = ("*",)
    images_pushed: bool = True
    """True if jobs can run the images that their groups have pushed."""
    images_limit_bytes: int = 200 * 2**30
    """The limit on all images that agents have brought to the node."""
    limits: DiskLimits = field(default_factory=DiskLimits)
