"""The health of the control program."""

from pydantic import Field

from gleaner.control.models.base import Reply


class Health(Reply):
    """The health of control, which is also shown to callers without a token."""

    status: str
    leader: bool
    has_leader: bool
    """True if this control program or another one leads."""
    version: str
    queue: str
    """`ok`, or a description of the database's fault."""
    storage: str = "ok"
    """`ok`, or a description of the storage's fault."""
    failing: tuple[str, ...] = ()
    """The steps of control that failed because of a bug when they last ran. Control's log has the details."""
    step_ages_s: dict[str, float] = Field(default_factory=dict[str, float])
    """For each step, the seconds since its last success. Most steps run only in the leading control program."""
    step_every_s: dict[str, float] = Field(default_factory=dict[str, float])
    """For each step, the pause between two runs, in seconds."""
    now_s: float | None = None
    """The time by control's clock, in seconds since the epoch."""
    started_s: float | None = None
    """The time at which control started, by its clock. Settings that were changed later are not yet in effect."""
    last_poll_age_s: float | None = None
    """The age of the last successful snapshot of the cluster, or None before the first."""
    storage_id: str = ""
    """The id of control's storage folder, by which a node checks that it sees the same folder, or "" until the id has
    been read."""
    storage_inode: int = 0
    """The inode of the file with that id, and the time of its last change. They differ in a copy of the folder."""
    storage_changed_s: float = 0.0
    agent_program: str = ""
    """The program that control starts on nodes. A node's `glean doctor` checks that it exists. It is "" if agents run
    on control's machine."""
    agent_logs: str = ""
    """The folder on nodes into which Slurm writes the output of an agent. Without it, agents do not start."""
    round_length_s: float | None = None
    """The length of a round, from which a node's `glean doctor` sees whether its agents have time for a job."""
    least_slice_s: float | None = None
    """The shortest time for which control submits an agent."""
