"""Groups keep credentials for servers."""

import sqlalchemy as sa
from alembic import op

revision = "0030"
down_revision = "0029"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table. What is in it is encrypted with a key that is not in the database."""
    kinds = sa.Enum("S3 keys", "password", "token", name="kind", native_enum=False, create_constraint=True, length=16)
    op.create_table(
        "secret",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("url", sa.String(), nullable=False),
        sa.Column("kind", kinds, nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("set_s", sa.Float(), nullable=False),
        sa.Column("setter", sa.String(), nullable=False),
        sa.PrimaryKeyConstraint("group", "name"),
    )
