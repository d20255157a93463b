"""The steps that the control program repeats, each with its period, and the threads that call them.

A step is one round of one loop. A step takes the time as an argument, keeps its memory in its loop or in the queue, and
starts no thread. So a test or a simulation can call the same steps by its own clock, while the threads of `StepThreads`
call them by the real one.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.control_state import ControlState, StepFaults
from gleaner.control.daemon.checkpoint_gc import collect, sweep_drafts
from gleaner.control.daemon.drains import DrainLoop
from gleaner.control.daemon.entitlements import EntitlementLoop
from gleaner.control.daemon.leader import LeaderLoop
from gleaner.control.daemon.provisioning import ProvisioningLoop, sweep_tokens
from gleaner.control.daemon.rebalancer import Rebalancer
from gleaner.control.daemon.report_spool import take_left_reports
from gleaner.control.daemon.retention import prune
from gleaner.control.daemon.snapshots import SnapshotCache
from gleaner.control.queue.errors import QueueError
from gleaner.control.slurm import accounting
from gleaner.control.slurm.interface import Cluster, ClusterError
from gleaner.control.slurm_admin.client import SlurmAdminClient

DRAFTS_S = 30.0
GC_S = 300.0
RETENTION_S = 3600.0
DRAINS_S = 2.0
REBALANCER_S = 5.0
SHARES_S = 300.0
SHUTDOWN_S = 3
"""The time for which threads are waited for at the end, in seconds."""

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Step:
    """One round of a loop, `do(now_s)`, to be called `every_s` seconds after its last end."""

    name: str
    do: Callable[[float], None]
    every_s: float


def control_steps(state: ControlState, leader: LeaderLoop, cluster: Cluster) -> tuple[Step, ...]:
    """Return all steps that the settings ask for. The leader's step is the first: without it the others do nothing."""
    settings = state.settings
    snapshots = SnapshotCache(cluster)
    slurm_admin = SlurmAdminClient(
        settings.entitlements.slurm_admin_socket, settings.entitlements.slurm_admin_timeout_s, lambda: state.epoch
    )
    steps = [
        Step("leader", leader.tick, leader.tick_s),
        Step("provisioning", ProvisioningLoop(state, cluster, snapshots).a_round, settings.rounds.poll_s),
        Step("report spool", lambda now_s: spool_step(state, now_s), leader.tick_s),
        Step("drafts", lambda now_s: drafts_step(state, now_s), DRAFTS_S),
        Step("checkpoint gc", lambda now_s: gc_step(state, now_s), GC_S),
        Step("rebalancer", Rebalancer(state).a_round, REBALANCER_S),
        Step("retention", lambda now_s: prune(state, now_s), RETENTION_S),
    ]
    if settings.entitlements.mode != "off":
        loop = EntitlementLoop(state, cluster, snapshots, slurm_admin)
        steps.append(Step("entitlements", loop.a_round, settings.entitlements.poll_s))
    if settings.cluster.backend != "local":
        steps.append(Step("drains", DrainLoop(state, cluster, slurm_admin).a_round, DRAINS_S))
    if settings.groups.from_slurm:
        steps.append(Step("shares", lambda _now_s: take_shares(state), SHARES_S))
    return tuple(steps)


def spool_step(state: ControlState, now_s: float) -> None:
    """Take the reports of agents that could not reach control at their end."""
    if state.is_leader:
        take_left_reports(state, now_s)


def drafts_step(state: ControlState, now_s: float) -> None:
    """Remove the drafts that ended agents were still writing. A removal that fails is tried again in the next round."""
    if not state.is_leader:
        return
    try:
        state.check_leads()
        sweep_drafts(state.engine, state.storage, now_s)
    except (StorageError, QueueError) as error:
        _log.warning("drafts cannot be removed, it will be tried again", reason=str(error))


def gc_step(state: ControlState, now_s: float) -> None:
    """Delete the archives, tokens and logs that no job needs any more.

    A removal that fails is tried again in the next round.
    """
    if not state.is_leader:
        return
    try:
        state.check_leads()
        collect(state.engine, state.storage, now_s)
        sweep_tokens(state, now_s)
    except (StorageError, QueueError, OSError) as error:
        _log.warning("checkpoints and tokens could not be removed, it will be tried again", reason=str(error))


def take_shares(state: ControlState) -> None:
    """Take the groups' parts from the shares of Slurm's accounts.

    While Slurm does not answer, the last shares count; before the first answer all groups are equal.
    """
    try:
        found = accounting.shares(timeout_s=state.settings.cluster.timeout_s)
    except ClusterError as error:
        _log.warning("the shares of Slurm's accounts could not be read, it will be tried again", reason=str(error))
        return
    if found != state.slurm_shares:
        _log.info("the groups' parts, in per cent, by the shares of Slurm's accounts", parts=found)
        for line in unknown_accounts(state, found):
            _log.warning(line)
    state.slurm_shares = found


def unknown_accounts(state: ControlState, found: dict[str, float]) -> list[str]:
    """Return a line for each account that the settings name and Slurm does not know."""
    known = ", ".join(sorted(found)) or "none"
    wrong = sorted(state.settings.groups.multiplier.keys() - found.keys())
    told = "which Slurm does not know; it knows"
    return [f"[groups] multiplier names account {each!r}, {told}: {known}" for each in wrong]


class StepThreads:
    """A thread for each step, so that no step waits for another: a slow Slurm or storage does not end the leadership.

    A step that fails by a bug is logged, and called again after its pause: the other steps go on, and what is wrong
    only for a while (a record of Slurm's, say) costs no more than that while. `/health` and `/metrics` show it.
    """

    def __init__(self, clock: Callable[[], float], faults: StepFaults) -> None:
        self._clock = clock
        self._faults = faults
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def do(self, step: Step) -> None:
        """Call the step once. Nothing that the step raises gets further."""
        try:
            step.do(self._clock())
        except Exception as error:
            if self._faults.note(step.name, repr(error)):
                _log.exception("a step of control has failed; it is tried again", step=step.name)
        else:
            if self._faults.forget(step.name):
                _log.info("a step of control works again", step=step.name)

    def start(self, step: Step) -> None:
        """Call the step with the time, again and again, until all is stopped."""

        def live() -> None:
            while not self._stop.is_set():
                self.do(step)
                self._stop.wait(step.every_s)

        # A daemon thread: a program of Slurm that hangs must not keep control from ending.
        thread = threading.Thread(target=live, name=step.name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def stop(self) -> None:
        """Let no further step begin."""
        self._stop.set()

    def join(self) -> None:
        """Stop, and wait a little for the steps that are going on."""
        self.stop()
        for thread in self._threads:
            thread.join(SHUTDOWN_S)
