"""What a group and a user have can be counted by index, and users that are limited have lanes of their own."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column and the indexes."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    op.drop_index("lane_wishes", "lane")
    with op.batch_alter_table("lane", recreate=recreate) as changed:
        for kept in ("not_on", "group"):  # made anew, it would be ('')
            changed.alter_column(kept, existing_type=sa.String(), server_default="")
        changed.add_column(sa.Column("submitter", sa.String(), server_default="", nullable=False))
    wishes = ["group", "cpus", "memory_mib", "kind", "not_on", "submitter"]
    op.create_index("lane_wishes", "lane", wishes, unique=True)
    # The lane before the submitter: it is stepped through for the sizes that a group has.
    _index("job_unended", ["group", "lane", "submitter"], "state <> 'Complete'")
    _index("job_running", ["group", "submitter"], "agent IS NOT NULL")
    _index("job_output", ["group", "submitter", "output_bytes"], "output_bytes IS NOT NULL")


def _index(name: str, columns: list[str], condition: str) -> None:
    where = sa.text(condition)
    op.create_index(name, "job", columns, unique=False, sqlite_where=where, postgresql_where=where)
