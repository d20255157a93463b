"""Each group has lanes of its own, so that a claim can choose between groups."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column, and move the jobs to the lanes of their groups. What is complete stays where it is."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    op.drop_index("lane_wishes", "lane")
    with op.batch_alter_table("lane", recreate=recreate) as changed:
        changed.alter_column("not_on", existing_type=sa.String(), server_default="")  # made anew, it would be ('')
        changed.add_column(sa.Column("group", sa.String(), server_default="", nullable=False))
    op.create_index("lane_wishes", "lane", ["group", "cpus", "memory_mib", "kind", "not_on"], unique=True)
    op.execute(  # the lane that each is in, and those of its size in which it may start over
        'INSERT INTO lane ("group", cpus, memory_mib, kind, not_on)'
        ' SELECT DISTINCT job."group", other.cpus, other.memory_mib, other.kind, other.not_on FROM job'
        " JOIN lane AS mine ON mine.id = job.lane"
        " JOIN lane AS other ON other.cpus = mine.cpus AND other.memory_mib = mine.memory_mib"
        " AND (other.id = mine.id OR other.not_on = '')"
        " WHERE job.state <> 'Complete'"
    )
    op.execute(
        "UPDATE job SET lane = (SELECT new.id FROM lane AS old JOIN lane AS new"
        ' ON new."group" = job."group" AND new.cpus = old.cpus AND new.memory_mib = old.memory_mib'
        " AND new.kind = old.kind AND new.not_on = old.not_on WHERE old.id = job.lane)"
        " WHERE state <> 'Complete'"
    )
