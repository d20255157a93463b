"""Failures are put down to jobs or to nodes, nodes are doubted for them, and jobs pause after one."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None


def _words(name: str, *values: str) -> sa.Enum:
    return sa.Enum(*values, name=name, native_enum=False, create_constraint=True, length=16)


def upgrade() -> None:
    """Add the tables. Failures of before are the jobs' own, as they were."""
    op.create_table(
        "failure",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("is_quick", sa.Boolean(), nullable=False),
        sa.Column("blame", _words("blame", "open", "job", "node"), nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.PrimaryKeyConstraint("job", "attempt"),
    )
    op.create_index("failure_on_node", "failure", ["node", "at_s"])
    op.create_table(
        "doubt",
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("jobs", sa.Integer(), nullable=False),
        sa.Column("probes", sa.Integer(), nullable=False),
        sa.Column("since_s", sa.Float(), nullable=False),
        sa.Column("last_s", sa.Float(), nullable=False),
        sa.Column("verdict", _words("verdict", "trusted", "doubted", "bad"), nullable=False),
        sa.Column("doubted_s", sa.Float(), nullable=True),
        sa.Column("probe_s", sa.Float(), nullable=False),
        sa.Column("times_bad", sa.Integer(), nullable=False),
        sa.Column("avoided_until_s", sa.Float(), nullable=True),
        sa.CheckConstraint("jobs >= 1 AND probes >= 0 AND times_bad >= 0", name="counts"),
        sa.PrimaryKeyConstraint("node"),
    )
    op.create_table(
        "pause",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("wakes_s", sa.Float(), nullable=False),
        sa.Column("not_on", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index("pause_ends", "pause", ["wakes_s"])
