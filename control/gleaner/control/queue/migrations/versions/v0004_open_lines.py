"""A generation keeps what its job had written of lines that were not at their end."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. Of what was saved before, no line goes on."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("generation", recreate=recreate) as generation:
        generation.add_column(sa.Column("open_lines", sa.JSON(), nullable=True))
