"""Results are delivered to targets."""

import sqlalchemy as sa
from alembic import op

revision = "0031"
down_revision = "0030"
branch_labels = None
depends_on = None

_PHASES = ("waiting", "taken", "delivered", "failed")


def upgrade() -> None:
    """Add a table for what is to be delivered. Nothing is, of the jobs that are there."""
    op.create_table(
        "delivery",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("to", sa.String(), nullable=False),
        sa.Column(
            "phase",
            sa.Enum(*_PHASES, name="delivery_phase", native_enum=False, create_constraint=True, length=16),
            nullable=False,
        ),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=True),
        sa.Column("due_s", sa.Float(), nullable=False),
        sa.Column("problem", sa.Text(), nullable=False),
        sa.Column("files", sa.BigInteger(), nullable=True),
        sa.Column("size_bytes", sa.BigInteger(), nullable=True),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.CheckConstraint("number >= 0 AND failures >= 0 AND attempt >= 1", name="counts"),
        sa.CheckConstraint("(ended_s IS NOT NULL) = (phase IN ('delivered', 'failed'))", name="end_iff_ended"),
        sa.CheckConstraint("(files IS NOT NULL) = (phase = 'delivered')", name="files_iff_delivered"),
        sa.CheckConstraint("(files IS NULL) = (size_bytes IS NULL)", name="size_whole"),
        sa.CheckConstraint("phase <> 'taken' OR agent IS NOT NULL", name="taken_by_agent"),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    open_ones = sa.text("phase IN ('waiting', 'taken')")
    op.create_index("delivery_open", "delivery", ["due_s"], sqlite_where=open_ones, postgresql_where=open_ones)
