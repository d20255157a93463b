"""How far estimates of saves were off is remembered, and whether a save came too late."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the columns."""
    with op.batch_alter_table("rate") as changed:
        changed.add_column(sa.Column("errors", sa.JSON(), nullable=False, server_default=sa.text("'[]'")))
        changed.add_column(sa.Column("late", sa.Boolean(), nullable=False, server_default=sa.false()))
    with op.batch_alter_table("rate") as changed:
        changed.alter_column("errors", server_default=None)
        changed.alter_column("late", server_default=None)
