"""A job may have a limit of its own for what it writes."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. The jobs that are there have the nodes' limit only."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("disk_mib", sa.Integer(), nullable=True))
