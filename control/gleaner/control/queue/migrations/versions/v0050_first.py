"""All tables, as the code declares them.

Until the first release, tables are not migrated between versions. A change of a table raises the number here, and a
database with another number is refused. After the first release, each change becomes a further revision.
"""

from alembic import op

from gleaner.control.queue.tables import METADATA

revision = "0050"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create all tables."""
    METADATA.create_all(op.get_bind())
