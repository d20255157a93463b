"""Deliveries that an agent has taken are found without a look at those that wait."""

import sqlalchemy as sa
from alembic import op

revision = "0033"
down_revision = "0032"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the index."""
    taken = sa.text("phase = 'taken'")
    op.create_index("delivery_taken", "delivery", ["agent"], sqlite_where=taken, postgresql_where=taken)
