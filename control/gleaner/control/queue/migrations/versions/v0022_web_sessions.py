"""Browsers that are signed in to the web page, and the codes that sign them in."""

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the table."""
    op.create_table(
        "web_session",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=True),
        sa.Column("manager", sa.Boolean(), nullable=False),
        sa.Column("opened_s", sa.Float(), nullable=True),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.CheckConstraint("role IN ('user', 'admin')", name="people_only"),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_index("ix_web_session_expires_s", "web_session", ["expires_s"])
