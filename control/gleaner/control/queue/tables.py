"""The queue's tables. What a state implies is a constraint here, so that no code path can break it.

The classes only declare; the statements elsewhere use the plain tables (`JOB` and so on), which is several times
faster than loading objects. Enums are stored by value. Times are seconds since the epoch.
"""

from enum import StrEnum
from typing import Any, cast

from sqlalchemy import (
    CheckConstraint,
    ForeignKeyConstraint,
    Index,
    Text,
    TextClause,
    false,
    text,
    true,
)
from sqlmodel import JSON, Field, SQLModel

from gleaner.control.life import WAITING, Outcome, State
from gleaner.control.queue import (
    decision_tables,
    drain_tables,
    governed_tables,
    judging_tables,
    migration_tables,
    site_tables,
)
from gleaner.control.queue.columns import BIG, BIG_ID, JSON_OR_NULL, table, words


class Ending(StrEnum):
    """How an attempt ended."""

    SAVED = "saved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """Its agent fell silent."""
    FORGOTTEN = "forgotten"
    """Its agent lives but does not name it: the answer to the claim never arrived there."""
    GIVEN_BACK = "given back"
    CANCELLED = "cancelled"


class Standing(StrEnum):
    """What the queue thinks of a checkpoint generation."""

    NAMED = "named"
    """Whole as far as is known, and kept."""
    BROKEN = "broken"
    """Set aside: no attempt goes on from it, but it is kept as long as the job is not Complete."""
    DROPPED = "dropped"
    """Not needed any more: newer ones are there, or the job has started over."""


class Phase(StrEnum):
    """Where an agent stands."""

    SUBMITTED = "submitted"
    LIVE = "live"
    SILENT = "silent"
    ENDED = "ended"


class Role(StrEnum):
    """What a token allows."""

    USER = "user"
    AGENT = "agent"
    ADMIN = "admin"
    METRICS = "metrics"
    """To read `/metrics`, and nothing else."""


def listed(*words: StrEnum) -> str:
    """The words as SQL writes a list of them; sorted, so that the text is always the same.

    >>> listed(State.SAVED, State.NEW)
    "'New', 'Saved'"
    """
    return ", ".join(f"'{word.value}'" for word in sorted(words))


CHURNED = {"postgresql_with": {"autovacuum_vacuum_scale_factor": "0.01"}}
"""For a table whose rows are written anew at every move. By default PostgreSQL lets a fifth of a table die before it
cleans up, and a claim steps over what is dead at the front of the index of the waiting jobs."""
WAITS = f"state IN ({listed(*WAITING)}) AND NOT held"
"""Whether an agent may claim the job. The index of the waiting jobs is used only where a query says exactly this."""


class Campaign(SQLModel, table=True):
    """Jobs that were submitted together."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    name: str
    group: str
    submitted_s: float
    submitter: str = Field(sa_column_kwargs={"server_default": ""})


class Spec(SQLModel, table=True):
    """What to run. Never changed; a campaign's jobs share one, and `{index}` in it is filled in when it is read.

    Apart from `Job`, because a job's row is written anew at every move.
    """

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    name: str
    image: str
    command: list[str] = Field(sa_type=JSON)
    environment: dict[str, str] = Field(sa_type=JSON)
    saves_itself: dict[str, Any] | None = Field(sa_type=JSON_OR_NULL)


class Lane(SQLModel, table=True):
    """All waiting jobs that are alike to a claim: of one group, and with the same wishes.

    Never deleted: a lane without waiting jobs is not looked at (see `claims`).
    """

    __table_args__ = (
        CheckConstraint("cpus >= 1", "cpus_positive"),
        CheckConstraint("memory_mib >= 1", "memory_positive"),
        Index("lane_wishes", "group", "cpus", "memory_mib", "kind", "not_on", "submitter", unique=True),
    )

    id: int | None = Field(default=None, primary_key=True)
    cpus: int
    memory_mib: int
    kind: int = Field(sa_column_kwargs={"server_default": "0"})
    """The kind of node that the jobs were saved on, and that theirs must be fit for; 0: any node will do."""
    not_on: str = Field(sa_column_kwargs={"server_default": ""})
    """Where the jobs may not go on: nodes that have refused their generations, or that they have left. See `places`."""
    group: str = Field(sa_column_kwargs={"server_default": ""})
    """Empty in a lane of before groups had their own: only jobs that are Complete are in it."""
    submitter: str = Field(sa_column_kwargs={"server_default": ""})
    """Whose jobs they are, where each of the group's users may have only so many cores; else empty: anybody's."""


class Agent(SQLModel, table=True):
    """One agent that control has submitted."""

    __table_args__ = (
        CheckConstraint("(registered_s IS NULL) = (node IS NULL)", "node_iff_registered"),
        CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", "lease_iff_registered"),
        CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", "submitted_unregistered"),
        CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", "live_registered"),
        CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", "end_iff_ended"),
        ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),
        Index("agent_here", "phase", postgresql_where=text("phase <> 'ended'"), sqlite_where=text("phase <> 'ended'")),
    )

    name: str = Field(primary_key=True)
    phase: Phase = Field(sa_type=words(Phase, "phase"))
    scheduler_id: str | None
    end_s: float
    submitted_s: float
    registered_s: float | None
    lease_until_s: float | None
    ended_s: float | None
    node: str | None
    facts: dict[str, Any] | None = Field(sa_type=JSON)
    vacate: bool
    reason: str = Field(sa_type=Text)
    kind: int | None
    """Of its node, by the facts that it registered with."""


class Job(SQLModel, table=True):
    """One run, and where it stands. Only `arrows` writes `state`."""

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
        CheckConstraint("state <> 'Saved' OR from_attempt IS NOT NULL", "saved_has_generation"),
        CheckConstraint("state <> 'New' OR from_attempt IS NULL", "new_has_none"),
        CheckConstraint("from_attempt <= attempt", "from_own_past"),
        CheckConstraint(f"NOT lost OR (state IN ({listed(*WAITING)}) AND attempt >= 1)", "lost_waits"),
        CheckConstraint("state NOT IN ('Running', 'Saved') OR attempt >= 1", "running_was_claimed"),
        CheckConstraint("(hold_reason IS NOT NULL) = held", "reason_iff_held"),
        CheckConstraint("state <> 'Complete' OR NOT held", "complete_not_held"),
        CheckConstraint('(campaign IS NULL) = ("index" IS NULL)', "index_iff_campaign"),
        CheckConstraint("attempt >= 0", "attempt_counts"),
        CheckConstraint("sound_attempt BETWEEN 0 AND attempt", "sound_was_made"),
        CheckConstraint("retries >= 0 AND failures BETWEEN 0 AND retries + 1", "failures_bounded"),
        ForeignKeyConstraint(["campaign"], ["campaign.id"]),
        ForeignKeyConstraint(["spec"], ["spec.id"]),
        ForeignKeyConstraint(["lane"], ["lane.id"]),
        ForeignKeyConstraint(["agent"], ["agent.name"]),
        CHURNED,
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    group: str
    campaign: int | None = Field(sa_type=BIG)
    index: int | None
    spec: int = Field(sa_type=BIG)
    lane: int
    state: State = Field(sa_type=words(State, "state"))
    outcome: Outcome | None = Field(sa_type=words(Outcome, "outcome"))
    exit_code: int | None
    held: bool
    hold_reason: str | None = Field(sa_type=Text)
    priority: int
    retries: int
    failures: int
    """How often the workload has failed by itself."""
    attempt: int
    """The number of the latest attempt, 0 before the first. It only grows, so no number is used twice."""
    agent: str | None
    lost: bool
    """Whether the latest attempt was given up, so that its own report still counts."""
    sound_attempt: int
    """The latest attempt that proves that the job does not kill its agents; losses are counted after it."""
    from_attempt: int | None
    from_number: int | None
    """The generation that the next attempt goes on from (of a Running job: that the current one went on from)."""
    output_digest: str | None
    output_bytes: int | None = Field(sa_type=BIG)
    submitted_s: float
    ended_s: float | None
    submitter: str = Field(sa_column_kwargs={"server_default": ""})
    """Whose token it was; empty in jobs of before that was kept."""


class Attempt(SQLModel, table=True):
    """One claim of one job by one agent."""

    __table_args__ = (
        CheckConstraint("(ended_s IS NULL) = (ending IS NULL)", "end_iff_ended"),
        CheckConstraint("(exit_code IS NOT NULL) = (COALESCE(ending, '') IN ('failed', 'succeeded'))", "exit_iff_own"),
        CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", "from_whole"),
        CheckConstraint("from_attempt < attempt", "from_earlier"),
        CheckConstraint("attempt >= 1 AND log_from >= 0", "counts"),
        Index(
            "attempt_live",
            "job",
            unique=True,
            postgresql_where=text("ending IS NULL"),
            sqlite_where=text("ending IS NULL"),
        ),
        Index("attempt_of_agent", "agent"),
        ForeignKeyConstraint(["job"], ["job.id"]),
        ForeignKeyConstraint(["agent"], ["agent.name"]),
        CHURNED,
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    agent: str
    node: str
    claimed_s: float
    ended_s: float | None
    ending: Ending | None = Field(sa_type=words(Ending, "ending"))
    exit_code: int | None
    detail: str = Field(sa_type=Text)
    from_attempt: int | None
    from_number: int | None
    log_from: int = Field(sa_type=BIG)
    """The number of the first line that this attempt writes; lines of earlier attempts from there on are superseded."""
    started_s: float | None
    restore_s: float
    compute_s: float
    save_s: float


class Generation(SQLModel, table=True):
    """One published checkpoint generation."""

    __table_args__ = (
        CheckConstraint("size_bytes >= 0 AND log_lines >= 0", "counts"),
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True)
    digest: str
    size_bytes: int = Field(sa_type=BIG)
    log_lines: int = Field(sa_type=BIG)
    open_lines: dict[str, str] | None = Field(sa_type=JSON_OR_NULL)
    published_s: float
    standing: Standing = Field(sa_type=words(Standing, "standing"))
    has_memory: bool = Field(sa_column_kwargs={"server_default": true()})
    kind: int | None
    """Of the node that saved it, as far as it is known."""
    chain: str | None = Field(sa_type=Text)
    """Which generations it may share files with: those with the same. None: nothing is known."""


class Event(SQLModel, table=True):
    """Something that happened to a job. Every move writes one in its own transaction."""

    __table_args__ = (Index("event_of_job", "job", "id"), ForeignKeyConstraint(["job"], ["job.id"]))

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: int = Field(sa_type=BIG)
    attempt: int | None
    at_s: float
    what: str
    detail: str = Field(sa_type=Text)


class Log(SQLModel, table=True):
    """One line that an attempt wrote; `number` counts over the job's whole life."""

    __table_args__ = (ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),)

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BIG)
    line: str = Field(sa_type=Text)


class Trimmed(SQLModel, table=True):
    """The beginning of a job's log is gone: every line before line `number` of `attempt`, and all of earlier attempts.

    Apart from `Job`, because only few jobs have one.
    """

    __table_args__ = (
        CheckConstraint("lines >= 1", "lines_counted"),
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    number: int = Field(sa_type=BIG)
    lines: int = Field(sa_type=BIG)
    """How many lines are gone, superseded ones too."""


class Logged(SQLModel, table=True):
    """How much a job's log takes. Without a row it is counted when something is added to it."""

    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"), ForeignKeyConstraint(["job"], ["job.id"]))

    job: int = Field(primary_key=True, sa_type=BIG)
    size_bytes: int = Field(sa_type=BIG)
    """The lines as UTF-8, and `logs.LINE_BYTES` for each."""


class Token(SQLModel, table=True):
    """A bearer token's hash, and what it allows."""

    __table_args__ = (
        CheckConstraint("role <> 'user' OR \"group\" IS NOT NULL", "user_has_group"),
        CheckConstraint("NOT manager OR role = 'user'", "manager_is_user"),
    )

    hash: str = Field(primary_key=True)
    role: Role = Field(sa_type=words(Role, "role"))
    name: str = Field(index=True)
    group: str | None
    issued_s: float
    revoked_s: float | None
    manager: bool = Field(sa_column_kwargs={"server_default": false()})
    """Whether its owner may change all jobs of the group, and not only the own ones."""
    expires_s: float | None
    """Good for nothing from then on; None: it does not end by itself."""


CAMPAIGN = table(Campaign)
SPEC = table(Spec)
LANE = table(Lane)
AGENT = table(Agent)
JOB = table(Job)
ATTEMPT = table(Attempt)
GENERATION = table(Generation)
EVENT = table(Event)
LOG = table(Log)
TRIMMED = table(Trimmed)
LOGGED = table(Logged)
TOKEN = table(Token)
FURTHER = (decision_tables, drain_tables, governed_tables, judging_tables, migration_tables, site_tables)
"""Modules with further tables, imported so that `METADATA` has them."""
METADATA = SQLModel.metadata
"""All tables, those of the further modules too."""


def _where(condition: str) -> dict[str, TextClause]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


# In claim order within each lane. "Saved" sorts after "New", so the descending order puts saved jobs first.
Index("job_waiting", JOB.c.lane, JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id, **cast(Any, _where(WAITS)))
Index("job_on_agent", JOB.c.agent, **cast(Any, _where("agent IS NOT NULL")))
Index("job_in_campaign", JOB.c.campaign, JOB.c.index, unique=True, **cast(Any, _where("campaign IS NOT NULL")))
Index("job_in_group", JOB.c.group, JOB.c.id)
Index("job_unended", JOB.c.group, JOB.c.lane, JOB.c.submitter, **cast(Any, _where("state <> 'Complete'")))
Index("job_running", JOB.c.group, JOB.c.submitter, **cast(Any, _where("agent IS NOT NULL")))
Index("job_output", JOB.c.group, JOB.c.submitter, JOB.c.output_bytes, **cast(Any, _where("output_bytes IS NOT NULL")))
