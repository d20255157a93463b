"""New jobs that do not save themselves wait for a node that can save their memory."""

from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Give such nodes a kind (-1), and such jobs lanes of their own. What is complete stays where it is."""
    op.execute(  # as the first row it would make SQLite number the next one 0, which in a lane means any
        "INSERT INTO kind (id, digest, architecture, family, criu, cpu_features)"
        " SELECT -1, 'any that saves', '', '', '', '[]' WHERE EXISTS (SELECT 1 FROM kind)"
    )
    op.execute("INSERT INTO fit (saved_on, node) SELECT -1, id FROM kind WHERE criu <> ''")
    op.execute(
        "INSERT INTO lane (cpus, memory_mib, kind, not_on) SELECT cpus, memory_mib, -1, not_on FROM lane WHERE kind = 0"
    )
    op.execute(
        "UPDATE job SET lane = (SELECT new.id FROM lane AS old JOIN lane AS new"
        " ON new.cpus = old.cpus AND new.memory_mib = old.memory_mib AND new.not_on = old.not_on"
        " WHERE old.id = job.lane AND new.kind = -1)"
        " WHERE state <> 'Complete' AND lane IN (SELECT id FROM lane WHERE kind = 0)"
        " AND spec IN (SELECT id FROM spec WHERE saves_itself IS NULL)"
    )
