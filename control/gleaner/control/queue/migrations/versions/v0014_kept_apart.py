"""How much each job's log takes, and which of a job's generations share files."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, which is filled when logs are added to, and the column."""
    op.create_table(
        "logged",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="size_counted"),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("generation", recreate=recreate) as generation:
        generation.add_column(sa.Column("chain", sa.Text(), nullable=True))
