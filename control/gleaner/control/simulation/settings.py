"""The settings of a simulation. The tables of a scenario file (TOML) have the same names."""

from enum import StrEnum
from typing import Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class SettingsTable(BaseModel):
    """A table of a scenario file. Unknown keys are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class SchedulerKind(StrEnum):
    """The rule by which regular jobs are chosen."""

    FCFS = "fcfs"
    """Jobs start in order of submission. The first job that does not fit blocks all jobs behind it."""
    EASY = "easy"
    """The head of the queue has a reservation. Other jobs can overtake the head if they do not delay it."""
    CONSERVATIVE = "conservative"
    """Every waiting job has a reservation."""
    PRIORITY = "priority"
    """Jobs start in the order of a weighted sum of age, size and limit, like Slurm's multi-factor priority."""
    SFS = "sfs"
    """Simultaneous Fair-Share: users below their target throughput come first, then all others."""
    OMFS = "omfs"
    """Optimized Memoryless Fair-Share: owners take back their entitlements by saving others' jobs."""


class Backfill(StrEnum):
    """The behaviour at the first job in the priority list that does not fit."""

    NONE = "none"
    """No job behind it starts."""
    EASY = "easy"
    """It is given a reservation, and jobs behind it start if they do not delay it."""


class Migration(StrEnum):
    """The rule by which running jobs migrate (Rodríguez-Pascual et al., 2019)."""

    NONE = "none"
    COMPACTION = "compaction"
    """Partly used nodes are emptied into others."""
    PRIORITIES = "priorities"
    """Jobs migrate to nodes of higher priority."""


def transfer_s(constant_s: float, node_mib_s: float, shared_mib_s: float, memory_mib: float, at_once: float) -> float:
    """Return the seconds for each job if `at_once` jobs of this size are saved, or restored, at the same time.

    Each job moves its memory at the node's bandwidth or at its share of the storage's bandwidth, whichever is slower. A
    bandwidth of 0 is unlimited. The function uses only plain numbers, because the replays compile it.
    """
    slowest_s = 0.0
    if node_mib_s > 0:
        slowest_s = memory_mib / node_mib_s
    if shared_mib_s > 0:
        slowest_s = max(slowest_s, at_once * memory_mib / shared_mib_s)
    return constant_s + slowest_s


class CostSettings(SettingsTable):
    """The time of one save or restore, which is `constant_s` plus the time to move the memory at the given
    bandwidths."""

    constant_s: float = Field(default=0, ge=0)
    node_mib_s: float = Field(default=0, ge=0)
    """The bandwidth of one node, or 0 if unlimited."""
    shared_mib_s: float = Field(default=0, ge=0)
    """The bandwidth of the storage, which all jobs that save (or restore) at the same time share, or 0 if unlimited."""

    def seconds(self, memory_mib: float, at_once: int = 1) -> float:
        """Return the seconds that a save or restore of this memory takes if `at_once` of them happen at the same time.

        >>> CostSettings(constant_s=1, node_mib_s=100, shared_mib_s=1000).seconds(2000, at_once=30)
        61.0
        """
        return transfer_s(self.constant_s, self.node_mib_s, self.shared_mib_s, memory_mib, at_once)


class PrioritySettings(SettingsTable):
    """`[scheduler.priority]`: the weights of the linear sum, as in Slurm's multi-factor priority."""

    per_second: float = 1.0
    """The weight of each second that the job has waited."""
    per_unit: float = 0.0
    """The weight of each node (or processor) that the job requests."""
    per_limit_s: float = 0.0
    """The weight of each second of the job's limit. A negative weight favours short jobs."""
    backfill: Backfill = Backfill.NONE


class ShareSettings(SettingsTable):
    """`[scheduler.sfs]`: the target throughput of each user, in units (nodes or processors), which is multiplied by
    `factor`."""

    targets: dict[str, float] = {}
    """The ideal throughput by user. `others` applies to users who are not named."""
    others: float = 0.0
    factor: float = Field(default=1.0, gt=0)


class OmfsSettings(SettingsTable):
    """`[scheduler.omfs]`: the part of the machine that each group can take back, and the limits that prevent
    thrashing."""

    percent: dict[str, float] = {}
    """The percentage of the machine by group. A group that is not named has no entitlement and uses only idle units."""
    quantum_s: float = Field(default=1800, ge=0)
    """The time that a job must have run before it is among the first to be preempted."""
    quantum_protects: bool = True
    """True if a job is never preempted before its quantum is over, so that a claim may have to wait. False if such a
    job can be preempted, but only after all others."""
    literal: bool = False
    """True for Algorithm 1 of the paper exactly as printed, for studies. By default, the paper's text takes
    precedence."""
    save: CostSettings = CostSettings()
    restore: CostSettings = CostSettings()

    @model_validator(mode="after")
    def _at_most_all(self) -> Self:
        if any(share < 0 for share in self.percent.values()) or sum(self.percent.values()) > 100 + 1e-9:
            raise ValueError(f"entitlements are {sum(self.percent.values()):g} % in sum; they go from 0 to 100")
        return self


class SchedulerMigration(SettingsTable):
    """`[scheduler.migration]`: one migration at a time, and none while a job waits."""

    kind: Migration = Migration.NONE
    every_s: float = Field(default=30, gt=0)
    save: CostSettings = CostSettings(constant_s=30)
    restore: CostSettings = CostSettings(constant_s=30)


class SchedulerSettings(SettingsTable):
    """`[scheduler]`"""

    kind: SchedulerKind = SchedulerKind.EASY
    decide_every_s: float = Field(default=0, ge=0)
    """The interval between decisions, which are made at its multiples, or 0 for a decision whenever a job is submitted
    or ends."""
    priority: PrioritySettings = PrioritySettings()
    sfs: ShareSettings = ShareSettings()
    omfs: OmfsSettings = OmfsSettings()
    migration: SchedulerMigration = SchedulerMigration()


class AgentQueueSettings(SettingsTable):
    """`[agents.queue]`: the low-priority jobs. Without `jobs`, the queue is endless."""

    jobs: int | None = Field(default=None, ge=0, le=10**8)
    work_s: float = Field(default=0, ge=0)
    """The total time for which each job computes, in one of an agent's places."""
    memory_mib: float = Field(default=0, ge=0)
    """The memory of one job, which a save or a restore moves."""

    @model_validator(mode="after")
    def _jobs_have_work(self) -> Self:
        if self.jobs and not self.work_s:
            raise ValueError("so many jobs without work_s: say how long each computes")
        return self


class AgentSettings(SettingsTable):
    """`[agents]`: Gleaner's agents on idle nodes."""

    length_s: float = Field(default=3600, gt=0)
    """The length of an agent. Synchronised agents all end at its multiples. Otherwise each agent runs for this long."""
    synchronised: bool = True
    shortest_slice_s: float = Field(default=600, gt=0)
    """The shortest remaining time with which an agent starts."""
    agents_at_most: int = Field(default=10**9, ge=0, le=10**9)
    jobs_per_agent: int = Field(default=1, ge=1, le=10**6)
    """The number of jobs that share a node. These jobs save and restore at the same time."""
    margin_s: float = Field(default=0, ge=0)
    """The time by which a save begins earlier than its cost requires. Nothing is computed in this time. A real save
    that takes longer than the estimate and the margin would lose the slice."""
    save: CostSettings = CostSettings()
    restore: CostSettings = CostSettings()
    preemption: bool = False
    """True if agents are vacated for a regular job that could start on their nodes. The job starts after their
    saves."""
    queue: AgentQueueSettings = AgentQueueSettings()

    @model_validator(mode="after")
    def _a_slice_fits(self) -> Self:
        if self.shortest_slice_s > self.length_s:
            raise ValueError("shortest_slice_s is more than length_s: no agent would ever start")
        return self
