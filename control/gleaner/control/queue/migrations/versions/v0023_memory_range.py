"""A job that has met its memory limit may get more memory."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0023"
down_revision = "0022"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. The jobs that are there keep the memory that they have."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("most_memory_mib", sa.Integer(), nullable=True))
