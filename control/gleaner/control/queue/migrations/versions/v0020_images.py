"""Images that groups push: their names, what is stored, and which one a job was submitted with."""

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Make the tables, and add the column to the jobs' specs."""
    op.create_table(
        "stored_image",
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="size_counted"),
        sa.PrimaryKeyConstraint("image_id"),
    )
    op.create_table(
        "image",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("pushed_s", sa.Float(), nullable=False),
        sa.Column("pusher", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["image_id"], ["stored_image.image_id"]),
        sa.PrimaryKeyConstraint("group", "name"),
    )
    # SQLite would add the column to the text of the line before; made anew, the table is as the code declares it.
    is_sqlite = op.get_context().dialect.name == "sqlite"
    with op.batch_alter_table("spec", recreate="always" if is_sqlite else "never") as spec:
        spec.add_column(sa.Column("image_id", sa.String(), nullable=True))
