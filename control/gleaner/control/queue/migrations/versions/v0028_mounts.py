"""Jobs may mount folders of their nodes."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0028"
down_revision = "0027"
branch_labels = None
depends_on = None

_WISHES = ["group", "cpus", "memory_mib", "kind", "not_on", "submitter", "needs_s", "mounts"]

# SQLite's own reading of the table would word the defaults differently.
_LANE = sa.Table(
    "lane",
    sa.MetaData(),
    sa.Column("id", sa.Integer(), nullable=False),
    sa.Column("cpus", sa.Integer(), nullable=False),
    sa.Column("memory_mib", sa.Integer(), nullable=False),
    sa.Column("kind", sa.Integer(), server_default="0", nullable=False),
    sa.Column("not_on", sa.String(), server_default="", nullable=False),
    sa.Column("group", sa.String(), server_default="", nullable=False),
    sa.Column("submitter", sa.String(), server_default="", nullable=False),
    sa.Column("needs_s", sa.Integer(), server_default="0", nullable=False),
    sa.CheckConstraint("cpus >= 1", name="cpus_positive"),
    sa.CheckConstraint("memory_mib >= 1", name="memory_positive"),
    sa.PrimaryKeyConstraint("id"),
)


def upgrade() -> None:
    """Add what jobs mount, and what nodes have. The jobs that are there mount nothing."""
    # SQLite could add a column in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("spec", recreate=recreate) as changed:
        changed.add_column(sa.Column("mounts", sa.JSON(none_as_null=True), nullable=True))
    op.drop_index("lane_wishes", "lane")
    with op.batch_alter_table("lane", recreate=recreate, copy_from=_LANE) as changed:
        changed.add_column(sa.Column("mounts", sa.String(), server_default="", nullable=False))
    op.create_index("lane_wishes", "lane", _WISHES, unique=True)
    op.create_table(
        "lane_mount",
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["lane"], ["lane.id"]),
        sa.PrimaryKeyConstraint("lane", "folder"),
    )
    op.create_table(
        "node_mount",
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("folder", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("node", "folder"),
    )
