"""Inputs: files and folders that jobs read."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0026"
down_revision = "0025"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add a table for what is stored, and a column for what each job reads."""
    op.create_table(
        "input",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("content", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("used_s", sa.Float(), nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="size_counted"),
        sa.PrimaryKeyConstraint("group", "content"),
    )
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("inputs", sa.JSON(none_as_null=True), nullable=True))
