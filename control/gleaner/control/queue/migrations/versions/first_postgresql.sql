CREATE TABLE decision (
    id BIGSERIAL NOT NULL,
    at_s FLOAT NOT NULL,
    kind VARCHAR(16) NOT NULL,
    policy VARCHAR NOT NULL,
    acted BOOLEAN NOT NULL,
    packed BYTEA NOT NULL,
    size_bytes BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT kind CHECK (kind IN ('start', 'victim', 'hold', 'migrate'))
);
CREATE TABLE acted (
    job VARCHAR NOT NULL,
    released_s FLOAT,
    at_top BOOLEAN NOT NULL,
    told_s FLOAT,
    PRIMARY KEY (job)
);
CREATE TABLE told (
    id BIGSERIAL NOT NULL,
    job VARCHAR NOT NULL,
    at_s FLOAT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE drain (
    id BIGSERIAL NOT NULL,
    task VARCHAR(16) NOT NULL,
    phase VARCHAR(16) NOT NULL,
    nodes JSON NOT NULL,
    by VARCHAR NOT NULL,
    spanning VARCHAR(16) NOT NULL,
    leaves_others BOOLEAN NOT NULL,
    asked_s FLOAT NOT NULL,
    ended_s FLOAT,
    said TEXT NOT NULL,
    jobs JSON NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT end_iff_over CHECK ((ended_s IS NOT NULL) = (phase IN ('empty', 'looked', 'refused', 'resumed', 'stopped'))),
    CONSTRAINT task CHECK (task IN ('drain', 'dry run', 'resume')),
    CONSTRAINT phase CHECK (phase IN ('asked', 'marking', 'emptying', 'setting back', 'empty', 'looked', 'refused', 'resumed', 'stopped')),
    CONSTRAINT spanning CHECK (spanning IN ('wait', 'requeue', 'refuse'))
);
CREATE TABLE stored_image (
    image_id VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    architecture VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    PRIMARY KEY (image_id),
    CONSTRAINT size_counted CHECK (size_bytes >= 0)
);
CREATE TABLE upload (
    kind VARCHAR NOT NULL,
    "group" VARCHAR NOT NULL,
    content VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    used_s FLOAT NOT NULL,
    PRIMARY KEY (kind, "group", content),
    CONSTRAINT size_counted CHECK (size_bytes >= 0)
);
CREATE TABLE input (
    "group" VARCHAR NOT NULL,
    content VARCHAR NOT NULL,
    used_s FLOAT NOT NULL,
    digest VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    PRIMARY KEY ("group", content),
    CONSTRAINT size_counted CHECK (size_bytes >= 0)
);
CREATE TABLE secret (
    "group" VARCHAR NOT NULL,
    url VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    kind VARCHAR(16) NOT NULL,
    set_s FLOAT NOT NULL,
    setter VARCHAR NOT NULL,
    sealed BYTEA NOT NULL,
    PRIMARY KEY ("group", name),
    CONSTRAINT kind CHECK (kind IN ('S3 keys', 'password', 'token'))
);
CREATE TABLE submission_key (
    "user" VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    digest VARCHAR NOT NULL,
    at_s FLOAT NOT NULL,
    answer JSON,
    PRIMARY KEY ("user", key)
);
CREATE TABLE spec (
    id BIGSERIAL NOT NULL,
    document JSON NOT NULL,
    name VARCHAR NOT NULL,
    saves_itself BOOLEAN NOT NULL,
    image_id VARCHAR,
    inputs JSON,
    PRIMARY KEY (id)
);
CREATE TABLE lane (
    "group" VARCHAR NOT NULL,
    submitter VARCHAR NOT NULL,
    cpus INTEGER NOT NULL,
    memory_mib INTEGER NOT NULL,
    needs_s INTEGER NOT NULL,
    mounts VARCHAR NOT NULL,
    fetches VARCHAR NOT NULL,
    kind INTEGER NOT NULL,
    not_on VARCHAR NOT NULL,
    only_on VARCHAR NOT NULL,
    is_closed BOOLEAN NOT NULL,
    is_saved BOOLEAN NOT NULL,
    campaign INTEGER NOT NULL,
    id SERIAL NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT cpus_positive CHECK (cpus >= 1),
    CONSTRAINT memory_positive CHECK (memory_mib >= 1)
);
CREATE TABLE kind (
    id SERIAL NOT NULL,
    digest VARCHAR NOT NULL,
    architecture VARCHAR NOT NULL,
    family VARCHAR NOT NULL,
    criu VARCHAR NOT NULL,
    cpu_features JSON NOT NULL,
    PRIMARY KEY (id),
    UNIQUE (digest)
);
CREATE TABLE node_has (
    node VARCHAR NOT NULL,
    need VARCHAR(16) NOT NULL,
    name VARCHAR NOT NULL,
    PRIMARY KEY (node, need, name),
    CONSTRAINT need CHECK (need IN ('mount', 'fetch'))
);
CREATE TABLE rate (
    node VARCHAR NOT NULL,
    saves JSON NOT NULL,
    save_s FLOAT NOT NULL,
    restores JSON NOT NULL,
    errors JSON NOT NULL,
    late BOOLEAN NOT NULL,
    boundary_s FLOAT NOT NULL,
    boundary_saves INTEGER NOT NULL,
    agents_s FLOAT NOT NULL,
    losses FLOAT NOT NULL,
    weighed_s FLOAT NOT NULL,
    PRIMARY KEY (node),
    CONSTRAINT exposure_counts CHECK (agents_s >= 0 AND losses >= 0),
    CONSTRAINT saves_count CHECK (boundary_saves >= 0)
);
CREATE TABLE node_time (
    step_s INTEGER NOT NULL,
    begin_s BIGINT NOT NULL,
    seen_s FLOAT NOT NULL,
    regular_node_s FLOAT NOT NULL,
    regular_core_s FLOAT NOT NULL,
    agent_node_s FLOAT NOT NULL,
    agent_core_s FLOAT NOT NULL,
    idle_node_s FLOAT NOT NULL,
    idle_core_s FLOAT NOT NULL,
    unusable_node_s FLOAT NOT NULL,
    unusable_core_s FLOAT NOT NULL,
    harvested_core_s FLOAT NOT NULL,
    start_core_s FLOAT NOT NULL,
    restore_core_s FLOAT NOT NULL,
    save_core_s FLOAT NOT NULL,
    lost_core_s FLOAT NOT NULL,
    PRIMARY KEY (step_s, begin_s)
);
CREATE TABLE regular_delay (
    job VARCHAR NOT NULL,
    start_s FLOAT NOT NULL,
    delay_s FLOAT NOT NULL,
    PRIMARY KEY (job, start_s)
);
CREATE TABLE node_use (
    step_s INTEGER NOT NULL,
    begin_s BIGINT NOT NULL,
    content BYTEA NOT NULL,
    PRIMARY KEY (step_s, begin_s)
);
CREATE TABLE node_time_mark (
    id SERIAL NOT NULL,
    attempts_s FLOAT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT only_one CHECK (id = 1)
);
CREATE TABLE token (
    id VARCHAR NOT NULL,
    role VARCHAR(16) NOT NULL,
    name VARCHAR NOT NULL,
    "group" VARCHAR,
    manager BOOLEAN NOT NULL,
    issued_s FLOAT NOT NULL,
    expires_s FLOAT,
    revoked_s FLOAT,
    hash VARCHAR NOT NULL,
    PRIMARY KEY (hash),
    CONSTRAINT user_has_group CHECK (role <> 'user' OR "group" IS NOT NULL),
    CONSTRAINT manager_is_user CHECK (NOT manager OR role = 'user'),
    CONSTRAINT role CHECK (role IN ('user', 'agent', 'admin', 'metrics'))
);
CREATE TABLE web_session (
    hash VARCHAR NOT NULL,
    token VARCHAR NOT NULL,
    role VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    "group" VARCHAR,
    manager BOOLEAN NOT NULL,
    opened_s FLOAT,
    expires_s FLOAT NOT NULL,
    PRIMARY KEY (hash),
    CONSTRAINT people_only CHECK (role IN ('user', 'admin'))
);
CREATE TABLE stop (
    id INTEGER NOT NULL,
    by VARCHAR NOT NULL,
    at_s FLOAT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT only_one CHECK (id = 1)
);
CREATE TABLE leader (
    id SERIAL NOT NULL,
    holder VARCHAR NOT NULL,
    until_s FLOAT NOT NULL,
    epoch BIGINT NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT only_one CHECK (id = 1)
);
CREATE TABLE control_view (
    id INTEGER NOT NULL,
    written_s FLOAT NOT NULL,
    packed BYTEA NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT only_one CHECK (id = 1)
);
CREATE TABLE event (
    at_s FLOAT NOT NULL,
    what VARCHAR NOT NULL,
    id BIGSERIAL NOT NULL,
    job BIGINT NOT NULL,
    attempt INTEGER,
    detail TEXT NOT NULL,
    PRIMARY KEY (id)
);
CREATE TABLE subject (
    decision BIGINT NOT NULL,
    subject VARCHAR NOT NULL,
    "group" VARCHAR,
    PRIMARY KEY (decision, subject),
    FOREIGN KEY(decision) REFERENCES decision (id)
);
CREATE TABLE image (
    "group" VARCHAR NOT NULL,
    name VARCHAR NOT NULL,
    image_id VARCHAR NOT NULL,
    pushed_s FLOAT NOT NULL,
    pusher VARCHAR NOT NULL,
    PRIMARY KEY ("group", name),
    FOREIGN KEY(image_id) REFERENCES stored_image (image_id)
);
CREATE TABLE campaign (
    id BIGSERIAL NOT NULL,
    name VARCHAR NOT NULL,
    "group" VARCHAR NOT NULL,
    submitter VARCHAR NOT NULL,
    submitted_s FLOAT NOT NULL,
    waiting_lane INTEGER,
    max_running INTEGER,
    open_jobs INTEGER NOT NULL,
    try_left INTEGER NOT NULL,
    try_unopened INTEGER NOT NULL,
    failures_left INTEGER,
    PRIMARY KEY (id),
    FOREIGN KEY(waiting_lane) REFERENCES lane (id)
);
CREATE TABLE lane_need (
    lane INTEGER NOT NULL,
    need VARCHAR(16) NOT NULL,
    name VARCHAR NOT NULL,
    PRIMARY KEY (lane, need, name),
    FOREIGN KEY(lane) REFERENCES lane (id),
    CONSTRAINT need CHECK (need IN ('mount', 'fetch'))
);
CREATE TABLE fit (
    saved_on INTEGER NOT NULL,
    node INTEGER NOT NULL,
    PRIMARY KEY (saved_on, node),
    FOREIGN KEY(saved_on) REFERENCES kind (id),
    FOREIGN KEY(node) REFERENCES kind (id)
);
CREATE TABLE node (
    name VARCHAR NOT NULL,
    kind INTEGER,
    faults INTEGER NOT NULL,
    failing_since_s FLOAT,
    excluded_at_s FLOAT,
    excluded_until_s FLOAT,
    times_excluded INTEGER NOT NULL,
    excluded_because TEXT NOT NULL,
    PRIMARY KEY (name),
    CONSTRAINT counts CHECK (faults >= 0 AND times_excluded >= 0),
    CONSTRAINT excluded_whole CHECK ((excluded_at_s IS NULL) = (excluded_until_s IS NULL)),
    FOREIGN KEY(kind) REFERENCES kind (id)
);
CREATE TABLE agent (
    name VARCHAR NOT NULL,
    node VARCHAR,
    phase VARCHAR(16) NOT NULL,
    scheduler_id VARCHAR,
    end_s FLOAT NOT NULL,
    submitted_s FLOAT NOT NULL,
    registered_s FLOAT,
    ended_s FLOAT,
    lease_until_s FLOAT,
    facts JSON,
    vacate BOOLEAN NOT NULL,
    reason TEXT NOT NULL,
    kind INTEGER,
    PRIMARY KEY (name),
    CONSTRAINT node_iff_registered CHECK ((registered_s IS NULL) = (node IS NULL)),
    CONSTRAINT lease_iff_registered CHECK ((registered_s IS NULL) = (lease_until_s IS NULL)),
    CONSTRAINT submitted_unregistered CHECK (phase <> 'submitted' OR registered_s IS NULL),
    CONSTRAINT live_registered CHECK (phase NOT IN ('live', 'silent') OR registered_s IS NOT NULL),
    CONSTRAINT end_iff_ended CHECK ((phase = 'ended') = (ended_s IS NOT NULL)),
    CONSTRAINT phase CHECK (phase IN ('submitted', 'live', 'silent', 'ended')),
    FOREIGN KEY(kind) REFERENCES kind (id)
);
CREATE TABLE job (
    id BIGSERIAL NOT NULL,
    "group" VARCHAR NOT NULL,
    campaign BIGINT,
    spec BIGINT NOT NULL,
    index INTEGER,
    parameters JSON,
    lane INTEGER NOT NULL,
    state VARCHAR(16) NOT NULL,
    outcome VARCHAR(16),
    exit_code INTEGER,
    held BOOLEAN NOT NULL,
    hold_reason TEXT,
    priority INTEGER NOT NULL,
    retries INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    agent VARCHAR,
    lost BOOLEAN NOT NULL,
    sound_attempt INTEGER NOT NULL,
    earlier_attempts INTEGER NOT NULL,
    from_attempt INTEGER,
    from_number INTEGER,
    output_digest VARCHAR,
    output_bytes BIGINT,
    is_removed BOOLEAN NOT NULL,
    submitted_s FLOAT NOT NULL,
    ended_s FLOAT,
    submitter VARCHAR NOT NULL,
    PRIMARY KEY (id),
    CONSTRAINT agent_iff_running CHECK ((agent IS NOT NULL) = (state = 'Running')),
    CONSTRAINT outcome_iff_complete CHECK ((outcome IS NOT NULL) = (state = 'Complete')),
    CONSTRAINT end_iff_complete CHECK ((ended_s IS NOT NULL) = (state = 'Complete')),
    CONSTRAINT exit_iff_own_end CHECK ((exit_code IS NOT NULL) = (COALESCE(outcome, '') IN ('failed', 'succeeded'))),
    CONSTRAINT zero_iff_succeeded CHECK (exit_code IS NULL OR (exit_code = 0) = (outcome = 'succeeded')),
    CONSTRAINT output_whole CHECK ((output_digest IS NOT NULL) = (output_bytes IS NOT NULL)),
    CONSTRAINT output_only_at_own_end CHECK (output_digest IS NULL OR exit_code IS NOT NULL),
    CONSTRAINT from_whole CHECK ((from_attempt IS NOT NULL) = (from_number IS NOT NULL)),
    CONSTRAINT saved_has_checkpoint CHECK (state <> 'Saved' OR from_attempt IS NOT NULL),
    CONSTRAINT new_has_none CHECK (state <> 'New' OR from_attempt IS NULL),
    CONSTRAINT from_own_past CHECK (from_attempt <= attempt),
    CONSTRAINT lost_waits CHECK (NOT lost OR (state IN ('New', 'Saved') AND attempt >= 1)),
    CONSTRAINT running_was_claimed CHECK (state NOT IN ('Running', 'Saved') OR attempt >= 1),
    CONSTRAINT reason_iff_held CHECK ((hold_reason IS NOT NULL) = held),
    CONSTRAINT complete_not_held CHECK (state <> 'Complete' OR NOT held),
    CONSTRAINT removed_is_complete CHECK (state = 'Complete' OR NOT is_removed),
    CONSTRAINT index_iff_campaign CHECK ((campaign IS NULL) = ("index" IS NULL)),
    CONSTRAINT attempt_counts CHECK (attempt >= 0),
    CONSTRAINT sound_was_made CHECK (sound_attempt BETWEEN earlier_attempts AND attempt),
    CONSTRAINT failures_bounded CHECK (retries >= 0 AND failures BETWEEN 0 AND retries + 1),
    FOREIGN KEY(lane) REFERENCES lane (id),
    CONSTRAINT state CHECK (state IN ('New', 'Running', 'Saved', 'Complete')),
    CONSTRAINT outcome CHECK (outcome IN ('succeeded', 'failed', 'cancelled')),
    FOREIGN KEY(agent) REFERENCES agent (name)
)
 WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE TABLE attempt (
    attempt INTEGER NOT NULL,
    agent VARCHAR NOT NULL,
    node VARCHAR NOT NULL,
    claimed_s FLOAT NOT NULL,
    ended_s FLOAT,
    ending VARCHAR(16),
    why VARCHAR(24),
    detail TEXT NOT NULL,
    started_s FLOAT,
    from_attempt INTEGER,
    from_number INTEGER,
    start_s FLOAT NOT NULL,
    restore_s FLOAT NOT NULL,
    memory_s FLOAT NOT NULL,
    compute_s FLOAT NOT NULL,
    save_s FLOAT NOT NULL,
    job BIGINT NOT NULL,
    exit_code INTEGER,
    log_from BIGINT NOT NULL,
    counted_s FLOAT NOT NULL,
    blame VARCHAR(16),
    PRIMARY KEY (job, attempt),
    CONSTRAINT end_iff_ended CHECK ((ended_s IS NULL) = (ending IS NULL)),
    CONSTRAINT exit_iff_own CHECK ((exit_code IS NOT NULL) = (COALESCE(ending, '') IN ('failed', 'succeeded'))),
    CONSTRAINT from_whole CHECK ((from_attempt IS NOT NULL) = (from_number IS NOT NULL)),
    CONSTRAINT from_earlier CHECK (from_attempt < attempt),
    CONSTRAINT counts CHECK (attempt >= 1 AND log_from >= 0),
    FOREIGN KEY(agent) REFERENCES agent (name),
    CONSTRAINT ending CHECK (ending IN ('saved', 'succeeded', 'failed', 'lost', 'forgotten', 'returned', 'cancelled')),
    CONSTRAINT why CHECK (why IN ('unstarted', 'image missing', 'image refused', 'input missing', 'input unreachable', 'node lacks', 'mount missing', 'checkpoint broken', 'cannot restore', 'incompatible', 'save failed', 'cannot be saved', 'too late', 'node fault', 'storage fault')),
    FOREIGN KEY(job) REFERENCES job (id),
    CONSTRAINT blame CHECK (blame IN ('nobody', 'job', 'node'))
)
 WITH (autovacuum_vacuum_scale_factor = 0.01);
CREATE TABLE logged (
    job BIGINT NOT NULL,
    size_bytes BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    number BIGINT NOT NULL,
    lines BIGINT NOT NULL,
    PRIMARY KEY (job),
    CONSTRAINT size_counted CHECK (size_bytes >= 0),
    FOREIGN KEY(job) REFERENCES job (id)
);
CREATE TABLE pause (
    job BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    wakes_s FLOAT NOT NULL,
    not_on VARCHAR NOT NULL,
    PRIMARY KEY (job),
    FOREIGN KEY(job) REFERENCES job (id)
);
CREATE TABLE migration (
    job BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    from_node VARCHAR NOT NULL,
    to_node VARCHAR,
    by VARCHAR NOT NULL,
    asked_s FLOAT NOT NULL,
    PRIMARY KEY (job),
    FOREIGN KEY(job) REFERENCES job (id)
);
CREATE TABLE delivery (
    "to" VARCHAR NOT NULL,
    tries INTEGER NOT NULL,
    agent VARCHAR,
    phase VARCHAR(16) NOT NULL,
    ended_s FLOAT,
    job BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    failures INTEGER NOT NULL,
    due_s FLOAT NOT NULL,
    problem TEXT NOT NULL,
    files BIGINT,
    size_bytes BIGINT,
    PRIMARY KEY (job),
    CONSTRAINT counts CHECK (tries >= 0 AND failures >= 0 AND attempt >= 1),
    CONSTRAINT end_iff_ended CHECK ((ended_s IS NOT NULL) = (phase IN ('delivered', 'failed'))),
    CONSTRAINT files_iff_delivered CHECK ((files IS NOT NULL) = (phase = 'delivered')),
    CONSTRAINT size_whole CHECK ((files IS NULL) = (size_bytes IS NULL)),
    CONSTRAINT agent_only_while_waiting CHECK (phase = 'waiting' OR agent IS NULL),
    CONSTRAINT delivery_phase CHECK (phase IN ('waiting', 'delivered', 'failed')),
    FOREIGN KEY(job) REFERENCES job (id)
);
CREATE TABLE checkpoint (
    attempt INTEGER NOT NULL,
    number INTEGER NOT NULL,
    digest VARCHAR NOT NULL,
    size_bytes BIGINT NOT NULL,
    log_lines BIGINT NOT NULL,
    open_lines JSON NOT NULL,
    chain VARCHAR,
    silent_s FLOAT NOT NULL,
    has_memory BOOLEAN NOT NULL,
    job BIGINT NOT NULL,
    published_s FLOAT NOT NULL,
    standing VARCHAR(16) NOT NULL,
    kind INTEGER,
    PRIMARY KEY (job, attempt, number),
    CONSTRAINT counts CHECK (size_bytes >= 0 AND log_lines >= 0),
    FOREIGN KEY(job, attempt) REFERENCES attempt (job, attempt),
    CONSTRAINT standing CHECK (standing IN ('named', 'broken', 'dropped')),
    FOREIGN KEY(kind) REFERENCES kind (id)
);
CREATE TABLE log (
    job BIGINT NOT NULL,
    attempt INTEGER NOT NULL,
    number BIGINT NOT NULL,
    line TEXT NOT NULL,
    PRIMARY KEY (job, attempt, number),
    FOREIGN KEY(job, attempt) REFERENCES attempt (job, attempt)
);
CREATE INDEX agent_here ON agent (phase) WHERE phase <> 'ended';
CREATE INDEX attempt_ended ON attempt (ended_s);
CREATE INDEX attempt_failed ON attempt (node, claimed_s) WHERE blame IS NOT NULL;
CREATE INDEX attempt_of_agent ON attempt (agent);
CREATE INDEX decision_about ON subject (subject, decision);
CREATE INDEX delivery_open ON delivery (due_s) WHERE phase = 'waiting';
CREATE INDEX event_of_job ON event (job, id);
CREATE INDEX ix_submission_key_at_s ON submission_key (at_s);
CREATE INDEX ix_token_id ON token (id);
CREATE INDEX ix_token_name ON token (name);
CREATE INDEX ix_told_at_s ON told (at_s);
CREATE INDEX ix_web_session_expires_s ON web_session (expires_s);
CREATE INDEX job_in_group ON job ("group", id, is_removed);
CREATE INDEX job_on_agent ON job (agent) WHERE agent IS NOT NULL;
CREATE INDEX job_output ON job ("group", submitter, output_bytes) WHERE output_bytes IS NOT NULL;
CREATE INDEX job_running ON job ("group", submitter) WHERE agent IS NOT NULL;
CREATE INDEX job_unended ON job ("group", lane, submitter) WHERE state <> 'Complete';
CREATE INDEX job_waiting ON job (lane, state DESC, priority DESC, id) WHERE state IN ('New', 'Saved') AND NOT held;
CREATE INDEX lane_of_campaign ON lane (campaign) WHERE campaign <> 0;
CREATE INDEX pause_ends ON pause (wakes_s);
CREATE INDEX regular_delay_start ON regular_delay (start_s);
CREATE UNIQUE INDEX attempt_live ON attempt (job) WHERE ending IS NULL;
CREATE UNIQUE INDEX job_in_campaign ON job (campaign, index) WHERE campaign IS NOT NULL;
CREATE UNIQUE INDEX lane_key ON lane ("group", submitter, cpus, memory_mib, needs_s, mounts, fetches, kind, not_on, only_on, is_closed, is_saved, campaign);
