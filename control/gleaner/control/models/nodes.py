"""The cluster's nodes at the last poll."""

from gleaner.control.models.base import Reply


class NodeRow(Reply):
    """One node as the scheduler shows it, with Gleaner's records of it."""

    name: str
    cpus: int
    memory_mib: int
    state: str
    idle: bool
    regular: bool
    """True if a regular job uses the node."""
    agent: str | None
    failures: int
    excluded_until_s: float | None
    distrusted: str = ""
    """The reason why the node receives no job or only one, or "" if the node is trusted."""
    drained: str = ""
    """The user who drained the node through Gleaner, and the jobs that are left there, or "" if it is not drained."""
    wrong: tuple[str, ...] = ()
    """Faults of the node or of slurm.conf that an admin has to fix, one line for each."""
    slices_in_day: int = 0
    """The number of slices that ended there in the last 24 hours."""
    lost_in_day: int = 0
    """The number of those slices that lost computing time, not counting those that their users ended."""

    @property
    def unused(self) -> str:
        """Return the word that lists show for a node on which an agent could start, or "" for other nodes."""
        return "" if not self.idle else "planned for another job" if "planned" in self.state else "idle"


class ClusterStatus(Reply):
    """The cluster at the last poll."""

    read_s: float | None
    """The time of the poll, or None before the first one."""
    stale: bool
    problem: str
    """The reason why the last poll failed, or "" if it did not."""
    boundary_s: float
    waiting: str = ""
    """A line about the agents that Slurm has not started yet, or "" if there are none."""
    nodes: tuple[NodeRow, ...]
