"""The jobs that go from one agent to another."""

from sqlalchemy import ForeignKeyConstraint
from sqlmodel import Field, SQLModel

from gleaner.control.queue.columns import BIG, table


class Migration(SQLModel, table=True):
    """A job that is told to leave its node, until it runs elsewhere."""

    __table_args__ = (ForeignKeyConstraint(["job"], ["job.id"]),)

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    """The one that is to be saved. If another one runs, the job has moved."""
    from_node: str
    to_node: str | None
    not_on: str
    """As in a lane: where it may not go on when it is saved."""
    by: str
    asked_s: float


MIGRATION = table(Migration)
