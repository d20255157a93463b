"""A job may compute only for so long, over all its slices."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. The jobs that are there have no limit."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("compute_limit_s", sa.Integer(), nullable=True))
    if op.get_bind().dialect.name == "sqlite":
        op.drop_index("attempt_live", "attempt")
        op.drop_index("attempt_of_agent", "attempt")
    with op.batch_alter_table("attempt", recreate=recreate) as changed:
        changed.add_column(sa.Column("counted_s", sa.Float(), server_default="0", nullable=False))
    if op.get_bind().dialect.name == "sqlite":
        op.create_index("attempt_live", "attempt", ["job"], unique=True, sqlite_where=sa.text("ending IS NULL"))
        op.create_index("attempt_of_agent", "attempt", ["agent"], unique=False)
