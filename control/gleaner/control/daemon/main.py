"""The control program: the API in the main thread, and each of its loops (`control_loops`) in a thread beside it."""

import os
import resource
import signal
import socket
import ssl
from functools import partial
from types import FrameType

import structlog
import uvicorn

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.api.app import create_app
from gleaner.control.api.http_protocol import BoundedHead
from gleaner.control.control_state import ControlState
from gleaner.control.daemon import logs
from gleaner.control.daemon.clocks import may_remove_by_age
from gleaner.control.daemon.drains import Drains
from gleaner.control.daemon.entitlements import Entitlements
from gleaner.control.daemon.harm_meter import HarmMeter
from gleaner.control.daemon.leader import Leadership, this_program
from gleaner.control.daemon.loops import JOIN_S, Loop, LoopThreads
from gleaner.control.daemon.node_history import NodeHistory
from gleaner.control.daemon.provisioning import Provisioning
from gleaner.control.daemon.rebalancer import Rebalancer
from gleaner.control.daemon.report_spool import take_spooled_reports
from gleaner.control.daemon.slurm_shares import take_shares
from gleaner.control.daemon.snapshots import SnapshotCache
from gleaner.control.daemon.storage_gc import remove_drafts, remove_garbage
from gleaner.control.queue import retention
from gleaner.control.queue.database import check_schema, connect
from gleaner.control.queue.errors import QueueError
from gleaner.control.settings import ApiSettings, Settings
from gleaner.control.slurm.factory import cluster
from gleaner.control.slurm.interface import Cluster
from gleaner.control.slurm_admin.client import SlurmAdminClient
from gleaner.control.web.app import with_pages

BACKLOG = 1024
OWN_FILES = 500
"""The least number of open files beside the connections: for the database, the storage, and Slurm's programs."""

DRAFTS_S = 30.0
GC_S = 300.0
RETENTION_S = 3600.0
DRAINS_S = 2.0
REBALANCER_S = 5.0
SHARES_S = 300.0

_log = structlog.get_logger(__name__)


class CannotStart(QueueError):
    """The program cannot start with these settings; the text is one line that says why and what to do."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `QueueError` (`CannotStart`) if it cannot start.

    Killed at any point, it loses nothing.
    """
    os.umask(0o077)
    logs.write_to_stderr(settings.log.format)
    engine = connect(settings.queue.url)
    check_schema(engine)
    storage = FolderStorage(settings.storage.folder)
    try:
        storage.keys("jobs")
    except StorageError as error:
        raise CannotStart(str(error)) from error
    if not os.access(settings.storage.folder, os.W_OK):
        raise CannotStart(f"the storage folder {settings.storage.folder} is not writable for this account")
    state = ControlState(settings=settings, engine=engine, storage=storage)
    _check_entitlements(settings)
    leadership = Leadership(state, this_program())
    loops = control_loops(state, leadership, cluster(settings))
    server, listening = _server(state)
    # All that may refuse has been made by now. From here on the program leads and submits agents.

    threads = LoopThreads(state)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threads.stop()
        server.should_exit = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        threads.run_once(loops[0])  # the leader's: the others' first rounds find out then whether this program leads
        for loop in loops:
            threads.start(loop)
        _log.info("listening", address=listening.getsockname()[:2], tls=settings.api.certificate is not None)
        server.run(sockets=[listening])
    finally:
        threads.join()
        if state.is_leader:
            leadership.resign()
        engine.dispose()


def _remove_old_rows(state: ControlState, now_s: float) -> None:
    if may_remove_by_age(state, now_s):
        settings = state.settings
        retention.remove_old_rows(state.engine, state.writing, settings.queue, settings.history, now_s)


def control_loops(state: ControlState, leadership: Leadership, cluster: Cluster) -> tuple[Loop, ...]:
    """Return all loops that the settings ask for. The leader's is the first: without it the others do nothing.

    `/health` and `/metrics` show the names.
    """
    settings = state.settings
    snapshots = SnapshotCache(cluster)
    slurm_admin = SlurmAdminClient(
        settings.entitlements.slurm_admin_socket, settings.entitlements.slurm_admin_timeout_s, lambda: state.epoch
    )
    tick_s = leadership.tick_s
    loops = [
        Loop("leader", tick_s, leadership.tick, leader_only=False),
        Loop("provisioning", settings.rounds.poll_s, Provisioning(state, cluster, snapshots).step),
        Loop("report spool", tick_s, partial(take_spooled_reports, state), "reports on the storage have to wait"),
        Loop("drafts", DRAFTS_S, partial(remove_drafts, state), "drafts cannot be removed, it will be tried again"),
        Loop(
            "checkpoint gc",
            GC_S,
            lambda now_s: remove_garbage(state, now_s, by_age=may_remove_by_age(state, now_s)),
            "checkpoints and tokens could not be removed, it will be tried again",
        ),
        Loop("node history", settings.rounds.poll_s, NodeHistory(state).step, "the history of node time has a gap"),
        Loop("rebalancer", REBALANCER_S, Rebalancer(state).step, "moves wait for the queue"),
        Loop(
            "retention",
            RETENTION_S,
            partial(_remove_old_rows, state),
            "what is old could not be removed, it will be tried again",
        ),
    ]
    if settings.entitlements.mode != "off":
        loop = Entitlements(state, cluster, snapshots, slurm_admin)
        loops.append(Loop("entitlements", settings.entitlements.poll_s, loop.step))
    if settings.cluster.backend != "local":
        trouble = "the delays of regular jobs are not measured"
        loops.append(Loop("harm meter", settings.rounds.poll_s, HarmMeter(state, cluster).step, trouble))
        loops.append(Loop("drains", DRAINS_S, Drains(state, cluster, slurm_admin).step, "drains wait for the queue"))
    if settings.groups.from_slurm:
        trouble = "the shares of Slurm's accounts could not be read, it will be tried again"
        loops.append(Loop("shares", SHARES_S, lambda _now_s: take_shares(state), trouble, leader_only=False))
    return tuple(loops)


def _check_entitlements(settings: Settings) -> None:
    """Raise `CannotStart` unless the cluster of the settings can have entitlements."""
    entitlements, slurm = settings.entitlements, settings.cluster
    if entitlements.mode == "off":
        return
    if slurm.backend == "local":
        raise CannotStart(
            f"[entitlements] mode is {entitlements.mode}, but [cluster] backend is local: only a Slurm cluster can have"
            " entitlements"
        )
    if slurm.partition in entitlements.partitions:
        raise CannotStart(f"[entitlements] partitions names {slurm.partition}, which is the agents' own")


def _server(state: ControlState) -> tuple[uvicorn.Server, socket.socket]:
    """Return the server and its socket. The socket listens already, so a port in use is found before the start."""
    api = state.settings.api
    _allow_files(api.connections_at_most + OWN_FILES)
    try:
        _check_tls(api)
        listening = _listen(api.host, api.port)
    except ssl.SSLError as error:
        raise CannotStart(f"[api] certificate and key cannot be used: {error.reason or error}") from error
    except OSError as error:
        what = error.filename or f"{api.host} port {api.port}"
        why = str(error.strerror).partition(" (while ")[0]  # create_server() adds the address once more
        raise CannotStart(f"[api] {what}: {why}") from error
    try:
        app = with_pages(create_app(state))
    except OSError as error:
        raise CannotStart(f"[audit] {error.filename}: {error.strerror}") from error
    config = uvicorn.Config(
        app,
        http=BoundedHead.bounded(request_s=api.request_s, per_host=api.connections_per_host),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=JOIN_S,
        backlog=BACKLOG,
        limit_concurrency=api.connections_at_most,
        ssl_certfile=api.certificate,
        ssl_keyfile=api.key,
    )
    return uvicorn.Server(config), listening


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens at this address; at `::`, to callers by IPv4, too. Raises `OSError`."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=BACKLOG)
    takes_ipv4 = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=takes_ipv4)


def _allow_files(at_least: int) -> None:
    """Let this process have so many files open, as far as its hard limit allows. Each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = at_least if hard == resource.RLIM_INFINITY else min(at_least, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_tls(api: ApiSettings) -> None:
    """Check certificate and key before the server starts. Raises `OSError` or `SSLError`."""
    if api.certificate is None or api.key is None:
        return
    for path in (api.certificate, api.key):
        path.open("rb").close()  # load_cert_chain's own error does not name the file
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(api.certificate, api.key)
