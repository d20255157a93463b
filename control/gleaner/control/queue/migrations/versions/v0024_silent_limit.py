"""A job may compute only for so long without writing anything."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0024"
down_revision = "0023"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. The jobs that are there have no limit."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("silent_limit_s", sa.Integer(), nullable=True))
    with op.batch_alter_table("checkpoint", recreate=recreate) as changed:
        changed.add_column(sa.Column("silent_s", sa.Float(), server_default="0", nullable=False))
