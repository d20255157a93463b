"""The health of the control program."""

from pydantic import Field

from gleaner.control.models.base import Reply


class Health(Reply):
    """The health of control: the only answer that needs no token."""

    status: str
    leader: bool
    has_leader: bool
    """True if this or another control program leads."""
    version: str
    queue: str
    """`ok`, or what is wrong with the database."""
    storage: str = "ok"
    """`ok`, or what is wrong with the storage."""
    failing: tuple[str, ...] = ()
    """The steps of control whose last round failed by a bug; control's log says how."""
    step_ages_s: dict[str, float] = Field(default_factory=dict[str, float])
    """By step, the seconds since its last good round. Only the control program that leads has most of them."""
    step_every_s: dict[str, float] = Field(default_factory=dict[str, float])
    """By step, the pause between two rounds, in seconds."""
    now_s: float | None = None
    """The time by control's clock, seconds since the epoch."""
    started_s: float | None = None
    """The start of control by its clock: settings that were changed since are not in force."""
    last_poll_age_s: float | None = None
    """The age of the last successful look at the cluster; None if there was none yet."""
    storage_id: str = ""
    """The number of control's storage folder, by which a node knows that it sees the same one; empty until it was
    read."""
    storage_inode: int = 0
    """The inode of the file with that number, and the time of its last change: a copy of the folder has others."""
    storage_changed_s: float = 0.0
    agent_program: str = ""
    """The program that control starts on nodes, by which a node's `glean doctor` sees whether it has it; empty where
    agents run on control's machine."""
    agent_logs: str = ""
    """The folder on nodes into which Slurm writes what an agent prints: without it no agent starts."""
    round_length_s: float | None = None
    """The length of a round, by which a node's `glean doctor` sees whether its agents have time for a job."""
    least_slice_s: float | None = None
    """The shortest time for which control submits an agent."""
