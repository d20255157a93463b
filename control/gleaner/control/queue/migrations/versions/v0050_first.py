"""All tables of release 0.2.0, as SQL that does not change with the code.

After the release, each change of a table is a further revision. Before the release, a change of a table raises the
number here, `GLEANER_TESTS=golden` with `tests/queue/test_schema.py` regenerates the SQL, and a database with another
number is refused.
"""

from pathlib import Path

from alembic import op

revision = "0050"
down_revision = None


def upgrade() -> None:
    """Create all tables."""
    script = Path(__file__).with_name(f"first_{op.get_context().dialect.name}.sql").read_text()
    for statement in script.removesuffix(";\n").split(";\n"):
        op.execute(statement)
