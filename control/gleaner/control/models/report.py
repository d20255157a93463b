"""The report of a month: what became of the nodes' time, and who got what was harvested."""

from pydantic import Field

from gleaner.agent.job_spec import Shape
from gleaner.control.models.base import Reply


class ReportFilter(Shape):
    """The choice of a month; empty: this month."""

    month: str = Field(default="", pattern=r"^((19|20)[0-9]{2}-(0[1-9]|1[0-2]))?$", examples=["2026-10"])
    """As in 2026-10."""
    accounting: bool = False
    """True: ask Slurm's accounting, too. For admins."""


class RegularWaits(Reply):
    """The waits of the regular jobs that started in the month, in seconds, by Slurm's accounting."""

    jobs: int
    mean_wait_s: float | None
    """None if no job started."""
    median_wait_s: float | None
    late_wait_s: float | None
    """One job in twenty has waited for longer."""


class RegularHarm(Reply):
    """The delays of regular jobs that waited for agents to leave their nodes: at least these, in seconds."""

    jobs: int
    sum_s: float
    largest_s: float
    late_s: float
    """The 95th percentile."""


class ReportRow(Reply):
    """The time of one user's jobs in one group: of their slices that ended in the month. Hours are hours of cores."""

    group: str
    user: str
    """Empty for jobs from before users were recorded."""
    slices: int
    harvested_core_h: float
    """Computed, and held by a checkpoint or a result."""
    saving_core_h: float
    restoring_core_h: float
    starting_core_h: float
    """For inputs, images, and the start of new jobs."""
    lost_core_h: float
    """Computed, and in no checkpoint and no result."""


class MonthReport(Reply):
    """One month, or what has passed of it. Hours of nodes are those that control saw; the rest is unknown."""

    summary: str
    """One sentence: the harvest, its share of the idle time, and what regular jobs paid."""
    month: str
    """As in 2026-10."""
    begin_s: float
    end_s: float
    """The end of the month, or now."""
    seen_h: float
    """The hours of the month in which control saw the nodes."""
    regular_node_h: float
    agents_node_h: float
    harvested_node_h: float
    """Of the agents' node hours, the part of their cores' time, and so are the next ones."""
    saving_node_h: float
    restoring_node_h: float
    starting_node_h: float
    lost_node_h: float
    unused_node_h: float
    """Agents had no job, or one that has not reported yet."""
    idle_node_h: float
    idle_without_node_h: float
    """The idle hours of nodes, had there been no agents: those that were idle, and those that agents had."""
    unusable_node_h: float
    """Down, drained or powered off."""
    harvested_core_h: float
    saving_core_h: float
    restoring_core_h: float
    starting_core_h: float
    lost_core_h: float
    harm_day: RegularHarm
    """Of the jobs that started in the last 24 hours."""
    harm_month: RegularHarm
    stored_bytes: dict[str, int]
    """By group, the bytes that its checkpoints and results have in the storage now."""
    energy_kwh: float | None
    """The energy of the agents; an estimate is hours of cores times `[history] watts_per_core`. None: it is not set."""
    energy_is_measured: bool = False
    """True if Slurm has measured it, which only the report with `accounting` knows."""
    regular: RegularWaits | None = None
    """None unless `accounting` was asked for."""
    group: str | None
    """The group whose jobs these are; None for all groups."""
    rows: tuple[ReportRow, ...]
