"""The harm meter loop, which finds agents that had to leave, and the regular jobs that took their nodes.

Slurm is queried only after agents have gone, or after regular jobs have taken nodes from agents. Slurm forgets ended
agents after MinJobAge, five minutes by default.
"""

from gleaner.control.control_state import ControlState
from gleaner.control.policy.harm import LONGEST_DELAY_S, RegularStart, delays
from gleaner.control.queue import node_history
from gleaner.control.slurm.agents_view import regular_nodes
from gleaner.control.slurm.interface import Cluster
from gleaner.control.slurm.snapshot import SlurmJob, Snapshot


class HarmMeter:
    """The nodes that agents have left since the last query, and those that they had to leave for regular jobs."""

    def __init__(self, state: ControlState, cluster: Cluster) -> None:
        self._state = state
        self._cluster = cluster
        self._last: Snapshot | None = None
        self._left: set[str] = set()
        """Nodes whose agents have gone for a reason about which Slurm has not been asked yet."""
        self._preempted_s: dict[str, float] = {}

    def step(self, now_s: float) -> None:
        """Query Slurm if agents have gone since the last step, and record the delays. Raises `ClusterError`."""
        view = self._state.cluster
        if view is None or view is self._last:
            return
        here = {agent.id for agent in view.jobs}
        gone = [agent for agent in self._last.jobs if agent.id not in here] if self._last else []
        self._left |= {node for agent in gone for node in agent.nodes if node in view.nodes}
        self._last = view
        used = {node for agent in view.jobs for node in agent.nodes}
        self._preempted_s = {
            node: at_s
            for node, at_s in self._preempted_s.items()
            if node not in used and abs(now_s - at_s) < LONGEST_DELAY_S
        }
        taken = regular_nodes(view)
        asked = self._left | (self._preempted_s.keys() & taken)
        if asked:
            self._record(self._cluster.read_recent(sorted(asked)))
            self._left.clear()
            for node in taken & self._preempted_s.keys():  # even if Slurm hides the job from us
                del self._preempted_s[node]

    def _record(self, jobs: tuple[SlurmJob, ...]) -> None:
        """Record the delays that these jobs show. Only the last agent of a node counts."""
        agents = sorted((job for job in jobs if job.is_own), key=lambda job: job.start_s or 0.0)
        last = {node: agent for agent in agents for node in agent.nodes}
        known_s = {node: at_s for node, at_s in self._preempted_s.items() if node not in last}
        latest_s = {node: one.preempted_s for node, one in last.items() if one.preempted_s is not None}
        self._preempted_s = known_s | latest_s
        found = delays(
            self._preempted_s,
            (
                RegularStart(job.id, job.nodes, max(job.submitted_s, job.begins_s or 0.0), job.start_s)
                for job in jobs
                if not job.is_own and not job.is_pending and job.start_s is not None
            ),
        )
        if found:
            with self._state.writing() as db:
                node_history.record_delays(db, found)
