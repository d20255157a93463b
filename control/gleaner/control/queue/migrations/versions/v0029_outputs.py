"""Jobs may say what is kept of their folder."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0029"
down_revision = "0028"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Of the jobs that are there, everything is kept."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("outputs", sa.JSON(none_as_null=True), nullable=True))
