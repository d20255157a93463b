"""What was decided is stored, with all that it was decided from."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the tables."""
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column(
            "kind",
            sa.Enum(
                "start",
                "victim",
                "hold",
                "migrate",
                name="kind",
                native_enum=False,
                create_constraint=True,
                length=16,
            ),
            nullable=False,
        ),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("given", sa.JSON(), nullable=False),
        sa.Column("answer", sa.JSON(), nullable=False),
        sa.Column("acted", sa.Boolean(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "subject",
        sa.Column("decision", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["decision"], ["decision.id"]),
        sa.PrimaryKeyConstraint("decision", "subject"),
    )
    op.create_index("decision_about", "subject", ["subject", "decision"], unique=False)
