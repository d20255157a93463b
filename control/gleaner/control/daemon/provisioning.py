"""The provisioning loop, which takes a snapshot of the cluster, lets the policy decide, and submits and withdraws
agents.

Each request to the scheduler is recorded in the queue first. An agent's row and the hash of its token are committed
before its token file is written. Then the agent is submitted, and its id is recorded. If the program is killed in
between, the row remains. The next round finds that agent in the scheduler by its name, or closes the row. No name is
ever submitted twice.

The loop trusts neither the queue nor Slurm alone (`fleet`). If the scheduler no longer lists an agent, the agent has
lost its node. But if the agent has registered, the loop waits until its lease expires, because an agent that the
scheduler has forgotten might still be alive. An agent that never registered has no work to lose, and is closed at once.
"""

import errno
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from gleaner.agent.common.quantities import in_words
from gleaner.agent.system import atomic
from gleaner.control.control_state import ControlState, provisioning_rules
from gleaner.control.policy.provisioning import (
    NewAgent,
    PendingAgent,
    Plan,
    ProvisioningRules,
    ProvisioningView,
    RunningAgent,
    WaitingJobs,
    Why,
    Withdrawal,
    plan,
    round_end,
)
from gleaner.control.policy.resources import NOTHING, Resources
from gleaner.control.queue import agents, deliveries, drains, lanes, node_health, queries, tokens
from gleaner.control.queue.database import snapshot
from gleaner.control.queue.errors import NotLeading, QueueError
from gleaner.control.queue.queries import AgentHere
from gleaner.control.queue.tables import Phase
from gleaner.control.slurm.agents_view import agent_phase, agents_view, kill_switch, regular_nodes, waits_for
from gleaner.control.slurm.interface import (
    AGENT_PREFIX,
    AgentRequest,
    Cluster,
    ClusterError,
    ClusterRefused,
    SchedulerId,
    SnapshotCache,
)
from gleaner.control.slurm.snapshot import JobPhase, SlurmJob, Snapshot

LONGEST_BACK_OFF_S = 600.0
MOUNTS_LOOKED_AT_S = 3600.0
"""A node that lacked a folder for waiting jobs receives another agent, which checks again, once its last agent is this
old."""
SHARED_PART = 0.5
"""The maximum age at which another loop's snapshot is used here, as a fraction of a poll."""

TO_DELIVER = WaitingJobs(1, 1, 1, frozenset())
"""The need for one agent if results wait to be delivered and there is no agent."""

_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class Pause:
    """A pause between submissions that doubles each time its cause occurs again."""

    free: int = 0
    """The number of times that the cause is tolerated without a pause."""
    times: int = 0
    until_s: float = 0.0
    cause: str = ""

    def lasts(self, now_s: float) -> bool:
        """Return True until the pause is over. It also ends if the clock was set back far."""
        return 0 < self.until_s - now_s <= LONGEST_BACK_OFF_S

    def begin(self, cause: str, *, now_s: float, poll_s: float) -> None:
        """Begin the next pause, unless one is in progress."""
        if self.lasts(now_s):
            return
        self.times += 1
        if self.times > self.free:
            pause_s = min(poll_s * (1 << min(self.times - self.free - 1, 20)), LONGEST_BACK_OFF_S)
            self.until_s, self.cause = now_s + pause_s, f"{cause} (next try after {in_words(pause_s)})"

    def end(self) -> None:
        """Forget the cause."""
        self.times, self.until_s, self.cause = 0, 0.0, ""


@dataclass(frozen=True, slots=True)
class Unstarted:
    """An agent that is gone and never registered. `node` is the node on which it ended, if that node might be to blame.

    `is_early` means that it ended while it could still have begun, was never seen running, and was not withdrawn.
    """

    name: str
    reason: str
    node: str | None
    is_early: bool = False


@dataclass(frozen=True, slots=True)
class Fleet:
    """The agents to record and to withdraw, and those that the policy plans with."""

    strays: tuple[tuple[str, SchedulerId], ...]
    """Agents that exist, although their submission was never confirmed or recorded."""
    unstarted: tuple[Unstarted, ...]
    vanished: tuple[str, ...]
    """Silent agents that the scheduler no longer lists."""
    pending: tuple[PendingAgent, ...]
    running: tuple[RunningAgent, ...]
    staying: tuple[tuple[str, SchedulerId], ...] = ()
    """Agents that have a node and were not told to leave."""


class Provisioning:
    """The state that outlives one round: the pauses between submissions, and the nodes on which agents were seen."""

    def __init__(self, state: ControlState, cluster: Cluster, snapshots: SnapshotCache) -> None:
        self._state = state
        self._cluster = cluster
        self._snapshots = snapshots
        self._used: Snapshot | None = None
        self._folder = state.settings.storage.folder / "agents"
        self._refused = Pause()
        self._early_ends = Pause(free=state.settings.rounds.failures_until_excluded - 1)
        self._waiting = Pause()
        """The pause while Slurm keeps agents waiting."""
        self._pauses = (self._refused, self._early_ends, self._waiting)
        self._ran_on: dict[str, str] = {}
        self._withdrawn: dict[str, Why] = {}

    def step(self, now_s: float) -> None:
        """Take a snapshot and carry out the policy's plan.

        A failure of Slurm or the queue becomes a `problem`, not an error.
        """
        state = self._state
        rules = provisioning_rules(state.settings.rounds)
        try:
            at_most_s = state.settings.rounds.poll_s * SHARED_PART
            self._used = self._snapshots.shared(now_s, used=self._used, at_most_s=at_most_s)
            partition = state.settings.cluster.partition
            view = agents_view(self._used, partition)
            state.cluster = view
            state.wrong_clocks = {name: ahead_s for name, ahead_s in state.wrong_clocks.items() if name in view.nodes}
            if not state.is_leader:  # the query might have taken longer than the term
                return
            with snapshot(state.engine) as db:
                stopped = agents.why_stopped(db)
            seen = self._reconcile(view)
            actions = self._plan(now_s, rules, view, seen, is_stopped=bool(stopped))
            self._withdraw(actions.withdraw, view)
            self._submit_all(actions, now_s)
            if stopped:
                self._vacate(seen.staying, now_s)
            causes = (stopped, view.gaps, kill_switch(view, partition), *(pause.cause for pause in self._pauses))
            self._report("; ".join(filter(None, causes)))
        except NotLeading:  # not a problem of this loop
            raise
        except (ClusterError, QueueError) as error:
            self._report(str(error))

    def _reconcile(self, view: Snapshot) -> Fleet:
        """Record the changes of our agents that the snapshot shows. Return the agents of both the queue and the
        snapshot."""
        with snapshot(self._state.engine) as db:
            here = queries.agents_here(db)
        doubt_s = 2 * self._state.settings.cluster.timeout_s + self._state.settings.rounds.poll_s
        needs_s = self._state.settings.rounds.least_slice_s
        seen = fleet(here, view, ran_on=self._ran_on, withdrawn=self._withdrawn, doubt_s=doubt_s, needs_s=needs_s)
        if any(agent.phase is Phase.LIVE for agent in here):
            self._early_ends.end()
        if seen.strays or seen.unstarted or seen.vanished:
            self._record(seen, view.read_s)
        self._pause_after_early_ends(seen.unstarted, view.read_s)
        for gone in seen.unstarted:
            _log.info("agent closed", agent=gone.name, reason=gone.reason)
            self._remove_token(gone.name)
        if not seen.pending:
            self._waiting.end()
        names = {agent.name for agent in here}
        self._withdrawn = {name: why for name, why in self._withdrawn.items() if name in names}
        self._ran_on = {name: node for name, node in self._ran_on.items() if name in names}
        for agent in view.jobs:
            if agent_phase(agent) is JobPhase.RUNNING and agent.node is not None:
                if agent.name not in self._ran_on:
                    self._waiting.end()
                self._ran_on[agent.name] = agent.node
        return seen

    def _record(self, seen: Fleet, now_s: float) -> None:
        """Record the agents that were found, those that are gone, and the nodes that are to blame."""
        settings = self._state.settings
        faults, losses = settings.rounds.failures_until_excluded, settings.queue.losses_until_held
        with self._state.writing() as db:
            for name, id_ in seen.strays:
                agents.record_submission(db, name, id_)
            for gone in seen.unstarted:
                is_closed = agents.forget_unstarted(db, gone.name, now_s=now_s, reason=gone.reason)
                if is_closed and gone.node is not None:
                    node_health.record_fault(db, gone.node, now_s=now_s, faults_until_excluded=faults)
            for name in seen.vanished:
                agents.close_silent(db, name, now_s=now_s, losses_until_held=losses, rates=settings.rates.rules)

    def _pause_after_early_ends(self, unstarted: tuple[Unstarted, ...], now_s: float) -> None:
        """Pause the submissions if several snapshots in a row show agents that ended at once, because the next agents
        would end as well."""
        early = [gone for gone in unstarted if gone.is_early]
        if early:
            settings = self._state.settings
            log, program = settings.cluster.agent_logs / f"{early[-1].name}.log", settings.cluster.agent_command[0]
            advice = (
                f"have the nodes {program} (agent_command)? The reason is in {self._folder / log.name}, or in {log}"
            )
            cause = f"agents end before they register, and none has since: {advice} on the node"
            self._early_ends.begin(cause, now_s=now_s, poll_s=settings.rounds.poll_s)

    def _vacate(self, staying: Collection[tuple[str, SchedulerId]], now_s: float) -> None:
        """Tell these agents to save their jobs and end. Slurm ends any that remain after the grace time."""
        if not staying:
            return
        with self._state.writing() as db:
            for name, _ in staying:
                agents.vacate(db, name)  # the heartbeat tells the agent as well, in case this program is killed now
        self._state.check_leads()
        gone_s = now_s + self._state.settings.entitlements.grace_s
        for name, id_ in staying:
            try:
                self._cluster.vacate([id_], gone_s=gone_s)
            except ClusterRefused as error:  # the agent might have just ended
                _log.info("agent not told to leave", agent=name, reason=str(error))
        self._snapshots.outdate()

    def _plan(self, now_s: float, rules: ProvisioningRules, view: Snapshot, seen: Fleet, *, is_stopped: bool) -> Plan:
        with snapshot(self._state.engine) as db:
            is_due = lanes.is_pause_over(db, now_s)
        if is_due:  # claims also end pauses, but without agents there are none
            with self._state.writing() as db:
                lanes.wake(db, now_s)
        with snapshot(self._state.engine) as db:
            within_s = round_end(now_s, rules) - now_s - self._state.settings.rounds.agent_needs_s
            waiting = queries.waiting(
                db, limits=self._state.foreseen, within_s=within_s, since_s=now_s - MOUNTS_LOOKED_AT_S
            )
            excluded = {*node_health.excluded_nodes(db, now_s), *drains.nodes_being_emptied(db)}
            distrusted = {name for name, node in node_health.distrusted_nodes(db).items() if node.excluded_until_s}
            delivers = bool(self._state.settings.outputs.urls) and deliveries.is_due(db, now_s=now_s)
        if delivers and not seen.running:
            waiting = (*waiting, TO_DELIVER)
        return plan(
            ProvisioningView(
                now_s=now_s,
                rules=rules,
                all_nodes=frozenset(view.nodes),
                nodes={} if kill_switch(view, self._state.settings.cluster.partition) else idle_nodes(view),
                excluded=frozenset(excluded),
                pending=seen.pending,
                # An agent on an excluded node takes one job only, so its free cores do not count as room for waiting
                # jobs.
                running=tuple(
                    replace(agent, free=NOTHING) if agent.node in distrusted else agent for agent in seen.running
                ),
                waiting=() if is_stopped else waiting,
            )
        )

    def _withdraw(self, withdrawals: tuple[Withdrawal, ...], view: Snapshot) -> None:
        """Withdraw pending agents. Their rows are closed when the scheduler no longer lists them."""
        settings = self._state.settings.rounds
        if any(each.why is Why.PENDED_TOO_LONG for each in withdrawals):
            cause = f"Slurm has started no agent for {in_words(settings.pending_limit_s)}{waits_for(view)}"
            self._waiting.begin(cause, now_s=view.read_s, poll_s=settings.poll_s)
        ids = {agent.name: SchedulerId(agent.id) for agent in view.jobs}
        wanted = [ids[each.name] for each in withdrawals if each.name in ids]
        if not wanted:
            return
        self._state.check_leads()
        try:
            self._cluster.withdraw(wanted)
        finally:
            self._snapshots.outdate()
        for each in withdrawals:
            self._ran_on.pop(each.name, None)
            self._withdrawn[each.name] = each.why
            _log.info("pending agent withdrawn", agent=each.name, reason=each.why.value)

    def _submit_all(self, actions: Plan, now_s: float) -> None:
        """Submit as many of the planned agents as fit into one interval between polls.

        A failure ends the submissions of this round.
        """
        settings = self._state.settings
        if any(pause.lasts(now_s) for pause in self._pauses):
            return
        at_most = max(1, int(settings.cluster.submits_per_s * settings.rounds.poll_s))
        for new in actions.submit[:at_most]:
            if not self._state.is_leader:
                return
            try:
                self._submit(new, now_s)
            except (ClusterError, OSError) as error:
                cause = f"no agent could be submitted: {error}"
                self._refused.begin(cause, now_s=now_s, poll_s=settings.rounds.poll_s)
                return
            self._refused.end()

    def _submit(self, new: NewAgent, now_s: float) -> None:
        """Submit one agent. Raises `ClusterError`, or `OSError` if the agent's token cannot be written."""
        name = f"{AGENT_PREFIX}{int(new.end_s)}-{self._state.random_bytes(4).hex()}"
        secret = tokens.new_secret()
        with self._state.writing() as db:
            agents.expect(db, name=name, end_s=new.end_s, token_hash=tokens.digest(secret), now_s=now_s)
        try:
            path = write_token(self._folder, name, secret)
            request = AgentRequest(name, new.end_s, new.latest_start_s, path, new.exclude)
            self._state.check_leads()  # the storage might be slow, and a new leader would close the row
            try:
                id_ = self._cluster.submit(request, now_s)
            finally:
                self._snapshots.outdate()
        except (ClusterRefused, OSError) as error:
            with self._state.writing() as db:
                agents.forget_unstarted(db, name, now_s=now_s, reason=f"not submitted: {error}")
            self._remove_token(name)
            raise
        # After any other `ClusterError`, Slurm might have accepted the agent. A later snapshot shows it, or its row is
        # closed.
        with self._state.writing() as db:
            agents.record_submission(db, name, id_)
        _log.info("agent submitted", agent=name, id=id_, end_s=new.end_s)

    def _remove_token(self, name: str) -> None:
        try:
            remove_token(self._folder, name)
        except OSError as error:  # `storage_gc` tries again
            _log.warning("a token file could not be removed", agent=name, reason=str(error))

    def _report(self, problem: str) -> None:
        if problem and problem != self._state.problem:
            _log.warning("problem", problem=problem)
        elif self._state.problem and not problem:
            _log.info("problem solved", problem=self._state.problem)
        self._state.problem = problem


def fleet(
    here: Collection[AgentHere],
    view: Snapshot,
    *,
    ran_on: Mapping[str, str],
    withdrawn: Mapping[str, Why],
    doubt_s: float,
    needs_s: float,
) -> Fleet:
    """Match the agents in the queue with those in the snapshot, as of the snapshot's time.

    `ran_on` names the nodes on which agents were last seen running, and `withdrawn` the agents that were withdrawn. An
    agent whose submission was never confirmed might still appear for `doubt_s` seconds. An agent must have begun at
    least `needs_s` seconds before its end.
    """
    seen = {agent.name: agent for agent in view.jobs}
    phases = {agent.name: agent_phase(agent) for agent in view.jobs}
    missing = [agent for agent in here if agent.name not in seen]
    in_doubt = [
        agent
        for agent in missing
        if agent.phase is Phase.SUBMITTED and agent.scheduler_id is None and view.read_s - agent.submitted_s < doubt_s
    ]
    by_name = {agent.name: agent for agent in here}
    free_nodes = {node.name: Resources(node.cpus, node.memory_mib) for node in view.nodes.values()}
    return Fleet(
        strays=tuple((a.name, SchedulerId(seen[a.name].id)) for a in here if a.scheduler_id is None and a.name in seen),
        unstarted=tuple(
            _unstarted(agent, ran_on.get(agent.name), withdrawn.get(agent.name), view, needs_s)
            for agent in missing
            if agent.phase is Phase.SUBMITTED and agent not in in_doubt
        ),
        vanished=tuple(agent.name for agent in missing if agent.phase is Phase.SILENT),
        pending=tuple(
            [
                PendingAgent(a.name, a.submitted_s, by_name[a.name].end_s)
                for a in view.jobs
                if phases[a.name] is JobPhase.PENDING and a.name in by_name
            ]
            + [PendingAgent(agent.name, agent.submitted_s, agent.end_s) for agent in in_doubt]
        ),
        running=tuple(
            _running(agent, by_name.get(agent.name), free_nodes)
            for agent in view.jobs
            if phases[agent.name] is not JobPhase.PENDING
        ),
        staying=tuple(
            (a.name, SchedulerId(a.id))
            for a in view.jobs
            if phases[a.name] is JobPhase.RUNNING and a.name in by_name and not by_name[a.name].is_leaving
        ),
    )


def idle_nodes(view: Snapshot) -> dict[str, Resources]:
    """Return the idle nodes of the snapshot, with their sizes."""
    return {node.name: Resources(node.cpus, node.memory_mib) for node in view.nodes.values() if node.is_idle}


def _unstarted(agent: AgentHere, node: str | None, why: Why | None, view: Snapshot, needs_s: float) -> Unstarted:
    if why is not None:
        return Unstarted(agent.name, f"withdrawn: {why}", None)
    if agent.scheduler_id is None:
        return Unstarted(agent.name, "the scheduler never took it", None)
    if node is None:
        return Unstarted(agent.name, "it ended before it registered", None, view.read_s < agent.end_s - needs_s)
    if node in regular_nodes(view) or view.read_s >= agent.end_s:
        return Unstarted(agent.name, f"it had to leave {node} before it registered", None)
    return Unstarted(agent.name, f"it died on {node} before it registered", node)


def _running(agent: SlurmJob, known: AgentHere | None, nodes: Mapping[str, Resources]) -> RunningAgent:
    """Return an agent that has a node, with its free room. An unknown or ending agent has none."""
    if known is None or agent_phase(agent) is JobPhase.ENDING or known.phase is Phase.SILENT:
        return RunningAgent(known.end_s if known else 0.0, NOTHING)
    if known.free_cpus is None or known.free_memory_mib is None:
        return RunningAgent(known.end_s, nodes.get(agent.node or "", NOTHING), agent.node or "")
    return RunningAgent(known.end_s, Resources(known.free_cpus, known.free_memory_mib), known.node or "")


def write_token(folder: Path, name: str, secret: str) -> Path:
    """Write an agent's token to `agents/NAME/token` in the storage, synced, and return the path. Raises `OSError`.

    Only the folder's owner can read it. The token never appears in a command line, an environment or a batch script.
    """
    path = folder / name / "token"
    atomic.make_folders(path.parent, within=folder.parent)
    atomic.write(path, secret.encode())
    return path


def remove_token(folder: Path, name: str) -> None:
    """Remove an agent's token file, and the agent's folder unless it contains reports.

    A missing file or folder is not an error. Raises `OSError`.
    """
    path = folder / name / "token"
    for one in (path, path.with_suffix(".new")):
        one.unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        try:
            path.parent.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):  # the agent's reports there might still be needed
                raise
