"""The queue's tables, one module a subject. Statements in hot paths are SQLAlchemy Core, on the tables below."""

from sqlalchemy import Table
from sqlmodel import SQLModel

from gleaner.control.queue.tables.agents import Phase as Phase
from gleaner.control.queue.tables.agents import SubmittedAgent
from gleaner.control.queue.tables.attempts import (
    Attempt,
    Event,
    Failure,
    LogEntry,
    LogSize,
    Migration,
    Pause,
    PublishedCheckpoint,
    TrimmedLog,
)
from gleaner.control.queue.tables.attempts import Standing as Standing
from gleaner.control.queue.tables.column_types import Stored
from gleaner.control.queue.tables.decisions import Acted, Decision, Subject, Told
from gleaner.control.queue.tables.deliveries import Delivery
from gleaner.control.queue.tables.drains import Drain
from gleaner.control.queue.tables.images import Image, StoredImage
from gleaner.control.queue.tables.inputs import Input, Secret
from gleaner.control.queue.tables.jobs import ANY_KIND as ANY_KIND
from gleaner.control.queue.tables.jobs import SAVING as SAVING
from gleaner.control.queue.tables.jobs import WAITS as WAITS
from gleaner.control.queue.tables.jobs import Campaign, Job, Lane, LaneMount, Spec
from gleaner.control.queue.tables.nodes import (
    Fit,
    Kind,
    Node,
    NodeMount,
    NodeTime,
    NodeTimeMark,
    NodeUse,
    Rate,
    RegularDelay,
)
from gleaner.control.queue.tables.tokens import Leader, Token, WebSession

METADATA = SQLModel.metadata
"""All tables."""


def _table(kind: type[Stored]) -> Table:
    return METADATA.tables[kind.__tablename__]


CAMPAIGN = _table(Campaign)
SPEC = _table(Spec)
LANE = _table(Lane)
LANE_MOUNT = _table(LaneMount)
JOB = _table(Job)
ATTEMPT = _table(Attempt)
CHECKPOINT = _table(PublishedCheckpoint)
EVENT = _table(Event)
LOG = _table(LogEntry)
TRIMMED = _table(TrimmedLog)
LOGGED = _table(LogSize)
FAILURE = _table(Failure)
PAUSE = _table(Pause)
MIGRATION = _table(Migration)
AGENT = _table(SubmittedAgent)
KIND = _table(Kind)
FIT = _table(Fit)
NODE_MOUNT = _table(NodeMount)
NODE = _table(Node)
RATE = _table(Rate)
NODE_TIME = _table(NodeTime)
REGULAR_DELAY = _table(RegularDelay)
NODE_USE = _table(NodeUse)
NODE_TIME_MARK = _table(NodeTimeMark)
STORED_IMAGE = _table(StoredImage)
IMAGE = _table(Image)
INPUT = _table(Input)
SECRET = _table(Secret)
DELIVERY = _table(Delivery)
ACTED = _table(Acted)
TOLD = _table(Told)
DECISION = _table(Decision)
SUBJECT = _table(Subject)
DRAIN = _table(Drain)
TOKEN = _table(Token)
WEB_SESSION = _table(WebSession)
LEADER = _table(Leader)
