"""A job says after which exit codes it is tried again."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0017"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns. The jobs that are there are tried again after every code."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        for name in ("retry_on", "never_retry_on"):
            changed.add_column(sa.Column(name, sa.JSON(none_as_null=True), nullable=True))
