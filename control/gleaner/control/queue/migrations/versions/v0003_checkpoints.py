"""What nodes are, so that a generation goes where it can be restored; what saves cost; jobs that save themselves."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add tables and columns. What was saved before may go anywhere, as it did before."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    op.create_table(
        "kind",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("criu", sa.String(), nullable=False),
        sa.Column("cpu_features", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "fit",
        sa.Column("saved_on", sa.Integer(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["saved_on"], ["kind.id"]),
        sa.ForeignKeyConstraint(["node"], ["kind.id"]),
        sa.PrimaryKeyConstraint("saved_on", "node"),
    )
    op.create_table(
        "rate",
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("saves", sa.JSON(), nullable=False),
        sa.Column("restores", sa.JSON(), nullable=False),
        sa.Column("boundary_s", sa.Float(), nullable=False),
        sa.Column("boundary_saves", sa.Integer(), nullable=False),
        sa.Column("agents_s", sa.Float(), nullable=False),
        sa.Column("losses", sa.Float(), nullable=False),
        sa.Column("weighed_s", sa.Float(), nullable=False),
        sa.CheckConstraint("agents_s >= 0 AND losses >= 0", name="exposure_counts"),
        sa.CheckConstraint("boundary_saves >= 0", name="saves_count"),
        sa.PrimaryKeyConstraint("node"),
    )
    with op.batch_alter_table("generation", recreate=recreate) as changed:
        changed.add_column(sa.Column("has_memory", sa.Boolean(), server_default=sa.true(), nullable=False))
    for table in ("agent", "generation", "node"):
        with op.batch_alter_table(table, recreate=recreate) as changed:
            changed.add_column(sa.Column("kind", sa.Integer(), nullable=True))
            changed.create_foreign_key("kind_known", "kind", ["kind"], ["id"])
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("saves_itself", sa.JSON(), nullable=True))
    op.drop_index("lane_wishes", "lane")
    with op.batch_alter_table("lane", recreate=recreate) as changed:
        changed.add_column(sa.Column("kind", sa.Integer(), server_default="0", nullable=False))
        changed.add_column(sa.Column("not_on", sa.String(), server_default="", nullable=False))
    op.create_index("lane_wishes", "lane", ["cpus", "memory_mib", "kind", "not_on"], unique=True)
