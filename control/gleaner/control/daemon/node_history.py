"""The loop that writes the history of node time, from control's polls of Slurm and from the ends of attempts."""

from gleaner.control.control_state import ControlState
from gleaner.control.policy.node_time import RESOLUTIONS, of_attempts, of_look
from gleaner.control.queue import agents, node_history
from gleaner.control.queue.database import CAMPAIGN_TIMEOUT_S, snapshot
from gleaner.control.queue.node_history import NodeUses
from gleaner.control.slurm.agents_view import node_uses
from gleaner.control.slurm.snapshot import Snapshot

POLLS_UNTIL_UNKNOWN = 3
"""If two snapshots are further apart than this number of polls, the nodes' use between them counts as unknown."""
ATTEMPTS_S = 60.0
"""The interval at which ended attempts are added."""
SETTLED_S = CAMPAIGN_TIMEOUT_S + 30.0
"""An ended attempt is added to the history once it is this old, because the transaction that ends it can be committed
this late."""


class NodeHistory:
    """The last snapshot in the history, and the time of the next query for attempts."""

    def __init__(self, state: ControlState) -> None:
        self._state = state
        self._last: Snapshot | None = None
        self._attempts_at_s = 0.0

    def step(self, now_s: float) -> None:
        """Add everything that has happened since the last step."""
        view = self._state.cluster
        if view is not None and view is not self._last:
            self._add_look(view)
        if not 0 <= self._attempts_at_s - now_s <= ATTEMPTS_S:  # the clock might have been set back
            self._add_attempts(now_s - SETTLED_S)
            self._attempts_at_s = now_s + ATTEMPTS_S

    def _add_look(self, view: Snapshot) -> None:
        """Add the time since the last snapshot. All of this time counts as the use that the new snapshot shows."""
        with snapshot(self._state.engine) as db:
            uses = node_uses(view, with_jobs=agents.nodes_with_jobs(db))
        longest_s = POLLS_UNTIL_UNKNOWN * self._state.settings.rounds.poll_s
        begin_s = view.read_s if self._last is None else self._last.read_s
        if not 0 <= view.read_s - begin_s <= longest_s:
            begin_s = view.read_s
        names, letters = tuple(uses), "".join(use.value for use in uses.values())
        with self._state.writing() as db:
            for each in RESOLUTIONS:
                nodes = ((use, view.nodes[name].cpus) for name, use in uses.items())
                times = of_look(nodes, begin_s=begin_s, end_s=view.read_s, step_s=each.step_s)
                node_history.add(db, each.step_s, times)
                begin = int(view.read_s // each.step_s * each.step_s)
                node_history.record_uses(db, each.step_s, NodeUses(begin, names, letters))
        self._last = view

    def _add_attempts(self, until_s: float) -> None:
        """Add the attempts that ended up to that time, each exactly once. The first call only records where to
        begin."""
        with self._state.writing() as db:
            after_s = node_history.mark(db)
            if after_s is not None and after_s >= until_s:
                return
            found = [] if after_s is None else node_history.ended_attempts(db, after_s=after_s, until_s=until_s)
            for each in RESOLUTIONS:
                node_history.add(db, each.step_s, of_attempts(found, step_s=each.step_s))
            node_history.set_mark(db, until_s)
