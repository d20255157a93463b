"""The first version's tables. The numbers before it are of tables from which no way leads here."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = None
branch_labels = None
depends_on = None


def _words(name: str, *words: str) -> sa.Enum:
    """Return the type of a column that holds one of these words."""
    return sa.Enum(*words, name=name, native_enum=False, create_constraint=True, length=16)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def upgrade() -> None:
    """Make all tables."""
    op.create_table(
        "acted",
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("released_s", sa.Float(), nullable=True),
        sa.Column("at_top", sa.Boolean(), nullable=False),
        sa.Column("told_s", sa.Float(), nullable=True),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "campaign",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("submitted_s", sa.Float(), nullable=False),
        sa.Column("submitter", sa.String(), server_default="", nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "decision",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("kind", _words("kind", "start", "victim", "hold", "migrate"), nullable=False),
        sa.Column("policy", sa.String(), nullable=False),
        sa.Column("acted", sa.Boolean(), nullable=False),
        sa.Column("packed", sa.LargeBinary(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "drain",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("task", _words("task", "drain", "dry run", "resume"), nullable=False),
        sa.Column(
            "phase",
            _words(
                "phase",
                "asked",
                "marking",
                "emptying",
                "setting back",
                "empty",
                "looked",
                "refused",
                "resumed",
                "stopped",
            ),
            nullable=False,
        ),
        sa.Column("nodes", sa.JSON(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("spanning", sa.String(), nullable=False),
        sa.Column("leaves_others", sa.Boolean(), nullable=False),
        sa.Column("asked_s", sa.Float(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("said", sa.Text(), nullable=False),
        sa.Column("jobs", sa.JSON(), nullable=False),
        sa.CheckConstraint(
            "(ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))",
            name="end_iff_over",
        ),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "kind",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("family", sa.String(), nullable=False),
        sa.Column("criu", sa.String(), nullable=False),
        sa.Column("cpu_features", sa.JSON(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("digest"),
    )
    op.create_table(
        "lane",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("cpus", sa.Integer(), nullable=False),
        sa.Column("memory_mib", sa.Integer(), nullable=False),
        sa.Column("kind", sa.Integer(), server_default="0", nullable=False),
        sa.Column("not_on", sa.String(), server_default="", nullable=False),
        sa.Column("group", sa.String(), server_default="", nullable=False),
        sa.Column("submitter", sa.String(), server_default="", nullable=False),
        sa.Column("needs_s", sa.Integer(), server_default="0", nullable=False),
        sa.CheckConstraint("cpus >= 1", name="cpus_positive"),
        sa.CheckConstraint("memory_mib >= 1", name="memory_positive"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(
        "lane_wishes", "lane", ["group", "cpus", "memory_mib", "kind", "not_on", "submitter", "needs_s"], unique=True
    )
    op.create_table(
        "leader",
        sa.Column("id", sa.Integer(), nullable=False),
        sa.Column("holder", sa.String(), nullable=False),
        sa.Column("until_s", sa.Float(), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("id = 1", name="only_one"),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "rate",
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("saves", sa.JSON(), nullable=False),
        sa.Column("save_s", sa.Float(), nullable=False),
        sa.Column("restores", sa.JSON(), nullable=False),
        sa.Column("errors", sa.JSON(), nullable=False),
        sa.Column("late", sa.Boolean(), nullable=False),
        sa.Column("boundary_s", sa.Float(), nullable=False),
        sa.Column("boundary_saves", sa.Integer(), nullable=False),
        sa.Column("agents_s", sa.Float(), nullable=False),
        sa.Column("losses", sa.Float(), nullable=False),
        sa.Column("weighed_s", sa.Float(), nullable=False),
        sa.CheckConstraint("agents_s >= 0 AND losses >= 0", name="exposure_counts"),
        sa.CheckConstraint("boundary_saves >= 0", name="saves_count"),
        sa.PrimaryKeyConstraint("node"),
    )
    op.create_table(
        "spec",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("image", sa.String(), nullable=False),
        sa.Column("command", sa.JSON(), nullable=False),
        sa.Column("environment", sa.JSON(), nullable=False),
        sa.Column("saves_itself", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("retry_on", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("never_retry_on", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("compute_limit_s", sa.Integer(), nullable=True),
        sa.Column("image_id", sa.String(), nullable=True),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_table(
        "stored_image",
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("architecture", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="size_counted"),
        sa.PrimaryKeyConstraint("image_id"),
    )
    op.create_table(
        "token",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("role", _words("role", "user", "agent", "admin", "metrics"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=True),
        sa.Column("issued_s", sa.Float(), nullable=False),
        sa.Column("revoked_s", sa.Float(), nullable=True),
        sa.Column("manager", sa.Boolean(), server_default=sa.false(), nullable=False),
        sa.Column("expires_s", sa.Float(), nullable=True),
        sa.CheckConstraint("NOT manager OR role = 'user'", name="manager_is_user"),
        sa.CheckConstraint("role <> 'user' OR \"group\" IS NOT NULL", name="user_has_group"),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_index(op.f("ix_token_name"), "token", ["name"])
    op.create_table(
        "told",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.String(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index(op.f("ix_told_at_s"), "told", ["at_s"])
    op.create_table(
        "agent",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("phase", _words("phase", "submitted", "live", "silent", "ended"), nullable=False),
        sa.Column("scheduler_id", sa.String(), nullable=True),
        sa.Column("end_s", sa.Float(), nullable=False),
        sa.Column("submitted_s", sa.Float(), nullable=False),
        sa.Column("registered_s", sa.Float(), nullable=True),
        sa.Column("lease_until_s", sa.Float(), nullable=True),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("node", sa.String(), nullable=True),
        sa.Column("facts", sa.JSON(), nullable=True),
        sa.Column("vacate", sa.Boolean(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=True),
        sa.CheckConstraint("(phase = 'ended') = (ended_s IS NOT NULL)", name="end_iff_ended"),
        sa.CheckConstraint("phase <> 'submitted' OR registered_s IS NULL", name="submitted_unregistered"),
        sa.CheckConstraint("phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL", name="live_registered"),
        sa.CheckConstraint("(registered_s IS NULL) = (lease_until_s IS NULL)", name="lease_iff_registered"),
        sa.CheckConstraint("(registered_s IS NULL) = (node IS NULL)", name="node_iff_registered"),
        sa.ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_index("agent_here", "agent", ["phase"], **_where("phase <> 'ended'"))
    op.create_table(
        "fit",
        sa.Column("saved_on", sa.Integer(), nullable=False),
        sa.Column("node", sa.Integer(), nullable=False),
        sa.ForeignKeyConstraint(["node"], ["kind.id"]),
        sa.ForeignKeyConstraint(["saved_on"], ["kind.id"]),
        sa.PrimaryKeyConstraint("saved_on", "node"),
    )
    op.create_table(
        "image",
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("image_id", sa.String(), nullable=False),
        sa.Column("pushed_s", sa.Float(), nullable=False),
        sa.Column("pusher", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["image_id"], ["stored_image.image_id"]),
        sa.PrimaryKeyConstraint("group", "name"),
    )
    op.create_table(
        "node",
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=True),
        sa.Column("faults", sa.Integer(), server_default="0", nullable=False),
        sa.Column("failed_jobs", sa.Integer(), server_default="0", nullable=False),
        sa.Column("canaries", sa.Integer(), server_default="0", nullable=False),
        sa.Column("since_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("last_s", sa.Float(), server_default="0", nullable=False),
        sa.Column(
            "health", _words("health", "healthy", "suspect", "excluded"), server_default="healthy", nullable=False
        ),
        sa.Column("suspect_s", sa.Float(), nullable=True),
        sa.Column("canary_s", sa.Float(), server_default="0", nullable=False),
        sa.Column("times_excluded", sa.Integer(), server_default="0", nullable=False),
        sa.Column("excluded_until_s", sa.Float(), nullable=True),
        sa.CheckConstraint("faults >= 0 AND failed_jobs >= 0 AND canaries >= 0 AND times_excluded >= 0", name="counts"),
        sa.ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),
        sa.PrimaryKeyConstraint("name"),
    )
    op.create_table(
        "subject",
        sa.Column("decision", sa.BigInteger(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=True),
        sa.ForeignKeyConstraint(["decision"], ["decision.id"]),
        sa.PrimaryKeyConstraint("decision", "subject"),
    )
    op.create_index("decision_about", "subject", ["subject", "decision"])
    op.create_table(
        "job",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("group", sa.String(), nullable=False),
        sa.Column("campaign", sa.BigInteger(), nullable=True),
        sa.Column("index", sa.Integer(), nullable=True),
        sa.Column("spec", sa.BigInteger(), nullable=False),
        sa.Column("lane", sa.Integer(), nullable=False),
        sa.Column("state", _words("state", "New", "Running", "Saved", "Complete"), nullable=False),
        sa.Column("outcome", _words("outcome", "succeeded", "failed", "cancelled"), nullable=True),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("held", sa.Boolean(), nullable=False),
        sa.Column("hold_reason", sa.Text(), nullable=True),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("retries", sa.Integer(), nullable=False),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=True),
        sa.Column("lost", sa.Boolean(), nullable=False),
        sa.Column("sound_attempt", sa.Integer(), nullable=False),
        sa.Column("from_attempt", sa.Integer(), nullable=True),
        sa.Column("from_number", sa.Integer(), nullable=True),
        sa.Column("output_digest", sa.String(), nullable=True),
        sa.Column("output_bytes", sa.BigInteger(), nullable=True),
        sa.Column("submitted_s", sa.Float(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column("submitter", sa.String(), server_default="", nullable=False),
        sa.CheckConstraint("(agent IS NOT NULL) = (state = 'Running')", name="agent_iff_running"),
        sa.CheckConstraint("(ended_s IS NOT NULL) = (state = 'Complete')", name="end_iff_complete"),
        sa.CheckConstraint(
            "(exit_code IS NOT NULL) = (COALESCE(outcome, '') IN ('failed', 'succeeded'))", name="exit_iff_own_end"
        ),
        sa.CheckConstraint("(outcome IS NOT NULL) = (state = 'Complete')", name="outcome_iff_complete"),
        sa.CheckConstraint("NOT lost OR (state IN ('New', 'Saved') AND attempt >= 1)", name="lost_waits"),
        sa.CheckConstraint("exit_code IS NULL OR (exit_code = 0) = (outcome = 'succeeded')", name="zero_iff_succeeded"),
        sa.CheckConstraint("state <> 'Complete' OR NOT held", name="complete_not_held"),
        sa.CheckConstraint("state <> 'New' OR from_attempt IS NULL", name="new_has_none"),
        sa.CheckConstraint("state <> 'Saved' OR from_attempt IS NOT NULL", name="saved_has_checkpoint"),
        sa.CheckConstraint("state NOT IN ('Running', 'Saved') OR attempt >= 1", name="running_was_claimed"),
        sa.CheckConstraint('(campaign IS NULL) = ("index" IS NULL)', name="index_iff_campaign"),
        sa.CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", name="from_whole"),
        sa.CheckConstraint("(hold_reason IS NOT NULL) = held", name="reason_iff_held"),
        sa.CheckConstraint("(output_digest IS NOT NULL) = (output_bytes IS NOT NULL)", name="output_whole"),
        sa.CheckConstraint("attempt >= 0", name="attempt_counts"),
        sa.CheckConstraint("from_attempt <= attempt", name="from_own_past"),
        sa.CheckConstraint("output_digest IS NULL OR exit_code IS NOT NULL", name="output_only_at_own_end"),
        sa.CheckConstraint("retries >= 0 AND failures BETWEEN 0 AND retries + 1", name="failures_bounded"),
        sa.CheckConstraint("sound_attempt BETWEEN 0 AND attempt", name="sound_was_made"),
        sa.ForeignKeyConstraint(["agent"], ["agent.name"]),
        sa.ForeignKeyConstraint(["campaign"], ["campaign.id"]),
        sa.ForeignKeyConstraint(["lane"], ["lane.id"]),
        sa.ForeignKeyConstraint(["spec"], ["spec.id"]),
        sa.PrimaryKeyConstraint("id"),
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.01"},
    )
    op.create_index("job_in_campaign", "job", ["campaign", "index"], unique=True, **_where("campaign IS NOT NULL"))
    op.create_index("job_in_group", "job", ["group", "id"])
    op.create_index("job_on_agent", "job", ["agent"], **_where("agent IS NOT NULL"))
    op.create_index("job_output", "job", ["group", "submitter", "output_bytes"], **_where("output_bytes IS NOT NULL"))
    op.create_index("job_running", "job", ["group", "submitter"], **_where("agent IS NOT NULL"))
    op.create_index("job_unended", "job", ["group", "lane", "submitter"], **_where("state <> 'Complete'"))
    op.create_index(
        "job_waiting",
        "job",
        ["lane", sa.literal_column("state DESC"), sa.literal_column("priority DESC"), "id"],
        **_where("state IN ('New', 'Saved') AND NOT held"),
    )
    op.create_table(
        "attempt",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("claimed_s", sa.Float(), nullable=False),
        sa.Column("ended_s", sa.Float(), nullable=True),
        sa.Column(
            "ending",
            _words("ending", "saved", "succeeded", "failed", "lost", "forgotten", "returned", "cancelled"),
            nullable=True,
        ),
        sa.Column("exit_code", sa.Integer(), nullable=True),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("from_attempt", sa.Integer(), nullable=True),
        sa.Column("from_number", sa.Integer(), nullable=True),
        sa.Column("log_from", sa.BigInteger(), nullable=False),
        sa.Column("started_s", sa.Float(), nullable=True),
        sa.Column("restore_s", sa.Float(), nullable=False),
        sa.Column("compute_s", sa.Float(), nullable=False),
        sa.Column("save_s", sa.Float(), nullable=False),
        sa.Column("counted_s", sa.Float(), server_default="0", nullable=False),
        sa.CheckConstraint(
            "(exit_code IS NOT NULL) = (COALESCE(ending, '') IN ('failed', 'succeeded'))", name="exit_iff_own"
        ),
        sa.CheckConstraint("(ended_s IS NULL) = (ending IS NULL)", name="end_iff_ended"),
        sa.CheckConstraint("(from_attempt IS NOT NULL) = (from_number IS NOT NULL)", name="from_whole"),
        sa.CheckConstraint("attempt >= 1 AND log_from >= 0", name="counts"),
        sa.CheckConstraint("from_attempt < attempt", name="from_earlier"),
        sa.ForeignKeyConstraint(["agent"], ["agent.name"]),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job", "attempt"),
        postgresql_with={"autovacuum_vacuum_scale_factor": "0.01"},
    )
    op.create_index("attempt_live", "attempt", ["job"], unique=True, **_where("ending IS NULL"))
    op.create_index("attempt_of_agent", "attempt", ["agent"])
    op.create_table(
        "event",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), nullable=False),
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=True),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("what", sa.String(), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("id"),
    )
    op.create_index("event_of_job", "event", ["job", "id"])
    op.create_table(
        "logged",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("size_bytes >= 0", name="size_counted"),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "migration",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("from_node", sa.String(), nullable=False),
        sa.Column("to_node", sa.String(), nullable=True),
        sa.Column("not_on", sa.String(), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("asked_s", sa.Float(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "pause",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("wakes_s", sa.Float(), nullable=False),
        sa.Column("not_on", sa.String(), nullable=False),
        sa.ForeignKeyConstraint(["job"], ["job.id"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_index("pause_ends", "pause", ["wakes_s"])
    op.create_table(
        "checkpoint",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("size_bytes", sa.BigInteger(), nullable=False),
        sa.Column("log_lines", sa.BigInteger(), nullable=False),
        sa.Column("open_lines", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("published_s", sa.Float(), nullable=False),
        sa.Column("standing", _words("standing", "named", "broken", "dropped"), nullable=False),
        sa.Column("has_memory", sa.Boolean(), server_default=sa.true(), nullable=False),
        sa.Column("kind", sa.Integer(), nullable=True),
        sa.Column("chain", sa.Text(), nullable=True),
        sa.CheckConstraint("size_bytes >= 0 AND log_lines >= 0", name="counts"),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.ForeignKeyConstraint(["kind"], ["kind.id"], name="kind_known"),
        sa.PrimaryKeyConstraint("job", "attempt", "number"),
    )
    op.create_table(
        "failure",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("node", sa.String(), nullable=False),
        sa.Column("at_s", sa.Float(), nullable=False),
        sa.Column("is_quick", sa.Boolean(), nullable=False),
        sa.Column("blame", _words("blame", "open", "job", "node"), nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.PrimaryKeyConstraint("job", "attempt"),
    )
    op.create_index("failure_on_node", "failure", ["node", "at_s"])
    op.create_table(
        "log",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("line", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.PrimaryKeyConstraint("job", "attempt", "number"),
    )
    op.create_table(
        "trimmed",
        sa.Column("job", sa.BigInteger(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("lines", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("lines >= 1", name="lines_counted"),
        sa.ForeignKeyConstraint(["job", "attempt"], ["attempt.job", "attempt.attempt"]),
        sa.PrimaryKeyConstraint("job"),
    )
    op.create_table(
        "web_session",
        sa.Column("hash", sa.String(), nullable=False),
        sa.Column("token", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("group", sa.String(), nullable=True),
        sa.Column("manager", sa.Boolean(), nullable=False),
        sa.Column("opened_s", sa.Float(), nullable=True),
        sa.Column("expires_s", sa.Float(), nullable=False),
        sa.CheckConstraint("role IN ('user', 'admin')", name="people_only"),
        sa.PrimaryKeyConstraint("hash"),
    )
    op.create_index("ix_web_session_expires_s", "web_session", ["expires_s"])
