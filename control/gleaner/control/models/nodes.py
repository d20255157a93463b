"""The cluster's nodes at the last poll."""

from gleaner.control.models.base import Reply


class NodeRow(Reply):
    """One node as the scheduler sees it, with what Gleaner knows of it."""

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
    """The reason why the node gets no job or one; empty if the node is trusted."""
    drained: str = ""
    """The user who drained the node through Gleaner, and what is left there; empty otherwise."""
    wrong: tuple[str, ...] = ()
    """Faults of the node or of slurm.conf that an admin has to mend, one line each."""
    slices_in_day: int = 0
    """The slices that ended there in the last 24 hours."""
    lost_in_day: int = 0
    """Those of them that had computed something in vain, not by their user's will."""

    @property
    def unused(self) -> str:
        """The word for a node on which an agent could start; empty for others."""
        return "" if not self.idle else "planned for another job" if "planned" in self.state else "idle"


class ClusterStatus(Reply):
    """The cluster at the last poll."""

    read_s: float | None
    """None: not read yet."""
    stale: bool
    problem: str
    """The reason why the last poll failed; empty if it did not."""
    boundary_s: float
    waiting: str = ""
    """A line on the agents that Slurm has not started yet; empty if there are none."""
    nodes: tuple[NodeRow, ...]
