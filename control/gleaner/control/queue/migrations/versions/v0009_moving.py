"""Nodes that are drained, and jobs that are moved, are remembered."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

_TASKS = ("drain", "dry run", "resume")
_PHASES = (
    "asked", "marking", "emptying", "setting back", "empty", "looked", "refused", "resumed", "stopped",
)  # fmt: skip


def _words(name: str, values: tuple[str, ...]) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=16)


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "drain",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("task", _words("task", _TASKS), nullable=False),
        sa.Column("phase", _words("phase", _PHASES), nullable=False),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("spanning", sa.String(), nullable=False),
        sa.Column("leaves_others", sa.Boolean(), nullable=False),
        sa.Column("asked_s", sa.Float(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("said", sa.Text(), nullable=False),
        sa.Column("jobs", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))",
            name="end_iff_over",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "migration",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("from_node", sa.String(), nullable=False),
        sa.Column("to_node", sa.String(), nullable=True),
        sa.Column("not_on", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("asked_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
