"""Nodes and their kinds, how agents and jobs have fared there, and the use of their time."""

from typing import Any

from sqlalchemy import JSON, BigInteger, CheckConstraint, Column, Enum, Float, Index
from sqlmodel import Field

from gleaner.control.policy.node_time import FIELDS
from gleaner.control.queue.tables.column_types import BY_VALUE, QueueRecord, StorableText
from gleaner.control.queue.tables.jobs import NeedKind


class NodeKindRecord(QueueRecord, table=True):
    """The properties of nodes that decide what can be restored on them. Never changed, never deleted."""

    __tablename__ = "kind"
    id: int = Field(primary_key=True)
    digest: str = Field(unique=True)  # The digest of the other columns, so that each kind has one row.
    architecture: str
    family: str  # The first word of the runtime.
    criu: str
    cpu_features: Any = Field(sa_type=JSON)


class FitRecord(QueueRecord, table=True):
    """A pair of kinds: checkpoints from nodes of one can be restored on nodes of the other. Each kind fits itself."""

    __tablename__ = "fit"
    saved_on: int = Field(primary_key=True, foreign_key="kind.id")
    node: int = Field(primary_key=True, foreign_key="kind.id")


class NodeHasRecord(QueueRecord, table=True):
    """A folder that jobs could mount, or a scheme that could be fetched, when an agent last registered on a node."""

    __tablename__ = "node_has"
    node: str = Field(primary_key=True)
    need: NeedKind = Field(primary_key=True, sa_type=Enum(NeedKind, name="need", **BY_VALUE))
    name: str = Field(primary_key=True)


class KnownNodeRecord(QueueRecord, table=True):
    """A node, and how agents and jobs have fared there."""

    __tablename__ = "node"
    __table_args__ = (
        CheckConstraint("faults >= 0 AND times_excluded >= 0", "counts"),
        CheckConstraint("(excluded_at_s IS NULL) = (excluded_until_s IS NULL)", "excluded_whole"),
    )
    name: str = Field(primary_key=True)
    # The kind that the node had when an agent last registered there. None: no agent ever has.
    kind: int | None = Field(default=None, foreign_key="kind.id")
    faults: int = 0  # The number of agents in a row that failed because of the node.
    # The time when the first of the attempts was claimed that failed there in a row. A job that was claimed later and
    # runs well ends the row.
    failing_since_s: float | None = None
    excluded_at_s: float | None = None  # None: the node is trusted.
    excluded_until_s: float | None = None  # Then the node gets one job.
    times_excluded: int = 0  # In a row.
    excluded_because: str = Field(default="", sa_type=StorableText)


class NodeRatesRecord(QueueRecord, table=True):
    """The saves, restores and losses that were seen on a node; see `queue.node_health`."""

    __tablename__ = "rate"
    __table_args__ = (
        CheckConstraint("agents_s >= 0 AND losses >= 0", "exposure_counts"),
        CheckConstraint("boundary_saves >= 0", "saves_count"),
    )
    node: str = Field(primary_key=True)
    saves: Any = Field(sa_type=JSON)  # The newest measurements, the newest last, as lists of MiB and seconds.
    # The time of a save of 256 MiB, by the line through `saves`: nodes are compared by it. 0: nothing was measured.
    save_s: float
    restores: Any = Field(sa_type=JSON)
    # For each of the latest agents' ends, the newest last: the time that all its saves took together, as a multiple of
    # the expected time.
    errors: Any = Field(sa_type=JSON)
    late: bool  # True if a save came too late, and none has been in time since.
    boundary_s: float  # The time when the latest burst of saves began.
    boundary_saves: int  # The number of saves in that burst.
    agents_s: float  # The time that agents were there, all together.
    losses: float  # The number of them that were lost without notice.
    weighed_s: float  # The time when `agents_s` and `losses` were last weighed.


class NodeTimeRecord(QueueRecord, table=True):
    """The sums of node time in one step; see `policy.node_time`."""

    __tablename__ = "node_time"
    __table_args__ = tuple(Column(name, Float, nullable=False, default=0.0) for name in FIELDS)
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})


class RegularDelayRecord(QueueRecord, table=True):
    """The delay of a regular job that took nodes from agents, once for each of its starts; see `policy.harm`."""

    __tablename__ = "regular_delay"
    __table_args__ = (Index("regular_delay_start", "start_s"),)
    job: str = Field(primary_key=True)
    start_s: float = Field(primary_key=True)
    delay_s: float


class NodeUseRecord(QueueRecord, table=True):
    """The use of each node in one step: compressed, the letters of the uses, and then a line with each node's name."""

    __tablename__ = "node_use"
    step_s: int = Field(primary_key=True, sa_column_kwargs={"autoincrement": False})
    begin_s: int = Field(primary_key=True, sa_type=BigInteger, sa_column_kwargs={"autoincrement": False})
    content: bytes


class NodeTimeMarkRecord(QueueRecord, table=True):
    """The time up to which the history of node time is complete: at most one row."""

    __tablename__ = "node_time_mark"
    __table_args__ = (CheckConstraint("id = 1", "only_one"),)
    id: int = Field(primary_key=True)
    attempts_s: float  # The ends of attempts until then are in the sums.
