"""Agents, nodes and their kinds, the record of agents and jobs on nodes, and the use of their time."""

from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Enum, Float, Index
from sqlmodel import Field

from gleaner.control.models.agents import KnownAgent, Phase
from gleaner.control.policy.node_time import FIELDS
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord, StorableText, partial_index
from gleaner.control.queue.tables.jobs import NeedKind


class NodeKindRecord(QueueRecord, table=True):
    """The properties of nodes that decide which jobs can be restored on them. A row is never changed or deleted."""

    __tablename__ = "kind"
    id: int = Field(primary_key=True)
    digest: str = Field(unique=True)  # The digest of the other columns, which ensures that each kind has one row.
    architecture: str
    family: str  # The first word of the runtime.
    criu: str
    cpu_features: Any = Field(sa_type=JSON)


class FitRecord(QueueRecord, table=True):
    """A pair of kinds. Checkpoints from nodes of the first kind can be restored on nodes of the second kind. Each kind
    fits itself."""

    __tablename__ = "fit"
    saved_on: int = Field(primary_key=True, foreign_key="kind.id")
    node: int = Field(primary_key=True, foreign_key="kind.id")


class NodeHasRecord(QueueRecord, table=True):
    """A folder that jobs could mount, or a scheme that could be fetched, at the last registration of an agent on a
    node."""

    __tablename__ = "node_has"
    node: str = Field(primary_key=True)
    need: NeedKind = Field(primary_key=True, sa_type=Enum(NeedKind, name="need", **BY_VALUE))
    name: str = Field(primary_key=True)


class KnownNodeRecord(QueueRecord, table=True):
    """A node, and the record of agents and jobs on it."""

    __tablename__ = "node"
    __table_args__ = (
        CheckConstraint("faults >= 0 AND times_excluded >= 0", "counts"),
        CheckConstraint("(excluded_at_s IS NULL) = (excluded_until_s IS NULL)", "excluded_whole"),
    )
    name: str = Field(primary_key=True)
    # The kind of the node at the last registration of an agent, or None if no agent has ever registered there.
    kind: int | None = Field(default=None, foreign_key="kind.id")
    faults: int = 0  # The number of agents in a row that failed because of the node.
    # The claim time of the first attempt in a series that failed there. The series ends when a job that was claimed
    # later runs well.
    failing_since_s: float | None = None
    excluded_at_s: float | None = None  # None if the node is trusted.
    excluded_until_s: float | None = None  # From this time on, the node receives one job.
    times_excluded: int = 0  # The number of exclusions in a row.
    excluded_because: str = Field(default="", sa_type=StorableText)


class NodeRatesRecord(QueueRecord, table=True):
    """The saves, restores and losses that were measured on a node; see `queue.node_health`."""

    __tablename__ = "rate"
    __table_args__ = (
        CheckConstraint("agents_s >= 0 AND losses >= 0", "exposure_counts"),
        CheckConstraint("boundary_saves >= 0", "saves_count"),
    )
    node: str = Field(primary_key=True)
    # The latest measurements, the newest last, as lists of MiB and seconds.
    saves: Any = Field(default=[], sa_type=JSON)
    # The duration of a save of 256 MiB, from the line fitted to `saves`, or 0 before the first measurement. Nodes are
    # compared by it.
    save_s: float = 0.0
    restores: Any = Field(default=[], sa_type=JSON)
    # For each of the latest ends of agents, the newest last, the total time of the saves as a multiple of the expected
    # time.
    errors: Any = Field(default=[], sa_type=JSON)
    late: bool = False  # True if a save was too late, and no later one has been in time.
    boundary_s: float = 0.0  # The time at which the latest burst of saves began.
    boundary_saves: int = 0  # The number of saves in that burst.
    agents_s: float = 0.0  # The total time of agents on the node.
    losses: float = 0.0  # The number of agents that were lost without notice.
    weighed_s: float = 0.0  # The time at which `agents_s` and `losses` were last reduced for their age.


class NodeTimeRecord(QueueRecord, table=True):
    """The sums of node time in one step; see `policy.node_time`."""

    __tablename__ = "node_time"
    __table_args__ = tuple(Column(name, Float, nullable=False, default=0.0) for name in FIELDS)
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})


class RegularDelayRecord(QueueRecord, table=True):
    """The delay of a regular job that took nodes from agents, one row for each start; see `policy.harm`."""

    __tablename__ = "regular_delay"
    __table_args__ = (Index("regular_delay_start", "start_s"),)
    job: str = Field(primary_key=True)
    start_s: float = Field(primary_key=True)
    delay_s: float


class NodeUseRecord(QueueRecord, table=True):
    """The use of each node in one step, compressed: first the letters of the uses, then the nodes' names, one on each
    line."""

    __tablename__ = "node_use"
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    content: bytes


class NodeTimeMarkRecord(QueueRecord, table=True):
    """The time up to which the history of node time is complete. The table has at most one row."""

    __tablename__ = "node_time_mark"
    __table_args__ = (CheckConstraint("id = 1", "only_one"),)
    id: int = Field(primary_key=True)
    attempts_s: float  # The sums contain the ends of attempts up to this time.


class AgentRecord(KnownAgent, QueueRecord, table=True):
    """One agent, with the facts that control needs about it."""

    __tablename__ = "agent"
    __table_args__ = (
        CheckConstraint("(registered_s IS NULL) = (node IS NULL)", "node_iff_registered"),
        CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", "lease_iff_registered"),
        CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", "submitted_unregistered"),
        CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", "live_registered"),
        CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", "end_iff_ended"),
        partial_index("agent_here", "phase", where="phase <> 'ended'"),
    )
    name: str = Field(primary_key=True)
    phase: Phase = Field(sa_type=Enum(Phase, name="phase", **BY_VALUE))
    lease_until_s: float | None = None
    facts: Any = Field(default=None, sa_type=JSON, nullable=True)
    vacate: bool = False
    reason: str = Field(default="", sa_type=StorableText)
    # The kind of its node, from the facts that the agent reported at its registration.
    kind: int | None = Field(default=None, foreign_key="kind.id")
