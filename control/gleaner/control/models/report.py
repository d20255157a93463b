"""The report of a month: the use of the nodes' time, and the users who received the harvested part."""

from pydantic import Field

from gleaner.agent.job_spec import Shape
from gleaner.control.models.base import Reply
from gleaner.control.policy.harm import Harm


class ReportFilter(Shape):
    """The selection of a month. If it is empty, the current month is selected."""

    month: str = Field(default="", pattern=r"^((19|20)[0-9]{2}-(0[1-9]|1[0-2]))?$", examples=["2026-10"])
    """The month in the form 2026-10."""
    accounting: bool = False
    """True to add two figures from Slurm's accounting. Only admins can request them."""


class RegularWaits(Reply):
    """The waiting times, in seconds, of the regular jobs that started in the month, from Slurm's accounting."""

    jobs: int
    mean_wait_s: float | None
    """The mean waiting time, or None if no job started."""
    median_wait_s: float | None
    late_wait_s: float | None
    """The 95th percentile."""


class ReportRow(Reply):
    """The time of one user's jobs in one group, for the slices that ended in the month. Hours are core hours."""

    group: str
    user: str
    """The user, or "" for jobs that are older than this field."""
    slices: int
    harvested_core_h: float
    """Computing time that is kept in a checkpoint or a result."""
    saving_core_h: float
    restoring_core_h: float
    starting_core_h: float
    """The time for inputs, images, and the start of new jobs."""
    lost_core_h: float
    """Computing time that is in no checkpoint and no result."""


class MonthReport(Reply):
    """One month, or the part of it that has passed. Only node hours during which control observed the node are
    counted."""

    summary: str
    """One sentence that gives the harvest, its share of the idle time, and the delays of regular jobs."""
    month: str
    """The month in the form 2026-10."""
    begin_s: float
    end_s: float
    """The end of the month, or now."""
    seen_h: float
    """The hours of the month in which control saw the nodes."""
    regular_node_h: float
    agents_node_h: float
    harvested_node_h: float
    """The node hours of agents in which their cores computed for jobs. The next fields contain the other parts."""
    saving_node_h: float
    restoring_node_h: float
    starting_node_h: float
    lost_node_h: float
    unused_node_h: float
    """The hours of agents without a job, or with one that has not reported yet."""
    idle_node_h: float
    idle_without_node_h: float
    """The node hours that would have been idle without agents: the idle hours and those of agents."""
    unusable_node_h: float
    """The hours of nodes that were down, drained or powered off."""
    harvested_core_h: float
    saving_core_h: float
    restoring_core_h: float
    starting_core_h: float
    lost_core_h: float
    harm_day: Harm
    """The delays of the jobs that started in the last 24 hours."""
    harm_month: Harm
    stored_bytes: dict[str, int]
    """The bytes of each group's checkpoints and results in the storage now."""
    energy_kwh: float | None
    """The energy of the agents, which is measured or estimated as the core hours times `[history] watts_per_core`. It
    is None if it was not measured and that setting is missing."""
    energy_is_measured: bool = False
    """True if Slurm has measured the energy, which is known only with `accounting`."""
    regular: RegularWaits | None = None
    """The waiting times of regular jobs, or None if `accounting` was not requested."""
    group: str | None
    """The group of the jobs in this report, or None for all groups."""
    rows: tuple[ReportRow, ...]
