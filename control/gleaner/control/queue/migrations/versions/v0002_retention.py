"""What is needed to remove what is old: how far a job's log is gone, and an agent's attempts by its name."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table and the index."""
    op.create_table(
        "trimmed",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("lines >= 1", name="lines_counted"),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index("attempt_of_agent", "attempt", ["agent"])
