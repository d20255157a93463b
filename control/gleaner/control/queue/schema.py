"""The queue's tables, one section a subject.

What a state implies is a constraint in its table, so that no code path can break it.
The classes only declare. The statements elsewhere use the plain tables (`JOB` and so on), which is several times
faster than loading objects. Enums are stored by value. Times are seconds since the epoch.
"""

from enum import StrEnum
from typing import Any, cast

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Dialect,
    Enum,
    ForeignKeyConstraint,
    Index,
    Integer,
    Table,
    TextClause,
    TypeDecorator,
    false,
    text,
    true,
)
from sqlalchemy import Text as PlainText
from sqlmodel import JSON, Field, SQLModel

from gleaner.agent.system.untrusted import storable
from gleaner.control.policy.blame import Verdict
from gleaner.control.states import WAITING, Outcome, State

BIG: Any = BigInteger()
BIG_ID: Any = BigInteger().with_variant(Integer(), "sqlite")  # SQLite counts up INTEGER PRIMARY KEY only
JSON_OR_NULL: Any = JSON(none_as_null=True)


class Text(TypeDecorator[str]):
    """A text for people, which may quote anybody. What no database takes is replaced."""

    impl = PlainText
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return None if value is None else storable(value)


def words(kind: type[StrEnum], name: str) -> Any:
    """Return the type of a column that holds one of the members, stored by its value."""
    return Enum(
        kind,
        name=name,
        native_enum=False,
        create_constraint=True,
        length=16,
        values_callable=_values,  # SQLAlchemy would store the members' names
    )


def _values(kind: type[StrEnum]) -> list[str]:
    return [member.value for member in kind]


def table(model: type[SQLModel]) -> Table:
    """Return the plain table of a model, as statements take it."""
    return cast(Table, cast(Any, model).__table__)  # SQLModel adds it when the class is made


def listed(*words: StrEnum) -> str:
    """Return the words as SQL writes a list of them, sorted, so that the text is always the same.

    >>> listed(State.SAVED, State.NEW)
    "'New', 'Saved'"
    """
    return ", ".join(f"'{word.value}'" for word in sorted(words))


def _where(condition: str) -> dict[str, TextClause]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


CHURNED = {"postgresql_with": {"autovacuum_vacuum_scale_factor": "0.01"}}
"""For a table whose rows are rewritten at every transition. By default PostgreSQL lets a fifth of a table die before it
cleans up, and a claim steps over the dead rows at the front of the index of the waiting jobs."""
WAITS = f"state IN ({listed(*WAITING)}) AND NOT held"
"""The condition under which an agent may claim the job. The index of the waiting jobs is used only where a query says
exactly this."""


# Jobs, and what is submitted with them


class Campaign(SQLModel, table=True):
    """Jobs that were submitted together."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    name: str
    group: str
    submitted_s: float
    submitter: str = Field(sa_column_kwargs={"server_default": ""})


CAMPAIGN = table(Campaign)


class Spec(SQLModel, table=True):
    """A job's container image, command and environment. Never changed. A campaign's jobs share one, and `{index}` in it
    is filled in when it is read.

    It is apart from `Job`, because a job's row is rewritten at every transition.
    """

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    name: str
    image: str
    command: list[str] = Field(sa_type=JSON)
    environment: dict[str, str] = Field(sa_type=JSON)
    saves_itself: dict[str, Any] | None = Field(sa_type=JSON_OR_NULL)
    retry_on: list[int] | None = Field(sa_type=JSON_OR_NULL)
    never_retry_on: list[int] | None = Field(sa_type=JSON_OR_NULL)
    compute_limit_s: int | None
    image_id: str | None
    """The id of the image that the group had pushed under the name `image` at the submission. All slices of the job use
    this very image. None: `image` is a name that the nodes know."""


SPEC = table(Spec)
ANY_KIND = 0
"""In a lane: its jobs can start or go on everywhere, since they save themselves."""
SAVING = -1
"""In a lane: its jobs have no memory saved yet, and can start on every node that can save memory. It is a row of `kind`
like the others, so that a claim and the planner ask `fit` only."""


class Lane(SQLModel, table=True):
    """All waiting jobs that are alike to a claim: of one group, and with the same wishes.

    A lane is never deleted: `claims` steps over a lane without waiting jobs.
    """

    __table_args__ = (
        CheckConstraint("cpus >= 1", "cpus_positive"),
        CheckConstraint("memory_mib >= 1", "memory_positive"),
        Index("lane_wishes", "group", "cpus", "memory_mib", "kind", "not_on", "submitter", "needs_s", unique=True),
    )

    id: int | None = Field(default=None, primary_key=True)
    cpus: int
    memory_mib: int
    kind: int = Field(sa_column_kwargs={"server_default": "0"})
    """The kind of node that the jobs were saved on, and that their next node must fit; 0: any node will do."""
    not_on: str = Field(sa_column_kwargs={"server_default": ""})
    """The nodes where the jobs may not go on: they refused the jobs' checkpoints, or the jobs migrated away. See
    `lanes`."""
    group: str = Field(sa_column_kwargs={"server_default": ""})
    """Empty in a lane that is older than the groups' own lanes: only jobs that are Complete are in it."""
    submitter: str = Field(sa_column_kwargs={"server_default": ""})
    """The user whose jobs they are, where each of the group's users may have only so many cores. Else empty: anybody's.
    """
    needs_s: int = Field(sa_column_kwargs={"server_default": "0"})
    """The time that an agent must have left for the jobs; 0: any will do."""


LANE = table(Lane)


class Job(SQLModel, table=True):
    """One job, and its state. Only `transitions` writes `state`."""

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
    """The number of times that the workload has failed by itself and cost a retry."""
    attempt: int
    """The number of the latest attempt, 0 before the first. It only grows, so no number is used twice."""
    agent: str | None
    lost: bool
    """True if the latest attempt was given up, so that its own report still counts."""
    sound_attempt: int
    """The latest attempt that proves that the job does not kill its agents; losses are counted after it."""
    from_attempt: int | None
    from_number: int | None
    """The checkpoint that the next attempt goes on from (for a Running job: that the current attempt went on from)."""
    output_digest: str | None
    output_bytes: int | None = Field(sa_type=BIG)
    submitted_s: float
    ended_s: float | None
    submitter: str = Field(sa_column_kwargs={"server_default": ""})
    """The name of the token that submitted it. Empty in jobs that are older than this column."""


JOB = table(Job)
# In claim order within each lane. "Saved" sorts after "New", so the descending order puts saved jobs first.
Index("job_waiting", JOB.c.lane, JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id, **cast(Any, _where(WAITS)))
Index("job_on_agent", JOB.c.agent, **cast(Any, _where("agent IS NOT NULL")))
Index("job_in_campaign", JOB.c.campaign, JOB.c.index, unique=True, **cast(Any, _where("campaign IS NOT NULL")))
Index("job_in_group", JOB.c.group, JOB.c.id)
Index("job_unended", JOB.c.group, JOB.c.lane, JOB.c.submitter, **cast(Any, _where("state <> 'Complete'")))
Index("job_running", JOB.c.group, JOB.c.submitter, **cast(Any, _where("agent IS NOT NULL")))
Index("job_output", JOB.c.group, JOB.c.submitter, JOB.c.output_bytes, **cast(Any, _where("output_bytes IS NOT NULL")))


# Attempts, and what they leave behind


class Ending(StrEnum):
    """The ways in which an attempt ends."""

    SAVED = "saved"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    LOST = "lost"
    """Its agent fell silent."""
    FORGOTTEN = "forgotten"
    """Its agent lives but does not name the attempt: the answer to the claim never arrived there."""
    RETURNED = "returned"
    """It ended without a save and without a result."""
    CANCELLED = "cancelled"


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
    """The number of the first line that this attempt writes. Lines of earlier attempts from there on are superseded."""
    started_s: float | None
    restore_s: float
    compute_s: float
    save_s: float
    counted_s: float = Field(sa_column_kwargs={"server_default": "0"})
    """The part of `compute_s` that counts against the job's limit: until its latest checkpoint or its own end."""


ATTEMPT = table(Attempt)


class Standing(StrEnum):
    """The queue's opinion of a checkpoint."""

    NAMED = "named"
    """Whole as far as is known, and kept."""
    BROKEN = "broken"
    """Set aside: no attempt goes on from it, but it is kept until the job is Complete."""
    DROPPED = "dropped"
    """Not needed any more: there are newer ones, or the job has started over."""


class Checkpoint(SQLModel, table=True):
    """One published checkpoint."""

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
    """The kind of the node that saved it, as far as it is known."""
    chain: str | None = Field(sa_type=Text)
    """The checkpoint may share files with those of the same chain. None: nothing is known."""


CHECKPOINT = table(Checkpoint)


class Event(SQLModel, table=True):
    """Something that happened to a job. Every transition writes one in its own transaction."""

    __table_args__ = (Index("event_of_job", "job", "id"), ForeignKeyConstraint(["job"], ["job.id"]))

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: int = Field(sa_type=BIG)
    attempt: int | None
    at_s: float
    what: str
    detail: str = Field(sa_type=Text)


EVENT = table(Event)


class Log(SQLModel, table=True):
    """One line that an attempt wrote. `number` counts over the job's whole life."""

    __table_args__ = (ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),)

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    number: int = Field(primary_key=True, sa_type=BIG)
    line: str = Field(sa_type=Text)


LOG = table(Log)


class Trimmed(SQLModel, table=True):
    """The beginning of a job's log is gone: every line before line `number` of `attempt`, and all of earlier attempts.

    It is apart from `Job`, because only few jobs have one.
    """

    __table_args__ = (
        CheckConstraint("lines >= 1", "lines_counted"),
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    number: int = Field(sa_type=BIG)
    lines: int = Field(sa_type=BIG)
    """The number of lines that are gone, superseded ones too."""


TRIMMED = table(Trimmed)


class Logged(SQLModel, table=True):
    """The size of a job's log. Without a row it is counted when something is added to the log."""

    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"), ForeignKeyConstraint(["job"], ["job.id"]))

    job: int = Field(primary_key=True, sa_type=BIG)
    size_bytes: int = Field(sa_type=BIG)
    """The lines as UTF-8, and `logs.LINE_BYTES` for each."""


LOGGED = table(Logged)


# Agents and their nodes


class Phase(StrEnum):
    """The phase of an agent's life."""

    SUBMITTED = "submitted"
    LIVE = "live"
    SILENT = "silent"
    ENDED = "ended"


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
    """The kind of its node, by the facts that the agent registered with."""


AGENT = table(Agent)


class Kind(SQLModel, table=True):
    """The properties of nodes that decide what can be restored on them. Never changed, never deleted."""

    id: int | None = Field(default=None, primary_key=True)
    digest: str = Field(unique=True)
    """The digest of the other columns, so that each kind has one row."""
    architecture: str
    family: str
    """The first word of the runtime."""
    criu: str
    cpu_features: list[str] = Field(sa_type=JSON)


KIND = table(Kind)


class Fit(SQLModel, table=True):
    """A pair of kinds: checkpoints from nodes of one can be restored on nodes of the other. Each kind fits itself."""

    __table_args__ = (ForeignKeyConstraint(["saved_on"], ["kind.id"]), ForeignKeyConstraint(["node"], ["kind.id"]))

    saved_on: int = Field(primary_key=True)
    node: int = Field(primary_key=True)


FIT = table(Fit)


class Node(SQLModel, table=True):
    """A node, and how agents have fared there."""

    __table_args__ = (ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),)

    name: str = Field(primary_key=True)
    failures: int
    """The number of failures in a row."""
    failed_s: float | None
    avoided_until_s: float | None
    kind: int | None
    """The kind that the node had when an agent last registered there. None: no agent ever has."""


NODE = table(Node)


class Rate(SQLModel, table=True):
    """The saves, restores and losses that were seen on a node; see `queue.node_rates`."""

    __table_args__ = (
        CheckConstraint("agents_s >= 0 AND losses >= 0", "exposure_counts"),
        CheckConstraint("boundary_saves >= 0", "saves_count"),
    )

    node: str = Field(primary_key=True)
    saves: list[list[float]] = Field(sa_type=JSON)
    """The newest measurements, the newest last, as lists of MiB and seconds."""
    save_s: float
    """The time of a save of 256 MiB, by the line through `saves`: nodes are compared by it. 0: nothing was measured."""
    restores: list[list[float]] = Field(sa_type=JSON)
    errors: list[float] = Field(sa_type=JSON)
    """For each of the latest agents' ends, the newest last: the time that all its saves took together, as a multiple of
    the expected time."""
    late: bool
    """True if a save came too late, and none has been in time since."""
    boundary_s: float
    """The time when the latest burst of saves began."""
    boundary_saves: int
    """The number of saves in that burst."""
    agents_s: float
    """The time that agents were there, all together."""
    losses: float
    """The number of them that were lost without notice."""
    weighed_s: float
    """The time when `agents_s` and `losses` were last weighed."""


RATE = table(Rate)


# Failures of jobs, and what follows from them


class Blame(StrEnum):
    """The party that is to blame for a failure."""

    OPEN = "open"
    """Not decided: it does not cost the job a retry yet, because one node's word is not enough."""
    JOB = "job"
    """The job: it has cost the job a retry."""
    NODE = "node"
    """The node: it never costs the job a retry."""


class Failure(SQLModel, table=True):
    """A workload that exited with an error."""

    __table_args__ = (
        ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        Index("failure_on_node", "node", "at_s"),
    )

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int = Field(primary_key=True)
    node: str
    at_s: float
    is_quick: bool
    """True if it ended so soon that the node may be to blame. See `policy.blame`."""
    blame: Blame = Field(sa_type=words(Blame, "blame"))


FAILURE = table(Failure)


class Doubt(SQLModel, table=True):
    """A node on which different jobs have failed quickly in a row. A job that runs well there removes the row."""

    __table_args__ = (CheckConstraint("jobs >= 1 AND probes >= 0 AND times_bad >= 0", "counts"),)

    node: str = Field(primary_key=True)
    jobs: int
    """The number of jobs that failed in a row."""
    probes: int
    """The number of them that were handed out as probes, since the node was doubted."""
    since_s: float
    """The time when the first of them was claimed. A job that was claimed earlier and ends well proves nothing."""
    last_s: float
    """The time when the last of them failed."""
    verdict: Verdict = Field(sa_type=words(Verdict, "verdict"))
    doubted_s: float | None
    """The time since which the node is doubted. What was claimed later is a probe. None: the node is trusted."""
    probe_s: float
    """The time from which one more job is handed out, unless the node is trusted."""
    times_bad: int
    """The number of times that the node was found bad in this row of failures."""
    avoided_until_s: float | None


DOUBT = table(Doubt)


class Pause(SQLModel, table=True):
    """A waiting job that must not go everywhere for a while. It counts only while `attempt` is the job's latest."""

    __table_args__ = (ForeignKeyConstraint(["job"], ["job.id"]), Index("pause_ends", "wakes_s"))

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    wakes_s: float
    not_on: str
    """The nodes that the job must avoid for `LONGEST_ELSEWHERE_S` after that. Empty: none."""


PAUSE = table(Pause)


# Jobs that migrate


class Migration(SQLModel, table=True):
    """A job that is told to migrate, until it runs elsewhere."""

    __table_args__ = (ForeignKeyConstraint(["job"], ["job.id"]),)

    job: int = Field(primary_key=True, sa_type=BIG)
    attempt: int
    """The attempt that is to be saved. If another one runs, the job has migrated."""
    from_node: str
    to_node: str | None
    not_on: str
    """As in a lane: the nodes where the job may not go on when it is saved."""
    by: str
    asked_s: float


MIGRATION = table(Migration)


# Images that groups push


class StoredImage(SQLModel, table=True):
    """An image in the storage, once for all groups that have pushed it. It stays while a name or a job needs it."""

    __tablename__ = "stored_image"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (CheckConstraint("size_bytes >= 0", "size_counted"),)

    image_id: str = Field(primary_key=True)
    digest: str
    """The digest of its archive's manifest in the storage."""
    architecture: str
    size_bytes: int = Field(sa_type=BIG)


STORED_IMAGE = table(StoredImage)


class Image(SQLModel, table=True):
    """A group's name for an image. Pushing another image under the name replaces `image_id`."""

    __table_args__ = (ForeignKeyConstraint(["image_id"], ["stored_image.image_id"]),)

    group: str = Field(primary_key=True)
    name: str = Field(primary_key=True)
    image_id: str
    pushed_s: float
    pusher: str


IMAGE = table(Image)


# The owners' jobs


class Acted(SQLModel, table=True):
    """An owner's job on which control has acted: it is released and has not started, or preempted and has not ended."""

    job: str = Field(primary_key=True)
    released_s: float | None
    at_top: bool
    told_s: float | None


ACTED = table(Acted)


class Told(SQLModel, table=True):
    """One preemption of an owner's job. A ceiling of saves an hour counts these rows."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    job: str
    at_s: float = Field(index=True)


TOLD = table(Told)


# Decisions


class DecisionKind(StrEnum):
    """The effect of a decision on the jobs that it is about."""

    START = "start"
    VICTIM = "victim"
    """The job is to free what it holds."""
    HOLD = "hold"
    MIGRATE = "migrate"


class Decision(SQLModel, table=True):
    """One answer of a policy. Never changed."""

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    at_s: float
    kind: DecisionKind = Field(sa_type=words(DecisionKind, "kind"))
    policy: str
    """The name of the pure function; see `policy.replay`."""
    acted: bool
    """False for a dry run: nothing was done."""
    packed: bytes
    """All that it was decided from, and the answer; see `decisions.packed`."""
    size_bytes: int = Field(sa_type=BIG)
    """About what it takes in the database, with its subjects."""


DECISION = table(Decision)


class Subject(SQLModel, table=True):
    """A job that a decision is about."""

    __table_args__ = (
        ForeignKeyConstraint(["decision"], ["decision.id"]),
        Index("decision_about", "subject", "decision"),
    )

    decision: int = Field(primary_key=True, sa_type=BIG)
    subject: str = Field(primary_key=True)
    """`job 7` of our queue, or `slurm 4711`."""
    group: str | None
    """The group that may see it, where the queue does not know: that of a job of Slurm's."""


SUBJECT = table(Subject)


# Drains


class DrainTask(StrEnum):
    """An admin's request."""

    DRAIN = "drain"
    DRY_RUN = "dry run"
    """Say what a drain would do."""
    RESUME = "resume"


class DrainPhase(StrEnum):
    """The progress of a request. Each phase is written down before its work is done, so that a killed control goes on
    there."""

    ASKED = "asked"
    MARKING = "marking"
    """The nodes are being marked, and their jobs looked at."""
    EMPTYING = "emptying"
    SETTING_BACK = "setting back"
    EMPTY = "empty"
    """Done: nothing runs there any more."""
    LOOKED = "looked"
    """Done: a dry run."""
    REFUSED = "refused"
    """Nothing was done, or it was undone."""
    RESUMED = "resumed"
    STOPPED = "stopped"
    """Somebody else has set a node back meanwhile."""


OVER = (DrainPhase.EMPTY, DrainPhase.LOOKED, DrainPhase.REFUSED, DrainPhase.RESUMED, DrainPhase.STOPPED)


class Drain(SQLModel, table=True):
    """One request of an admin for some nodes."""

    __table_args__ = (
        CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))", "end_iff_over"
        ),
    )

    id: int | None = Field(default=None, primary_key=True, sa_type=BIG_ID)
    task: DrainTask = Field(sa_type=words(DrainTask, "task"))
    phase: DrainPhase = Field(sa_type=words(DrainPhase, "phase"))
    nodes: list[str] = Field(sa_type=JSON)
    by: str
    spanning: str
    leaves_others: bool
    asked_s: float
    ended_s: float | None
    said: str = Field(sa_type=Text)
    """One line for people: why it waits or was refused, or how it ended."""
    jobs: list[dict[str, Any]] = Field(sa_type=JSON)
    """The jobs of Slurm's that were found there; see `drains.DrainedJob`."""


DRAIN = table(Drain)


# Who may do something: tokens, and the program that leads


class Role(StrEnum):
    """The rights of a token."""

    USER = "user"
    AGENT = "agent"
    ADMIN = "admin"
    METRICS = "metrics"
    """Reads `/metrics`, and nothing else."""


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
    """True if its owner may change all jobs of the group, and not only their own."""
    expires_s: float | None
    """The time from which it is worth nothing. None: it does not end by itself."""


TOKEN = table(Token)


class WebSession(SQLModel, table=True):
    """A browser that is signed in to the web page; before that, the code that may sign it in."""

    __tablename__ = "web_session"  # pyright: ignore[reportAssignmentType]
    __table_args__ = (CheckConstraint("role IN ('user', 'admin')", "people_only"),)

    hash: str = Field(primary_key=True)
    """The hash of the code, and then of the session's own secret."""
    token: str
    """The id of the token that stands behind it; empty where munge has vouched."""
    role: str
    name: str
    group: str | None
    manager: bool
    opened_s: float | None
    """None: a code that nobody has used yet."""
    expires_s: float = Field(index=True)


WEB_SESSION = table(WebSession)


class Leader(SQLModel, table=True):
    """The control program that leads: at most one row."""

    __table_args__ = (CheckConstraint("id = 1", "only_one"),)

    id: int = Field(primary_key=True)
    holder: str
    until_s: float
    """By the database's clock."""
    epoch: int = Field(sa_type=BIG)
    """Higher than that of every earlier leader; see `leader`."""


LEADER = table(Leader)
METADATA = SQLModel.metadata
"""All tables."""
