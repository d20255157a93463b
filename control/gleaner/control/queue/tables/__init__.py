"""The queue's tables, one module for each subject. Statements in hot paths use SQLAlchemy Core on the tables below."""

from sqlmodel import SQLModel

from gleaner.control.models.agents import Phase as Phase
from gleaner.control.queue.tables import decisions as decisions
from gleaner.control.queue.tables import images as images
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
"""The metadata of all tables. Each module that is imported here declares some of them."""

CAMPAIGN = METADATA.tables["campaign"]
SUBMISSION_KEY = METADATA.tables["submission_key"]
SPEC = METADATA.tables["spec"]
LANE = METADATA.tables["lane"]
LANE_NEED = METADATA.tables["lane_need"]
JOB = METADATA.tables["job"]
ATTEMPT = METADATA.tables["attempt"]
CHECKPOINT = METADATA.tables["checkpoint"]
EVENT = METADATA.tables["event"]
LOG = METADATA.tables["log"]
LOGGED = METADATA.tables["logged"]
PAUSE = METADATA.tables["pause"]
MIGRATION = METADATA.tables["migration"]
AGENT = METADATA.tables["agent"]
KIND = METADATA.tables["kind"]
FIT = METADATA.tables["fit"]
NODE_HAS = METADATA.tables["node_has"]
NODE = METADATA.tables["node"]
RATE = METADATA.tables["rate"]
NODE_TIME = METADATA.tables["node_time"]
REGULAR_DELAY = METADATA.tables["regular_delay"]
NODE_USE = METADATA.tables["node_use"]
NODE_TIME_MARK = METADATA.tables["node_time_mark"]
STORED_IMAGE = METADATA.tables["stored_image"]
IMAGE = METADATA.tables["image"]
INPUT = METADATA.tables["input"]
UPLOAD = METADATA.tables["upload"]
SECRET = METADATA.tables["secret"]
DELIVERY = METADATA.tables["delivery"]
ACTED = METADATA.tables["acted"]
TOLD = METADATA.tables["told"]
DECISION = METADATA.tables["decision"]
SUBJECT = METADATA.tables["subject"]
DRAIN = METADATA.tables["drain"]
TOKEN = METADATA.tables["token"]
WEB_SESSION = METADATA.tables["web_session"]
LEADER = METADATA.tables["leader"]
STOP = METADATA.tables["stop"]
CONTROL_VIEW = METADATA.tables["control_view"]
