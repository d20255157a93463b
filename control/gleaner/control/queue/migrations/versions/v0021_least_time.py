"""A job says how much time an agent must have left for it: the lanes know it."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column. The jobs that are there go to any agent."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    op.drop_index("lane_wishes", "lane")
    with op.batch_alter_table("lane", recreate=recreate) as changed:
        if recreate == "always":
            for kept in ("kind", "not_on", "group", "submitter"):  # made anew, their defaults would be in brackets
                kind = sa.Integer() if kept == "kind" else sa.String()
                changed.alter_column(kept, existing_type=kind, server_default="0" if kept == "kind" else "")
        changed.add_column(sa.Column("needs_s", sa.Integer(), server_default="0", nullable=False))
    wishes = ["group", "cpus", "memory_mib", "kind", "not_on", "submitter", "needs_s"]
    op.create_index("lane_wishes", "lane", wishes, unique=True)
