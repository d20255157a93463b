"""The queue's tables, one module a subject. Statements in hot paths are SQLAlchemy Core, on the tables below."""

from sqlalchemy import Table
from sqlmodel import SQLModel

from gleaner.control.models.agents import Phase as Phase
from gleaner.control.queue.tables.agents import AgentRecord
from gleaner.control.queue.tables.attempts import (
    AttemptRecord,
    CheckpointRecord,
    EventRecord,
    LogLineRecord,
    LogSizeRecord,
    MigrationRecord,
    PauseRecord,
    TrimmedLogRecord,
)
from gleaner.control.queue.tables.attempts import Standing as Standing
from gleaner.control.queue.tables.column_types import QueueRecord
from gleaner.control.queue.tables.decisions import ActedRecord, DecisionRecord, SubjectRecord, ToldRecord
from gleaner.control.queue.tables.deliveries import DeliveryRecord
from gleaner.control.queue.tables.drains import DrainRecord
from gleaner.control.queue.tables.images import ImageNameRecord, ImageRecord, UploadRecord
from gleaner.control.queue.tables.inputs import InputRecord, SecretRecord
from gleaner.control.queue.tables.jobs import ANY_KIND as ANY_KIND
from gleaner.control.queue.tables.jobs import SAVING as SAVING
from gleaner.control.queue.tables.jobs import WAITS as WAITS
from gleaner.control.queue.tables.jobs import CampaignRecord, JobRecord, LaneNeedRecord, LaneRecord, SpecRecord
from gleaner.control.queue.tables.jobs import LaneKey as LaneKey
from gleaner.control.queue.tables.jobs import LaneWish as LaneWish
from gleaner.control.queue.tables.jobs import NeedKind as NeedKind
from gleaner.control.queue.tables.jobs import SubmissionKeyRecord as SubmissionKeyRecord
from gleaner.control.queue.tables.nodes import (
    FitRecord,
    KnownNodeRecord,
    NodeHasRecord,
    NodeKindRecord,
    NodeRatesRecord,
    NodeTimeMarkRecord,
    NodeTimeRecord,
    NodeUseRecord,
    RegularDelayRecord,
)
from gleaner.control.queue.tables.tokens import (
    ControlViewRecord,
    LeaderRecord,
    StopRecord,
    TokenRecord,
    WebSessionRecord,
)

METADATA = SQLModel.metadata
"""All tables."""


def _table(kind: type[QueueRecord]) -> Table:
    return METADATA.tables[kind.__tablename__]


CAMPAIGN = _table(CampaignRecord)
SUBMISSION_KEY = _table(SubmissionKeyRecord)
SPEC = _table(SpecRecord)
LANE = _table(LaneRecord)
LANE_NEED = _table(LaneNeedRecord)
JOB = _table(JobRecord)
ATTEMPT = _table(AttemptRecord)
CHECKPOINT = _table(CheckpointRecord)
EVENT = _table(EventRecord)
LOG = _table(LogLineRecord)
TRIMMED = _table(TrimmedLogRecord)
LOGGED = _table(LogSizeRecord)
PAUSE = _table(PauseRecord)
MIGRATION = _table(MigrationRecord)
AGENT = _table(AgentRecord)
KIND = _table(NodeKindRecord)
FIT = _table(FitRecord)
NODE_HAS = _table(NodeHasRecord)
NODE = _table(KnownNodeRecord)
RATE = _table(NodeRatesRecord)
NODE_TIME = _table(NodeTimeRecord)
REGULAR_DELAY = _table(RegularDelayRecord)
NODE_USE = _table(NodeUseRecord)
NODE_TIME_MARK = _table(NodeTimeMarkRecord)
STORED_IMAGE = _table(ImageRecord)
IMAGE = _table(ImageNameRecord)
INPUT = _table(InputRecord)
UPLOAD = _table(UploadRecord)
SECRET = _table(SecretRecord)
DELIVERY = _table(DeliveryRecord)
ACTED = _table(ActedRecord)
TOLD = _table(ToldRecord)
DECISION = _table(DecisionRecord)
SUBJECT = _table(SubjectRecord)
DRAIN = _table(DrainRecord)
TOKEN = _table(TokenRecord)
WEB_SESSION = _table(WebSessionRecord)
LEADER = _table(LeaderRecord)
STOP = _table(StopRecord)
CONTROL_VIEW = _table(ControlViewRecord)
