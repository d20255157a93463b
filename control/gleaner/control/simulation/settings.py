"""What a simulation can be told; the tables of a scenario file (TOML) have the same names."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gleaner.control.simulation import costs


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class Discipline(StrEnum):
    """How regular jobs are chosen."""

    FCFS = "fcfs"
    """In order of submission; the first that does not fit stops the others."""
    EASY = "easy"
    """The head of the queue has a reservation; others may overtake if they do not delay it."""
    CONSERVATIVE = "conservative"
    """Every waiting job has a reservation."""
    PRIORITY = "priority"
    """By a linear sum of age, size and limit, as Slurm's multi-factor priority."""
    SFS = "sfs"
    """Simultaneous Fair-Share: first those below their target throughput, then anyone."""
    OMFS = "omfs"
    """Optimized Memoryless Fair-Share: entitlements, taken back by saving others' jobs."""


class Backfill(StrEnum):
    """What a walk along the priority list does at the first job that does not fit."""

    NONE = "none"
    """It stops."""
    EASY = "easy"
    """It reserves for that job, and goes on with those that do not delay it."""


class Migration(StrEnum):
    """Which running jobs are moved (Rodríguez-Pascual et al., 2019)."""

    NONE = "none"
    COMPACTION = "compaction"
    """Partly used nodes are emptied into others."""
    PRIORITIES = "priorities"
    """Jobs move up to the nodes of higher priority."""


class CostSettings(_Table):
    """What one save, or one restore, takes: `constant_s`, and the memory through the bandwidths that are not 0."""

    constant_s: float = Field(default=0, ge=0)
    node_mib_s: float = Field(default=0, ge=0)
    """What one node moves; 0: as fast as you like."""
    shared_mib_s: float = Field(default=0, ge=0)
    """What the storage takes from all that save (or restore) at once; 0: as much as you like."""

    def seconds(self, memory_mib: float, at_once: int = 1) -> float:
        """How long it takes when so many of this size do it at the same time.

        >>> CostSettings(constant_s=1, node_mib_s=100, shared_mib_s=1000).seconds(2000, at_once=30)
        61.0
        """
        return costs.seconds(self.constant_s, self.node_mib_s, self.shared_mib_s, memory_mib, at_once)


class PrioritySettings(_Table):
    """`[scheduler.priority]`: weights of the linear sum, as Slurm's multi-factor priority has them."""

    per_second: float = 1.0
    """For each second that the job has waited."""
    per_unit: float = 0.0
    """For each node (or processor) that it asks for."""
    per_limit_s: float = 0.0
    """For each second of its limit; negative favours short jobs."""
    backfill: Backfill = Backfill.NONE


class ShareSettings(_Table):
    """`[scheduler.sfs]`: target throughput in units (nodes or processors) for each user, times `factor`."""

    targets: dict[str, float] = {}
    """Ideal throughput by user; who is not named has `others`."""
    others: float = 0.0
    factor: float = Field(default=1.0, gt=0)


class EntitlementSettings(_Table):
    """`[scheduler.omfs]`: who may take back how much, and what stops thrashing."""

    percent: dict[str, float] = {}
    """Of the machine, by group. Who is not named is entitled to nothing and runs on what is idle."""
    quantum_s: float = Field(default=1800, ge=0)
    """How long a job runs before it is among the first to be vacated."""
    quantum_protects: bool = True
    """Before that it is not vacated at all, so a claim may wait for a quantum; else only after all others."""
    literal: bool = False
    """Algorithm 1 as it is printed, for study; by default the text around it counts."""
    save: CostSettings = CostSettings()
    restore: CostSettings = CostSettings()

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if any(share < 0 for share in self.percent.values()) or sum(self.percent.values()) > 100 + 1e-9:
            raise ValueError(f"entitlements are {sum(self.percent.values()):g} % in sum; they go from 0 to 100")
        return self


class MigrationSettings(_Table):
    """`[scheduler.migration]`: one move at a time, and none while a job waits."""

    kind: Migration = Migration.NONE
    every_s: float = Field(default=30, gt=0)
    save: CostSettings = CostSettings(constant_s=30)
    restore: CostSettings = CostSettings(constant_s=30)


class SchedulerSettings(_Table):
    """`[scheduler]`"""

    kind: Discipline = Discipline.EASY
    decide_every_s: float = Field(default=0, ge=0)
    """Decisions at multiples of this; 0: whenever a job comes or ends."""
    priority: PrioritySettings = PrioritySettings()
    sfs: ShareSettings = ShareSettings()
    omfs: EntitlementSettings = EntitlementSettings()
    migration: MigrationSettings = MigrationSettings()


class AgentQueueSettings(_Table):
    """`[agents.queue]`: the low-priority jobs. Without `jobs` there is always one more."""

    jobs: int | None = Field(default=None, ge=0, le=10**8)
    work_s: float = Field(default=0, ge=0)
    """What each computes in all, on one of an agent's places."""
    memory_mib: float = Field(default=0, ge=0)
    """Of one job: what a save and a restore move."""

    @model_validator(mode="after")
    def _jobs_have_work(self) -> Self:
        if self.jobs and not self.work_s:
            raise ValueError("so many jobs without work_s: say how long each computes")
        return self


class AgentSettings(_Table):
    """`[agents]`: Gleaner's agents on idle nodes."""

    length_s: float = Field(default=3600, gt=0)
    """All agents end at multiples of this (synchronised), or each runs for so long."""
    synchronised: bool = True
    shortest_slice_s: float = Field(default=600, gt=0)
    """No agent starts with less time left."""
    agents_at_most: int = Field(default=10**9, ge=0, le=10**9)
    jobs_per_agent: int = Field(default=1, ge=1, le=10**6)
    """How many jobs share a node; they save and restore at once."""
    margin_s: float = Field(default=0, ge=0)
    """How much earlier than its cost a save begins: time in which nothing is computed. A save that needs more than
    the estimate and the margin would lose the slice."""
    save: CostSettings = CostSettings()
    restore: CostSettings = CostSettings()
    preemption: bool = False
    """A regular job that could start on agents' nodes has them vacated, and starts when they are saved."""
    queue: AgentQueueSettings = AgentQueueSettings()

    @model_validator(mode="after")
    def _a_slice_fits(self) -> Self:
        if self.shortest_slice_s > self.length_s:
            raise ValueError("shortest_slice_s is more than length_s: no agent would ever start")
        return self
