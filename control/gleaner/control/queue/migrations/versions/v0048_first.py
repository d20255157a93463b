"""All tables, as the code declares them.

Until the first tag no way leads from one version's tables to another's: a change of a table raises the number here, and
a database with another number is refused. From the first tag on, each change is a further revision.
"""

from alembic import op

from gleaner.control.queue.tables import METADATA

revision = "0048"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make all tables."""
    METADATA.create_all(op.get_bind())
