"""Campaigns and jobs, their specifications, and the lanes in which jobs wait."""

from enum import StrEnum
from typing import Any, Self

from sqlalchemy import BigInteger, CheckConstraint, Enum, Index, text
from sqlmodel import Field, SQLModel

from gleaner.agent.job_spec import JobSpec
from gleaner.control.models.campaigns import KnownCampaign
from gleaner.control.models.jobs import Submitted
from gleaner.control.queue.tables.column_types import (
    BIG_ID,
    BY_VALUE,
    CHURNED,
    JSON_OR_NULL,
    Document,
    Names,
    QueueRecord,
    StorableText,
    partial_index,
)
from gleaner.control.states import Outcome, State

WAITS = "state IN ('New', 'Saved') AND NOT held"
"""The condition under which an agent can claim the job. Only a query with exactly these words uses the index of the
waiting jobs."""
ANY_KIND = 0
"""The kind of a lane whose jobs can start or continue on every node, because they save themselves."""
SAVING = -1
"""The kind of a lane whose jobs have no saved memory yet, and can start on every node that is able to save memory. This
value is a row of `kind` like the others, so that a claim and the planner only need to query `fit`."""


class CampaignRecord(KnownCampaign, QueueRecord, table=True):
    """One campaign."""

    __tablename__ = "campaign"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    # The closed lane in which its jobs wait for their turn, or None if they do not wait. A rerun can add lanes for
    # other wishes.
    waiting_lane: int | None = Field(default=None, foreign_key="lane.id")
    max_running: int | None = None  # The number of its jobs that can be open at once, or None for all.
    open_jobs: int = 0  # The number of jobs that have left the waiting lane and have not ended.
    try_left: int = 0  # The number of jobs that must still succeed before the others are opened.
    try_unopened: int = 0  # The number of jobs to be tried first that have not been opened.
    # The number of jobs that can still fail, or None for all. Below 0, the remaining jobs are held.
    failures_left: int | None = None


class SubmissionKeyRecord(QueueRecord, table=True):
    """The key of a submission, and the answer that a repeated submission receives."""

    __tablename__ = "submission_key"
    user: str = Field(primary_key=True)
    key: str = Field(primary_key=True)
    digest: str  # The digest of the submission.
    at_s: float = Field(index=True)
    answer: Submitted | None = Field(default=None, sa_type=Document(Submitted))


class SpecRecord(QueueRecord, table=True):
    """The specification of jobs, which all jobs of a campaign share.

    It is separate from `JobRecord`, which changes often.
    """

    __tablename__ = "spec"
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    document: JobSpec = Field(sa_type=Document(JobSpec))  # Never changed. SQL needs the columns below.
    name: str
    saves_itself: bool
    # The id of the image that had the image's name in the group at the submission. All slices of the job use this
    # image. It is None if the nodes already have the image.
    image_id: str | None = None
    # The files and folders that the job reads, as `StoredInput`, or as `UrlInput` until an agent has fetched them. It
    # is None if there are none.
    inputs: Any = Field(default=None, sa_type=JSON_OR_NULL, nullable=True)


class LaneWish(SQLModel):
    """The wishes that all jobs of a lane share, fixed at their submission."""

    group: str
    submitter: str = ""
    cpus: int
    memory_mib: int
    needs_s: int = 0  # The time that an agent must have left for the jobs, or 0 if any time suffices.
    mounts: tuple[str, ...] = Field(default=(), sa_type=Names)  # The folders that the jobs mount.
    fetches: tuple[str, ...] = Field(default=(), sa_type=Names)  # The schemes of the URLs of their inputs.


class LaneKey(LaneWish):
    """A lane's wishes, and the nodes on which its jobs can continue. No two lanes have the same key."""

    # The kind of node that saved the jobs, which their next node must fit, or 0 if every node fits.
    kind: int = ANY_KIND
    # The nodes to which the jobs are not offered, because they refused the jobs' checkpoints or the jobs migrate away.
    not_on: tuple[str, ...] = Field(default=(), sa_type=Names)
    only_on: str = ""  # The only node to which the jobs are offered, because they migrate to it, or "" for any node.
    is_closed: bool = False  # True if the jobs are offered to no node.
    is_saved: bool = False  # True if the jobs continue from checkpoints.
    campaign: int = 0  # The campaign whose jobs wait here for their turn, or 0 if none do.

    def at(self, **whereto: Any) -> Self:
        """Return the key for jobs with the same wishes that can continue on all nodes except those excluded here."""
        return self.model_copy(update={"not_on": (), "only_on": "", "is_closed": False, "campaign": 0} | whereto)


class LaneRecord(LaneKey, QueueRecord, table=True):
    """All waiting jobs that a claim treats alike.

    A lane is never deleted. A lane without waiting jobs costs nothing, because `claims` skips it.
    """

    __tablename__ = "lane"
    __table_args__ = (
        CheckConstraint("cpus >= 1", "cpus_positive"),
        CheckConstraint("memory_mib >= 1", "memory_positive"),
        Index("lane_key", *LaneKey.model_fields, unique=True),
        partial_index("lane_of_campaign", "campaign", where="campaign <> 0"),
    )
    id: int = Field(primary_key=True)


class NeedKind(StrEnum):
    """A kind of need that jobs have and a node might not meet."""

    MOUNT = "mount"
    FETCH = "fetch"


class LaneNeedRecord(QueueRecord, table=True):
    """A folder that the jobs of a lane mount, or the scheme of an input's URL.

    The lane's jobs are offered only to nodes that meet all its needs.
    """

    __tablename__ = "lane_need"
    lane: int = Field(primary_key=True, foreign_key="lane.id")
    need: NeedKind = Field(primary_key=True, sa_type=Enum(NeedKind, name="need", **BY_VALUE))
    name: str = Field(primary_key=True)


class JobRecord(QueueRecord, table=True):
    """One job and its state. Only `transitions` writes `state`."""

    __tablename__ = "job"
    __table_args__ = (
        CheckConstraint("(agent IS NOT NULL) = (state = 'Running')", "agent_iff_running"),
        CheckConstraint("(outcome IS NOT NULL) = (state = 'Complete')", "outcome_iff_complete"),
        CheckConstraint("(ended_s IS NOT NULL) = (state = 'Complete')", "end_iff_complete"),
        CheckConstraint(
            "(exit_code IS NOT NULL) = (COALESCE(outcome, '') IN ('failed', 'succeeded'))", "exit_iff_own_end"
        ),
        CheckConstraint("exit_code IS NULL OR (exit_code = 0) = (outcome = 'succeeded')", "zero_iff_succeeded"),
        CheckConstraint("(output_digest IS NOT NULL) = (output_bytes IS NOT NULL)", "output_whole"),
        CheckConstraint("output_digest IS NULL OR exit_code IS NOT NULL", "output_only_at_own_end"),
        CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", "from_whole"),
        CheckConstraint("state <> 'Saved' OR from_attempt IS NOT NULL", "saved_has_checkpoint"),
        CheckConstraint("state <> 'New' OR from_attempt IS NULL", "new_has_none"),
        CheckConstraint("from_attempt <= attempt", "from_own_past"),
        CheckConstraint("NOT lost OR (state IN ('New', 'Saved') AND attempt >= 1)", "lost_waits"),
        CheckConstraint("state NOT IN ('Running', 'Saved') OR attempt >= 1", "running_was_claimed"),
        CheckConstraint("(hold_reason IS NOT NULL) = held", "reason_iff_held"),
        CheckConstraint("state <> 'Complete' OR NOT held", "complete_not_held"),
        CheckConstraint("state = 'Complete' OR NOT is_removed", "removed_is_complete"),
        CheckConstraint('(campaign IS NULL) = ("index" IS NULL)', "index_iff_campaign"),
        CheckConstraint("attempt >= 0", "attempt_counts"),
        CheckConstraint("sound_attempt BETWEEN earlier_attempts AND attempt", "sound_was_made"),
        CheckConstraint("retries >= 0 AND failures BETWEEN 0 AND retries + 1", "failures_bounded"),
        # This index is in claim order within each lane, whose jobs are all new or all saved.
        partial_index("job_waiting", "lane", text("state DESC"), text("priority DESC"), "id", where=WAITS),
        partial_index("job_on_agent", "agent", where="agent IS NOT NULL"),
        partial_index("job_in_campaign", "campaign", "index", unique=True, where="campaign IS NOT NULL"),
        Index("job_in_group", "group", "id", "is_removed"),  # so that a list counts its jobs through the index alone
        partial_index("job_unended", "group", "lane", "submitter", where="state <> 'Complete'"),
        partial_index("job_running", "group", "submitter", where="agent IS NOT NULL"),
        partial_index("job_output", "group", "submitter", "output_bytes", where="output_bytes IS NOT NULL"),
        CHURNED | {"sqlite_autoincrement": True},  # `recovery` sets the next number
    )
    id: int = Field(default=None, primary_key=True, sa_type=BIG_ID)
    group: str
    # Campaign and spec have no foreign keys, for the reason given at `EventRecord.job`.
    campaign: int | None = Field(default=None, sa_type=BigInteger)
    spec: int = Field(sa_type=BigInteger)
    index: int | None = None
    # The job's value of each parameter of its campaign, or None if there are no parameters.
    parameters: Any = Field(default=None, sa_type=JSON_OR_NULL, nullable=True)
    lane: int = Field(foreign_key="lane.id")
    state: State = Field(sa_type=Enum(State, name="state", **BY_VALUE))
    outcome: Outcome | None = Field(default=None, sa_type=Enum(Outcome, name="outcome", **BY_VALUE))
    exit_code: int | None = None
    held: bool
    hold_reason: str | None = Field(default=None, sa_type=StorableText)
    priority: int
    retries: int
    failures: int = 0  # The number of failures of the workload itself that have cost a retry.
    # The number of the latest attempt, 0 before the first. It only increases, so no number is used twice.
    attempt: int = 0
    agent: str | None = Field(default=None, foreign_key="agent.name")
    lost: bool = False  # True if the latest attempt was given up but its own report still counts.
    # The latest attempt that shows that the job does not kill its agents. Only later losses are counted.
    sound_attempt: int = 0
    # The number of attempts before the latest rerun. Their failures and their computing time do not count against
    # limits.
    earlier_attempts: int = 0
    from_attempt: int | None = None
    # The checkpoint from which the next attempt continues (for a Running job, from which the current one continued).
    from_number: int | None = None
    output_digest: str | None = None
    output_bytes: int | None = Field(default=None, sa_type=BigInteger)
    is_removed: bool = False  # True if a user has removed the ended job from all lists.
    submitted_s: float
    ended_s: float | None = None
    # The name of the token that submitted it. It is empty for jobs that are older than this column.
    submitter: str = ""
