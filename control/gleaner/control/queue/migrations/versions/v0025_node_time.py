"""The history of node time, and an index that finds attempts by their end."""

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"
branch_labels = None
depends_on = None

_SUMS = (
    "seen_s", "regular_node_s", "regular_core_s", "agent_node_s", "agent_core_s", "idle_node_s", "idle_core_s",
    "unusable_node_s", "unusable_core_s", "harvested_core_s", "restore_core_s", "save_core_s", "lost_core_s",
)  # fmt: skip


def _step() -> tuple[sa.Column[int], ...]:
    """Return the columns of the key of a step."""
    return (
        sa.Column("step_s", sa.Integer(), nullable=False, autoincrement=False),
        sa.Column("begin_s", sa.BigInteger(), nullable=False, autoincrement=False),
    )


def upgrade() -> None:
    """Make the tables and the index."""
    op.create_table(
        "node_time",
        *_step(),
        *(sa.Column(name, sa.Float(), nullable=False) for name in _SUMS),
        sa.PrimaryKeyConstraint("step_s", "begin_s"),
    )
    op.create_table(
        "node_use",
        *_step(),
        sa.Column("content", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("step_s", "begin_s"),
    )
    op.create_table(
        "node_time_mark",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("attempts_s", sa.Float(), nullable=False),
        sa.CheckConstraint("id = 1", name="only_one"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("attempt_ended", "attempt", ["ended_s"])
