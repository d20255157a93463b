"""The site's tables: what its nodes are, how agents have fared and what saves have cost there, and who leads."""

from sqlalchemy import CheckConstraint, ForeignKeyConstraint
from sqlmodel import JSON, Field, SQLModel

from gleaner.control.queue.columns import BIG, table

ANY_KIND = 0
"""In a lane: its jobs can start or go on everywhere, since they save themselves."""
SAVING = -1
"""In a lane: its jobs have no memory saved yet, and can start wherever it can be saved. It is a row of `kind` like the
others, so that a claim and the planner ask `fit` only."""


class Kind(SQLModel, table=True):
    """What nodes have in common that decides what can be restored on them. Never changed, never deleted."""

    id: int | None = Field(default=None, primary_key=True)
    digest: str = Field(unique=True)
    """Of the rest, so that there is one row for each."""
    architecture: str
    family: str
    """The first word of the runtime."""
    criu: str
    cpu_features: list[str] = Field(sa_type=JSON)


class Fit(SQLModel, table=True):
    """What was saved on a node of the one kind can be restored on a node of the other (each fits itself)."""

    __table_args__ = (ForeignKeyConstraint(["saved_on"], ["kind.id"]), ForeignKeyConstraint(["node"], ["kind.id"]))

    saved_on: int = Field(primary_key=True)
    node: int = Field(primary_key=True)


class Node(SQLModel, table=True):
    """A node, and how agents have fared there."""

    __table_args__ = (ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),)

    name: str = Field(primary_key=True)
    failures: int
    """In a row."""
    failed_s: float | None
    avoided_until_s: float | None
    kind: int | None
    """What it was when an agent last registered there; None: none ever has."""


class Rate(SQLModel, table=True):
    """What saves, restores and losses were seen on a node; older ones weigh less. See `policy.rates`."""

    __table_args__ = (
        CheckConstraint("agents_s >= 0 AND losses >= 0", "exposure_counts"),
        CheckConstraint("boundary_saves >= 0", "saves_count"),
    )

    node: str = Field(primary_key=True)
    saves: list[float] = Field(sa_type=JSON)
    restores: list[float] = Field(sa_type=JSON)
    errors: list[float] = Field(sa_type=JSON)
    """How many times as long as expected all saves of the latest agents' ends took together, the newest last."""
    late: bool
    """Whether a save came too late, and none has been in time since."""
    boundary_s: float
    """When the latest burst of saves began."""
    boundary_saves: int
    """How many there were in it."""
    agents_s: float
    """How long agents were there, all together."""
    losses: float
    """How many of them were lost without notice."""
    weighed_s: float
    """When the two were last weighed."""


class Leader(SQLModel, table=True):
    """The control program that leads: at most one row."""

    __table_args__ = (CheckConstraint("id = 1", "only_one"),)

    id: int = Field(primary_key=True)
    holder: str
    until_s: float
    """By the database's clock."""
    epoch: int = Field(sa_type=BIG)
    """Higher than that of every leader before; see `leader`."""


KIND = table(Kind)
FIT = table(Fit)
NODE = table(Node)
RATE = table(Rate)
LEADER = table(Leader)
