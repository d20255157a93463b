"""The queue's tables, one module for each subject.

Statements in hot paths use SQLAlchemy Core on the table of a class, which is an attribute of this package.
"""

from sqlalchemy import Table
from sqlmodel import SQLModel

from gleaner.control.models.agents import Phase as Phase
from gleaner.control.queue.tables import agents as agents
from gleaner.control.queue.tables import decisions as decisions
from gleaner.control.queue.tables import deliveries as deliveries
from gleaner.control.queue.tables import drains as drains
from gleaner.control.queue.tables import images as images
from gleaner.control.queue.tables import inputs as inputs
from gleaner.control.queue.tables import nodes as nodes
from gleaner.control.queue.tables import tokens as tokens
from gleaner.control.queue.tables.attempts import Standing as Standing
from gleaner.control.queue.tables.jobs import ANY_KIND as ANY_KIND
from gleaner.control.queue.tables.jobs import SAVING as SAVING
from gleaner.control.queue.tables.jobs import WAITS as WAITS
from gleaner.control.queue.tables.jobs import LaneKey as LaneKey
from gleaner.control.queue.tables.jobs import LaneWish as LaneWish
from gleaner.control.queue.tables.jobs import NeedKind as NeedKind

METADATA = SQLModel.metadata
"""All tables. Each module that is imported here declares some of them."""


def __getattr__(name: str) -> Table:
    """Return the table with this name, which is written in capitals: `JOB` is the table `job`."""
    table = METADATA.tables.get(name.lower())
    if table is None or not name.isupper():
        raise AttributeError(f"there is no table {name}")
    return table
