"""A node says from which URLs inputs can be fetched there, beside the folders to mount."""

import sqlalchemy as sa
from alembic import op

revision = "0032"
down_revision = "0031"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Let the nodes that are known fetch what all agents could fetch until now.

    Otherwise no agent would be submitted to them for jobs that need it. Their next agents say what is true.
    """
    for scheme in ("https", "file"):
        node = sa.text(
            "INSERT INTO node_mount (node, folder) SELECT name, :mount FROM node WHERE kind IS NOT NULL"
        ).bindparams(mount=f"fetch:{scheme}")
        op.execute(node)
