"""What was done to the owners' jobs is remembered."""

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "governed",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("released_s", sa.Float(), nullable=True),
        sa.Column("at_top", sa.Boolean(), nullable=False),
        sa.Column("told_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "told",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("ix_told_at_s", "told", ["at_s"], unique=False)
