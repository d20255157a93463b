"""The control program. It serves the agents' port in the main thread, and runs each loop (`control_loops`) in a
separate thread."""

from functools import partial

from gleaner.control.api.app import Door
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.clocks import may_remove_by_age
from gleaner.control.daemon.control_view import WRITE_EVERY_S, write_view
from gleaner.control.daemon.drains import Drains
from gleaner.control.daemon.entitlements import Entitlements
from gleaner.control.daemon.harm_meter import HarmMeter
from gleaner.control.daemon.leader import Leadership, this_program
from gleaner.control.daemon.loops import Loop
from gleaner.control.daemon.node_history import NodeHistory
from gleaner.control.daemon.own_checks import own_checks
from gleaner.control.daemon.provisioning import Provisioning
from gleaner.control.daemon.rebalancer import Rebalancer
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.daemon.serving import CannotStart, HttpServer, door_app, ready_state, serve
from gleaner.control.daemon.slurm_shares import take_shares
from gleaner.control.daemon.storage_gc import remove_drafts, remove_garbage
from gleaner.control.daemon.web_process import WebProcess
from gleaner.control.queue import retention
from gleaner.control.settings import Settings
from gleaner.control.slurm.factory import cluster
from gleaner.control.slurm.interface import Cluster, SnapshotCache
from gleaner.control.slurm_admin.client import SlurmAdminClient

WEB_S = 1.0
DRAFTS_S = 30.0
GC_S = 300.0
RETENTION_S = 3600.0
DRAINS_S = 2.0
REBALANCER_S = 5.0
SHARES_S = 300.0


def run(settings: Settings, *, with_web: bool = True) -> None:
    """Serve agents until SIGTERM or SIGINT. Raises `QueueError` (`CannotStart`) if it cannot start.

    A kill at any point loses nothing. With `with_web`, the people's port is served by a child process.
    """
    state = ready_state(settings, follows=False)
    _check_entitlements(settings)
    leadership = Leadership(state, this_program())
    loops = control_loops(state, leadership, cluster(settings))
    server = HttpServer(door_app(state, Door.AGENTS), settings.api, settings.api.agents_port)
    people = WebProcess() if with_web else None
    if people is not None:
        loops += (Loop("people's door", WEB_S, people.keep, leader_only=False),)
    # All objects whose creation can fail already exist. From here on, the program leads and submits agents.
    try:
        serve(state, loops, server, Door.AGENTS)
    finally:
        if people is not None:
            people.end()
        if state.is_leader:
            leadership.resign()
        state.engine.dispose()


def _remove_old_rows(state: ControlState, now_s: float) -> None:
    if may_remove_by_age(state, now_s):
        retention.remove_old_rows(state.engine, state.writing, state.settings, now_s)


def control_loops(state: ControlState, leadership: Leadership, cluster: Cluster) -> tuple[Loop, ...]:
    """Return all loops that the settings require.

    The leader's loop is the first, because the others need the leadership.

    `/health` and `/metrics` show the loops' names.
    """
    settings = state.settings
    snapshots = SnapshotCache(cluster)
    slurm_admin = SlurmAdminClient(
        settings.entitlements.slurm_admin_socket,
        settings.entitlements.slurm_admin_timeout_s,
        lambda: state.term.epoch if state.term else None,
    )
    tick_s = leadership.tick_s
    loops = [
        Loop("leader", tick_s, leadership.tick, leader_only=False),
        *own_checks(state),
        Loop("provisioning", settings.rounds.poll_s, Provisioning(state, cluster, snapshots).step),
        Loop("report spool", tick_s, partial(take_spooled_reports, state)),
        Loop("view", WRITE_EVERY_S, partial(write_view, state)),
        Loop("drafts", DRAFTS_S, partial(remove_drafts, state)),
        Loop("checkpoint gc", GC_S, lambda now_s: remove_garbage(state, now_s, by_age=may_remove_by_age(state, now_s))),
        Loop("node history", settings.rounds.poll_s, NodeHistory(state).step),
        Loop("rebalancer", REBALANCER_S, Rebalancer(state).step),
        Loop("harm meter", settings.rounds.poll_s, HarmMeter(state, cluster).step),
        Loop("drains", DRAINS_S, Drains(state, cluster, slurm_admin).step),
        Loop("retention", RETENTION_S, partial(_remove_old_rows, state)),
    ]
    if settings.entitlements.mode != "off":
        loop = Entitlements(state, cluster, snapshots, slurm_admin)
        loops.append(Loop("entitlements", settings.entitlements.poll_s, loop.step))
    if settings.groups.from_slurm:
        loops.append(Loop("shares", SHARES_S, lambda _now_s: take_shares(state), leader_only=False))
    return tuple(loops)


def _check_entitlements(settings: Settings) -> None:
    """Raise `CannotStart` if the agents' partition has entitlements."""
    entitlements, agents_in = settings.entitlements, settings.cluster.partition
    if entitlements.mode != "off" and agents_in in entitlements.partitions:
        raise CannotStart(f"[entitlements] partitions names {agents_in}, which is the agents' own")
