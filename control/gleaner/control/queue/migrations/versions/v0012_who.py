"""Tokens end, some may only read the metrics or manage a group, and each job names who submitted it."""

from typing import Literal

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

_ROLES = "role IN ('user', 'agent', 'admin', 'metrics')"


def upgrade() -> None:
    """Add the columns. Nobody knows who submitted the jobs that are there: theirs stay empty."""
    # SQLite could do it in place, but would word the tables differently from new ones.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("token", recreate=recreate) as changed:
        changed.drop_constraint("role", type_="check")
        changed.create_check_constraint("role", _ROLES)
        changed.add_column(sa.Column("manager", sa.Boolean(), server_default=sa.false(), nullable=False))
        changed.add_column(sa.Column("expires_s", sa.Float(), nullable=True))
        changed.create_check_constraint("manager_is_user", "NOT manager OR role = 'user'")
    with op.batch_alter_table("campaign", recreate=recreate) as changed:
        changed.add_column(_submitter())
    _drop_indexes_of_jobs()
    with op.batch_alter_table("job", recreate=recreate) as changed:
        changed.add_column(_submitter())
    _make_indexes_of_jobs()


def _submitter() -> sa.Column[str]:
    return sa.Column("submitter", sa.String(), server_default="", nullable=False)


def _drop_indexes_of_jobs() -> None:
    """Only SQLite makes the table anew, and what Alembic reads of its indexes lacks their order."""
    if op.get_bind().dialect.name == "sqlite":
        for name in ("job_waiting", "job_on_agent", "job_in_campaign", "job_in_group"):
            op.drop_index(name, "job")


def _make_indexes_of_jobs() -> None:
    if op.get_bind().dialect.name != "sqlite":
        return
    waits = sa.text("state IN ('New', 'Saved') AND NOT held")
    in_order: list[str | sa.TextClause] = ["lane", sa.text("state DESC"), sa.text("priority DESC"), "id"]
    op.create_index("job_waiting", "job", in_order, unique=False, sqlite_where=waits)
    op.create_index("job_on_agent", "job", ["agent"], unique=False, sqlite_where=sa.text("agent IS NOT NULL"))
    of_campaign = sa.text("campaign IS NOT NULL")
    op.create_index("job_in_campaign", "job", ["campaign", "index"], unique=True, sqlite_where=of_campaign)
    op.create_index("job_in_group", "job", ["group", "id"], unique=False)
