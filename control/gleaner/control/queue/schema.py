"""The queue's tables, one section a subject.

What a state implies is a constraint in its table, so that no code path can break it. Enums are stored by value. Times
are seconds since the epoch. The values that people see have classes in `control.models`.
"""

from enum import StrEnum
from typing import Any

from sqlalchemy import (
    JSON,
    Boolean,
    CheckConstraint,
    Column,
    Float,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    String,
    Table,
    false,
    true,
)

from gleaner.agent.staging.credentials import CredentialKind
from gleaner.control.models.decisions import DecisionKind
from gleaner.control.models.drains import OVER, DrainPhase, DrainTask
from gleaner.control.models.jobs import Ending
from gleaner.control.models.outputs import DeliveryPhase
from gleaner.control.models.tokens import Role
from gleaner.control.policy.node_health import Blame, NodeHealth
from gleaner.control.policy.node_time import FIELDS
from gleaner.control.queue.columns import BIG, BIG_ID, CHURNED, JSON_OR_NULL, Text, listed, not_null, only_where, words
from gleaner.control.states import WAITING, Outcome, State

METADATA = MetaData()
"""All tables."""
WAITS = f"state IN ({listed(*WAITING)}) AND NOT held"
"""The condition under which an agent may claim the job. The index of the waiting jobs is used only where a query says
exactly this."""


def _table(name: str, *columns_and_constraints: Any, **words: Any) -> Table:
    return Table(name, METADATA, *columns_and_constraints, **words)


# Jobs, and what is submitted with them

CAMPAIGN = _table(
    "campaign",
    Column("id", BIG_ID, primary_key=True),
    not_null("name", String),
    not_null("group", String),
    not_null("submitted_s", Float),
    not_null("submitter", String, server_default=""),
)
"""Jobs that were submitted together."""

SPEC = _table(
    "spec",
    Column("id", BIG_ID, primary_key=True),
    not_null("name", String),
    not_null("image", String),
    not_null("command", JSON),
    not_null("environment", JSON),
    Column("saves_itself", JSON_OR_NULL),
    Column("retry_on", JSON_OR_NULL),
    Column("never_retry_on", JSON_OR_NULL),
    Column("compute_limit_s", Integer),
    # A job that has met its memory limit gets more, up to this. None: no more than at first.
    Column("most_memory_mib", Integer),
    Column("silent_limit_s", Integer),
    Column("disk_mib", Integer),
    # The id of the image that the group had pushed under the name `image` at the submission. All slices of the job use
    # this very image. None: `image` is a name that the nodes know.
    Column("image_id", String),
    # The files and folders that the job reads, as `StoredInput` has them, or `UrlInput` until an agent has fetched it.
    # None: there are none.
    Column("inputs", JSON_OR_NULL),
    # The folders of the node that the job mounts, sorted. None: there are none.
    Column("mounts", JSON_OR_NULL),
    # What is kept of the job's folder, as `OutputSpec` has it. None: everything.
    Column("outputs", JSON_OR_NULL),
)
"""A job's container image, command, environment and inputs. Never changed, but that an input from a URL is noted once
it was fetched. A campaign's jobs share one, and `{index}` in it is filled in when it is read.

It is apart from `JOB`, because a job's row is rewritten at every transition."""

ANY_KIND = 0
"""In a lane: its jobs can start or go on everywhere, since they save themselves."""
SAVING = -1
"""In a lane: its jobs have no memory saved yet, and can start on every node that can save memory. It is a row of `kind`
like the others, so that a claim and the planner ask `fit` only."""

LANE = _table(
    "lane",
    Column("id", Integer, primary_key=True),
    not_null("cpus", Integer),
    not_null("memory_mib", Integer),
    # The kind of node that the jobs were saved on, and that their next node must fit; 0: any node will do.
    not_null("kind", Integer, server_default="0"),
    # The nodes where the jobs may not go on: they refused the jobs' checkpoints, or the jobs migrated away. See
    # `lanes`.
    not_null("not_on", String, server_default=""),
    # Empty in a lane that is older than the groups' own lanes: only jobs that are Complete are in it.
    not_null("group", String, server_default=""),
    # The user whose jobs they are, where each of the group's users may have only so many cores. Else empty: anybody's.
    not_null("submitter", String, server_default=""),
    # The time that an agent must have left for the jobs; 0: any will do.
    not_null("needs_s", Integer, server_default="0"),
    # The folders that the jobs mount, and the schemes of their inputs' URLs (`lanes.fetch_of`), sorted, a line each.
    # `LANE_MOUNT` has a row for each.
    not_null("mounts", String, server_default=""),
    CheckConstraint("cpus >= 1", "cpus_positive"),
    CheckConstraint("memory_mib >= 1", "memory_positive"),
    Index(
        "lane_wishes", "group", "cpus", "memory_mib", "kind", "not_on", "submitter", "needs_s", "mounts", unique=True
    ),
)
"""All waiting jobs that are alike to a claim: of one group, and with the same wishes.

A lane is never deleted: `claims` steps over a lane without waiting jobs."""

LANE_MOUNT = _table(
    "lane_mount",
    Column("lane", Integer, ForeignKey("lane.id"), primary_key=True),
    Column("folder", String, primary_key=True),
)
"""Folders that the jobs of a lane mount, and ways to fetch their inputs. A node that lacks one of them is not offered
the jobs."""

JOB = _table(
    "job",
    Column("id", BIG_ID, primary_key=True),
    not_null("group", String),
    Column("campaign", BIG, ForeignKey("campaign.id")),
    Column("index", Integer),
    not_null("spec", BIG, ForeignKey("spec.id")),
    not_null("lane", Integer, ForeignKey("lane.id")),
    not_null("state", words(State, "state")),
    Column("outcome", words(Outcome, "outcome")),
    Column("exit_code", Integer),
    not_null("held", Boolean),
    Column("hold_reason", Text),
    not_null("priority", Integer),
    not_null("retries", Integer),
    not_null("failures", Integer),  # The number of times that the workload has failed by itself and cost a retry.
    # The number of the latest attempt, 0 before the first. It only grows, so no number is used twice.
    not_null("attempt", Integer),
    Column("agent", String, ForeignKey("agent.name")),
    not_null("lost", Boolean),  # True if the latest attempt was given up, so that its own report still counts.
    # The latest attempt that proves that the job does not kill its agents; losses are counted after it.
    not_null("sound_attempt", Integer),
    Column("from_attempt", Integer),
    # The checkpoint that the next attempt goes on from (for a Running job: that the current attempt went on from).
    Column("from_number", Integer),
    Column("output_digest", String),
    Column("output_bytes", BIG),
    not_null("submitted_s", Float),
    Column("ended_s", Float),
    # The name of the token that submitted it. Empty in jobs that are older than this column.
    not_null("submitter", String, server_default=""),
    CheckConstraint("(agent IS NOT NULL) = (state = 'Running')", "agent_iff_running"),
    CheckConstraint("(outcome IS NOT NULL) = (state = 'Complete')", "outcome_iff_complete"),
    CheckConstraint("(ended_s IS NOT NULL) = (state = 'Complete')", "end_iff_complete"),
    CheckConstraint("(exit_code IS NOT NULL) = (COALESCE(outcome, '') IN ('failed', 'succeeded'))", "exit_iff_own_end"),
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
    **CHURNED,
)
"""One job, and its state. Only `transitions` writes `state`."""

# In claim order within each lane. "Saved" sorts after "New", so the descending order puts saved jobs first.
Index("job_waiting", JOB.c.lane, JOB.c.state.desc(), JOB.c.priority.desc(), JOB.c.id, **only_where(WAITS))
Index("job_on_agent", JOB.c.agent, **only_where("agent IS NOT NULL"))
Index("job_in_campaign", JOB.c.campaign, JOB.c.index, unique=True, **only_where("campaign IS NOT NULL"))
Index("job_in_group", JOB.c.group, JOB.c.id)
Index("job_unended", JOB.c.group, JOB.c.lane, JOB.c.submitter, **only_where("state <> 'Complete'"))
Index("job_running", JOB.c.group, JOB.c.submitter, **only_where("agent IS NOT NULL"))
Index("job_output", JOB.c.group, JOB.c.submitter, JOB.c.output_bytes, **only_where("output_bytes IS NOT NULL"))


# Attempts, and what they leave behind

ATTEMPT = _table(
    "attempt",
    Column("job", BIG, ForeignKey("job.id"), primary_key=True),
    Column("attempt", Integer, primary_key=True),
    not_null("agent", String, ForeignKey("agent.name")),
    not_null("node", String),
    not_null("claimed_s", Float),
    Column("ended_s", Float),
    Column("ending", words(Ending, "ending")),
    Column("exit_code", Integer),
    not_null("detail", Text),
    Column("from_attempt", Integer),
    Column("from_number", Integer),
    # The number of the first line that this attempt writes. Lines of earlier attempts from there on are superseded.
    not_null("log_from", BIG),
    Column("started_s", Float),
    not_null("start_s", Float, server_default="0"),
    not_null("restore_s", Float),
    not_null("compute_s", Float),
    not_null("save_s", Float),
    # The part of `compute_s` that counts against the job's limit: until its latest checkpoint or its own end.
    not_null("counted_s", Float, server_default="0"),
    CheckConstraint("(ended_s IS NULL) = (ending IS NULL)", "end_iff_ended"),
    CheckConstraint("(exit_code IS NOT NULL) = (COALESCE(ending, '') IN ('failed', 'succeeded'))", "exit_iff_own"),
    CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", "from_whole"),
    CheckConstraint("from_attempt < attempt", "from_earlier"),
    CheckConstraint("attempt >= 1 AND log_from >= 0", "counts"),
    Index("attempt_live", "job", unique=True, **only_where("ending IS NULL")),
    Index("attempt_of_agent", "agent"),
    Index("attempt_ended", "ended_s"),
    **CHURNED,
)
"""One claim of one job by one agent."""


class Standing(StrEnum):
    """The queue's opinion of a checkpoint."""

    NAMED = "named"
    """Whole as far as is known, and kept."""
    BROKEN = "broken"
    """Set aside: no attempt goes on from it, but it is kept until the job is Complete."""
    DROPPED = "dropped"
    """Not needed any more: there are newer ones, or the job has started over."""


CHECKPOINT = _table(
    "checkpoint",
    Column("job", BIG, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", Integer, primary_key=True),
    not_null("digest", String),
    not_null("size_bytes", BIG),
    not_null("log_lines", BIG),
    Column("open_lines", JSON_OR_NULL),
    not_null("published_s", Float),
    not_null("standing", words(Standing, "standing")),
    not_null("has_memory", Boolean, server_default=true()),
    Column(
        "kind", Integer, ForeignKey("kind.id", name="kind_known")
    ),  # The kind of the node that saved it, as far as it is known.
    not_null("silent_s", Float, server_default="0"),  # The time that the job had computed without a write.
    Column("chain", Text),  # The checkpoint may share files with those of the same chain. None: nothing is known.
    CheckConstraint("size_bytes >= 0 AND log_lines >= 0", "counts"),
    ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
)
"""One published checkpoint."""

EVENT = _table(
    "event",
    Column("id", BIG_ID, primary_key=True),
    not_null("job", BIG, ForeignKey("job.id")),
    Column("attempt", Integer),
    not_null("at_s", Float),
    not_null("what", String),
    not_null("detail", Text),
    Index("event_of_job", "job", "id"),
)
"""Something that happened to a job. Every transition writes one in its own transaction."""

LOG = _table(
    "log",
    Column("job", BIG, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    Column("number", BIG, primary_key=True),
    not_null("line", Text),
    ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
)
"""One line that an attempt wrote. `number` counts over the job's whole life."""

TRIMMED = _table(
    "trimmed",
    Column("job", BIG, primary_key=True),
    not_null("attempt", Integer),
    not_null("number", BIG),
    not_null("lines", BIG),  # The number of lines that are gone, superseded ones too.
    CheckConstraint("lines >= 1", "lines_counted"),
    ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
)
"""The beginning of a job's log is gone: every line before line `number` of `attempt`, and all of earlier attempts.

It is apart from `JOB`, because only few jobs have one."""

LOGGED = _table(
    "logged",
    Column("job", BIG, ForeignKey("job.id"), primary_key=True),
    not_null("size_bytes", BIG),  # The lines as UTF-8, and `logs.LINE_BYTES` for each.
    CheckConstraint("size_bytes >= 0", "size_counted"),
)
"""The size of a job's log. Without a row it is counted when something is added to the log."""


# Agents and their nodes


class Phase(StrEnum):
    """The phase of an agent's life."""

    SUBMITTED = "submitted"
    LIVE = "live"
    SILENT = "silent"
    ENDED = "ended"


AGENT = _table(
    "agent",
    Column("name", String, primary_key=True),
    not_null("phase", words(Phase, "phase")),
    Column("scheduler_id", String),
    not_null("end_s", Float),
    not_null("submitted_s", Float),
    Column("registered_s", Float),
    Column("lease_until_s", Float),
    Column("ended_s", Float),
    Column("node", String),
    Column("facts", JSON),
    not_null("vacate", Boolean),
    not_null("reason", Text),
    Column(
        "kind", Integer, ForeignKey("kind.id", name="kind_known")
    ),  # The kind of its node, by the facts that the agent registered with.
    CheckConstraint("(registered_s IS NULL) = (node IS NULL)", "node_iff_registered"),
    CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", "lease_iff_registered"),
    CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", "submitted_unregistered"),
    CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", "live_registered"),
    CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", "end_iff_ended"),
    Index("agent_here", "phase", **only_where("phase <> 'ended'")),
)
"""One agent that control has submitted."""

KIND = _table(
    "kind",
    Column("id", Integer, primary_key=True),
    not_null("digest", String, unique=True),  # The digest of the other columns, so that each kind has one row.
    not_null("architecture", String),
    not_null("family", String),  # The first word of the runtime.
    not_null("criu", String),
    not_null("cpu_features", JSON),
)
"""The properties of nodes that decide what can be restored on them. Never changed, never deleted."""

FIT = _table(
    "fit",
    Column("saved_on", Integer, ForeignKey("kind.id"), primary_key=True),
    Column("node", Integer, ForeignKey("kind.id"), primary_key=True),
)
"""A pair of kinds: checkpoints from nodes of one can be restored on nodes of the other. Each kind fits itself."""

NODE_MOUNT = _table(
    "node_mount",
    Column("node", String, primary_key=True),
    Column("folder", String, primary_key=True),
)
"""The folders that jobs could mount on a node when an agent last registered there."""

NODE = _table(
    "node",
    Column("name", String, primary_key=True),
    # The kind that the node had when an agent last registered there. None: no agent ever has.
    Column("kind", Integer, ForeignKey("kind.id", name="kind_known")),
    not_null("faults", Integer, server_default="0"),  # The number of agents in a row that failed because of the node.
    # The number of different jobs in a row that failed there quickly. A job that runs well there sets it to 0.
    not_null("failed_jobs", Integer, server_default="0"),
    not_null("canaries", Integer, server_default="0"),  # The number of these jobs that started while it was suspect.
    # The time when the first of them was claimed. A job that was claimed earlier and ends well proves nothing.
    not_null("since_s", Float, server_default="0"),
    not_null("last_s", Float, server_default="0"),  # The time when the last of them failed.
    not_null("health", words(NodeHealth, "health"), server_default="healthy"),  # By what its jobs have shown.
    Column("suspect_s", Float),  # The time since which the node is suspect. A job that is claimed later is a canary.
    not_null("canary_s", Float, server_default="0"),  # The time from which one more canary is handed out.
    not_null("times_excluded", Integer, server_default="0"),  # How often these failed jobs have had it excluded.
    Column("excluded_until_s", Float),  # Because of the faults, or of the failed jobs.
    CheckConstraint("faults >= 0 AND failed_jobs >= 0 AND canaries >= 0 AND times_excluded >= 0", "counts"),
)
"""A node, and how agents and jobs have fared there."""

RATE = _table(
    "rate",
    Column("node", String, primary_key=True),
    not_null("saves", JSON),  # The newest measurements, the newest last, as lists of MiB and seconds.
    # The time of a save of 256 MiB, by the line through `saves`: nodes are compared by it. 0: nothing was measured.
    not_null("save_s", Float),
    not_null("restores", JSON),
    # For each of the latest agents' ends, the newest last: the time that all its saves took together, as a multiple of
    # the expected time.
    not_null("errors", JSON),
    not_null("late", Boolean),  # True if a save came too late, and none has been in time since.
    not_null("boundary_s", Float),  # The time when the latest burst of saves began.
    not_null("boundary_saves", Integer),  # The number of saves in that burst.
    not_null("agents_s", Float),  # The time that agents were there, all together.
    not_null("losses", Float),  # The number of them that were lost without notice.
    not_null("weighed_s", Float),  # The time when `agents_s` and `losses` were last weighed.
    CheckConstraint("agents_s >= 0 AND losses >= 0", "exposure_counts"),
    CheckConstraint("boundary_saves >= 0", "saves_count"),
)
"""The saves, restores and losses that were seen on a node; see `queue.node_rates`."""


NODE_TIME = _table(
    "node_time",
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("begin_s", BIG, primary_key=True, autoincrement=False),
    *(not_null(name, Float, server_default="0" if name == "start_core_s" else None) for name in FIELDS),
)
"""The sums of node time in one step; see `policy.node_time`."""

REGULAR_DELAY = _table(
    "regular_delay",
    Column("job", String, primary_key=True),
    Column("start_s", Float, primary_key=True),
    not_null("delay_s", Float),
    Index("regular_delay_start", "start_s"),
)
"""The delay of a regular job of Slurm's that took nodes from agents, once for each of its starts; see `policy.harm`."""

NODE_USE = _table(
    "node_use",
    Column("step_s", Integer, primary_key=True, autoincrement=False),
    Column("begin_s", BIG, primary_key=True, autoincrement=False),
    not_null("content", LargeBinary),
)
"""The use of each node in one step: compressed, the letters of the uses, and then a line with each node's name."""

NODE_TIME_MARK = _table(
    "node_time_mark",
    Column("id", Integer, primary_key=True),
    not_null("attempts_s", Float),  # The ends of attempts until then are in the sums.
    CheckConstraint("id = 1", "only_one"),
)
"""The time up to which the history of node time is complete: at most one row."""


# Failures of jobs, and what follows from them

FAILURE = _table(
    "failure",
    Column("job", BIG, primary_key=True),
    Column("attempt", Integer, primary_key=True),
    not_null("node", String),
    not_null("at_s", Float),
    not_null("is_quick", Boolean),  # True if it ended so soon that the node may be to blame. See `policy.node_health`.
    not_null("blame", words(Blame, "blame")),
    ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
    Index("failure_on_node", "node", "at_s"),
)
"""A workload that exited with an error."""

PAUSE = _table(
    "pause",
    Column("job", BIG, ForeignKey("job.id"), primary_key=True),
    not_null("attempt", Integer),
    not_null("wakes_s", Float),
    not_null("not_on", String),  # The nodes that the job must avoid for `LONGEST_ELSEWHERE_S` after that. Empty: none.
    Index("pause_ends", "wakes_s"),
)
"""A waiting job that must not go everywhere for a while. It counts only while `attempt` is the job's latest."""


# Jobs that migrate

MIGRATION = _table(
    "migration",
    Column("job", BIG, ForeignKey("job.id"), primary_key=True),
    not_null("attempt", Integer),  # The attempt that is to be saved. If another one runs, the job has migrated.
    not_null("from_node", String),
    Column("to_node", String),
    not_null("not_on", String),  # As in a lane: the nodes where the job may not go on when it is saved.
    not_null("by", String),
    not_null("asked_s", Float),
)
"""A job that is told to migrate, until it runs elsewhere."""


# Images that groups push

STORED_IMAGE = _table(
    "stored_image",
    Column("image_id", String, primary_key=True),
    not_null("digest", String),  # The digest of its archive's manifest in the storage.
    not_null("architecture", String),
    not_null("size_bytes", BIG),
    CheckConstraint("size_bytes >= 0", "size_counted"),
)
"""An image in the storage, once for all groups that have pushed it. It stays while a name or a job needs it."""

IMAGE = _table(
    "image",
    Column("group", String, primary_key=True),
    Column("name", String, primary_key=True),
    not_null("image_id", String, ForeignKey("stored_image.image_id")),
    not_null("pushed_s", Float),
    not_null("pusher", String),
)
"""A group's name for an image. Pushing another image under the name replaces `image_id`."""


# Inputs

INPUT = _table(
    "input",
    Column("group", String, primary_key=True),
    Column("content", String, primary_key=True),  # The SHA-256 of its tar archive.
    not_null("digest", String),  # The digest of its archive's manifest in the storage.
    not_null("size_bytes", BIG),
    not_null("used_s", Float),  # The latest time at which it was stored, or a job submitted with it.
    CheckConstraint("size_bytes >= 0", "size_counted"),
)
"""A file or folder that jobs of the group read, in the storage."""

SECRET = _table(
    "secret",
    Column("group", String, primary_key=True),
    Column("name", String, primary_key=True),
    not_null("url", String),  # The beginning of the URLs for which it is.
    not_null("kind", words(CredentialKind, "kind")),
    not_null("sealed", LargeBinary),  # The credential, encrypted with control's key; see `secret_key`.
    not_null("set_s", Float),
    not_null("setter", String),
)
"""A credential that the group keeps for its jobs."""


# Results on their way to their targets

DELIVERY = _table(
    "delivery",
    Column("job", BIG, ForeignKey("job.id"), primary_key=True, autoincrement=False),
    not_null("attempt", Integer),  # The attempt whose result it is.
    not_null("to", String),
    not_null("phase", words(DeliveryPhase, "delivery_phase")),
    not_null("number", Integer),  # How often an agent has taken it; it guards the agents' reports.
    not_null("failures", Integer),
    Column("agent", String),  # The agent that took it last.
    not_null("due_s", Float),  # The time from which an agent may take it; if one has, from which another may.
    not_null("problem", Text),
    Column("files", BIG),
    Column("size_bytes", BIG),
    Column("ended_s", Float),
    CheckConstraint("number >= 0 AND failures >= 0 AND attempt >= 1", "counts"),
    CheckConstraint("(ended_s IS NOT NULL) = (phase IN ('delivered', 'failed'))", "end_iff_ended"),
    CheckConstraint("(files IS NOT NULL) = (phase = 'delivered')", "files_iff_delivered"),
    CheckConstraint("(files IS NULL) = (size_bytes IS NULL)", "size_whole"),
    CheckConstraint("phase <> 'taken' OR agent IS NOT NULL", "taken_by_agent"),
    Index("delivery_open", "due_s", **only_where("phase IN ('waiting', 'taken')")),
    Index("delivery_taken", "agent", **only_where("phase = 'taken'")),
)
"""The result of a job that has succeeded, to be copied to the target that the job names."""


# The owners' jobs

ACTED = _table(
    "acted",
    Column("job", String, primary_key=True),
    Column("released_s", Float),
    not_null("at_top", Boolean),
    Column("told_s", Float),
)
"""An owner's job on which control has acted: it is released and has not started, or preempted and has not ended."""

TOLD = _table(
    "told",
    Column("id", BIG_ID, primary_key=True),
    not_null("job", String),
    not_null("at_s", Float, index=True),
)
"""One preemption of an owner's job. A ceiling of saves an hour counts these rows."""


# Decisions

DECISION = _table(
    "decision",
    Column("id", BIG_ID, primary_key=True),
    not_null("at_s", Float),
    not_null("kind", words(DecisionKind, "kind")),
    not_null("policy", String),  # The name of the pure function; see `policy.replay`.
    not_null("acted", Boolean),  # False for a dry run: nothing was done.
    not_null("packed", LargeBinary),  # All that it was decided from, and the answer; see `decisions.packed`.
    not_null("size_bytes", BIG),  # About what it takes in the database, with its subjects.
)
"""One answer of a policy. Never changed."""

SUBJECT = _table(
    "subject",
    Column("decision", BIG, ForeignKey("decision.id"), primary_key=True),
    Column("subject", String, primary_key=True),  # `job 7` of our queue, or `slurm 4711`.
    Column("group", String),  # The group that may see it, where the queue does not know: that of a job of Slurm's.
    Index("decision_about", "subject", "decision"),
)
"""A job that a decision is about."""


# Drains

DRAIN = _table(
    "drain",
    Column("id", BIG_ID, primary_key=True),
    not_null("task", words(DrainTask, "task")),
    not_null("phase", words(DrainPhase, "phase")),
    not_null("nodes", JSON),
    not_null("by", String),
    not_null("spanning", String),
    not_null("leaves_others", Boolean),
    not_null("asked_s", Float),
    Column("ended_s", Float),
    not_null("said", Text),  # One line for people: why it waits or was refused, or how it ended.
    not_null("jobs", JSON),  # The jobs of Slurm's that were found there; see `drains.DrainedJob`.
    CheckConstraint(f"(ended_s IS NOT NULL) = (phase IN ({listed(*OVER)}))", "end_iff_over"),
)
"""One request of an admin for some nodes."""


# Who may do something: tokens, and the program that leads

TOKEN = _table(
    "token",
    Column("hash", String, primary_key=True),
    not_null("role", words(Role, "role")),
    not_null("name", String, index=True),
    Column("group", String),
    not_null("issued_s", Float),
    Column("revoked_s", Float),
    # True if its owner may change all jobs of the group, and not only their own.
    not_null("manager", Boolean, server_default=false()),
    Column("expires_s", Float),  # The time from which it is worth nothing. None: it does not end by itself.
    CheckConstraint("role <> 'user' OR \"group\" IS NOT NULL", "user_has_group"),
    CheckConstraint("NOT manager OR role = 'user'", "manager_is_user"),
)
"""A bearer token's hash, and what it allows."""

WEB_SESSION = _table(
    "web_session",
    Column("hash", String, primary_key=True),  # The hash of the code, and then of the session's own secret.
    not_null("token", String),  # The id of the token that stands behind it; empty where munge has vouched.
    not_null("role", String),
    not_null("name", String),
    Column("group", String),
    not_null("manager", Boolean),
    Column("opened_s", Float),  # None: a code that nobody has used yet.
    not_null("expires_s", Float, index=True),
    CheckConstraint("role IN ('user', 'admin')", "people_only"),
)
"""A browser that is signed in to the web page; before that, the code that may sign it in."""

LEADER = _table(
    "leader",
    Column("id", Integer, primary_key=True),
    not_null("holder", String),
    not_null("until_s", Float),  # By the database's clock.
    not_null("epoch", BIG),  # Higher than that of every earlier leader; see `leader`.
    CheckConstraint("id = 1", "only_one"),
)
"""The control program that leads: at most one row."""
