"""What decisions were made from is compressed, and each says what it takes, so that all together have a bound."""

import json
from typing import Any, Literal

import sqlalchemy as sa
import zstandard
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

_AT_ONCE = 200
_BYTES_A_DECISION, _BYTES_A_SUBJECT = 150, 150

_DECISION = sa.table(
    "decision",
    sa.column("id", sa.BigInteger()),
    sa.column("given", sa.JSON()),
    sa.column("answer", sa.JSON()),
    sa.column("packed", sa.LargeBinary()),
    sa.column("size_bytes", sa.BigInteger()),
)
_SUBJECT = sa.table("subject", sa.column("decision", sa.BigInteger()))


def upgrade() -> None:
    """Add the columns, fill them a few rows at a time, and remove the ones that they stand for."""
    # SQLite could do it in place, but would word the table differently from a new one.
    recreate: Literal["always", "never"] = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    op.add_column("decision", sa.Column("packed", sa.LargeBinary(), nullable=True))
    op.add_column("decision", sa.Column("size_bytes", sa.BigInteger(), nullable=True))
    last = 0
    while rows := _pack(op.get_bind(), after=last):
        last = rows
    with op.batch_alter_table("decision", recreate=recreate) as changed:
        changed.alter_column("packed", existing_type=sa.LargeBinary(), nullable=False)
        changed.alter_column("size_bytes", existing_type=sa.BigInteger(), nullable=False)
        changed.drop_column("given")
        changed.drop_column("answer")


def _pack(db: sa.Connection, *, after: int) -> int:
    """Pack the next rows; the number of the last one, 0 if there is none."""
    subjects = sa.select(sa.func.count()).where(_SUBJECT.c.decision == _DECISION.c.id).scalar_subquery()
    wanted = sa.select(_DECISION.c.id, _DECISION.c.given, _DECISION.c.answer, subjects.label("subjects"))
    found = db.execute(wanted.where(_DECISION.c.id > after).order_by(_DECISION.c.id).limit(_AT_ONCE)).all()
    for row in found:
        packed = _packed({"given": row.given, "answer": row.answer})
        size_bytes = len(packed) + _BYTES_A_DECISION + _BYTES_A_SUBJECT * row.subjects
        now = sa.update(_DECISION).values(packed=packed, size_bytes=size_bytes)
        db.execute(now.where(_DECISION.c.id == row.id))
    return int(found[-1].id) if found else 0


def _packed(content: dict[str, Any]) -> bytes:
    return zstandard.ZstdCompressor().compress(json.dumps(content, separators=(",", ":")).encode())
