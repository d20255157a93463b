"""The delays of regular jobs, and the time for which jobs start apart from that for which they are restored."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0034"
down_revision = "0033"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table and the columns."""
    op.create_table(
        "regular_delay",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("start_s", sa.Float(), nullable=False),
        sa.Column("delay_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("job", "start_s"),
    )
    op.create_index("regular_delay_start", "regular_delay", ["start_s"])
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    for table, column in (("attempt", "start_s"), ("node_time", "start_core_s")):
        with op.batch_alter_table(table, recreate=recreate) as changed:
            changed.add_column(sa.Column(column, sa.Float(), nullable=False, server_default="0"))
