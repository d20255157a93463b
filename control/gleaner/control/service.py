"""The control program: the API in the main thread, and beside it the keeper, the rounds, the owners' jobs (governing),
drains and moves, the shares that Slurm knows, the reports that agents left on the storage, the housekeeping, and the
removal of what is old.

Each of those runs in a thread of its own, so that a scheduler that does not answer, or storage that is slow to
delete, keeps nobody from leading and from hearing agents. A bug in one of them ends the program, loudly.
"""

import logging
import os
import resource
import signal
import socket
import ssl
import sys
import threading
from collections.abc import Callable
from types import FrameType

import structlog
import uvicorn

from gleaner.agent.storage.folder import FolderStorage
from gleaner.agent.storage.protocol import StorageError
from gleaner.control.api import audit
from gleaner.control.api.app import create_app
from gleaner.control.api.heads import BoundedHead
from gleaner.control.cluster.choice import gateway
from gleaner.control.cluster.slurm_on_nodes import SlurmNodes
from gleaner.control.cluster.slurm_owners import SlurmOwners
from gleaner.control.collector import collect, sweep_drafts
from gleaner.control.draining.drainer import Drainer
from gleaner.control.governing.governor import Governor
from gleaner.control.keeper import Keeper, this_program
from gleaner.control.left_reports import take_left_reports
from gleaner.control.mover import Mover
from gleaner.control.pruner import prune
from gleaner.control.queue.engine import check_schema, connect
from gleaner.control.queue.errors import QueueError
from gleaner.control.rounds import Rounds, sweep_tokens
from gleaner.control.settings import ApiSettings, Settings
from gleaner.control.site import Site
from gleaner.control.slurm_shares import take_shares
from gleaner.control.steward.client import Steward

DRAFTS_S = 30.0
HOUSEKEEPING_S = 300.0
PRUNING_S = 3600.0
DRAINING_S = 2.0
MOVING_S = 5.0
SHARES_S = 300.0
SHUTDOWN_S = 3
"""How long requests and threads are waited for at the end."""
BACKLOG = 1024
OWN_FILES = 500
"""So many files, at least, beside the connections: the database, the storage, programs of Slurm."""

_log = structlog.get_logger(__name__)


class CannotStart(QueueError):
    """The program cannot start with these settings; one line says why and what to do."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `QueueError` (`CannotStart`) if it cannot start.

    Ends the process with status 1 if one of its parts has failed. Killed at any point, it loses nothing.
    """
    os.umask(0o077)
    _log_to_stderr()
    engine = connect(settings.queue.url)
    check_schema(engine)
    storage = FolderStorage(settings.storage.folder)
    try:
        storage.keys("jobs")
    except StorageError as error:
        raise CannotStart(str(error)) from error
    if not os.access(settings.storage.folder, os.W_OK):
        raise CannotStart(f"the storage folder {settings.storage.folder} is not writable for this account")
    site = Site(settings=settings, engine=engine, storage=storage)
    governing = governor(site) if settings.governing.mode != "off" else None
    keeper = Keeper(site, this_program())
    rounds = Rounds(site, gateway(settings))
    server, listening = _server(site)
    # All that may refuse has been made by now: what follows leads, and submits agents.
    parts = Parts(site, server)
    signal.signal(signal.SIGTERM, parts.on_signal)
    signal.signal(signal.SIGINT, parts.on_signal)
    try:
        keeper.tick(site.clock())
        _start(parts, site, keeper, rounds, governing)
        _log.info("listening", address=listening.getsockname()[:2], tls=settings.api.certificate is not None)
        server.run(sockets=[listening])
    finally:
        parts.stop()
        if site.is_leader:
            keeper.resign()
        engine.dispose()
    if parts.failed:
        sys.exit(1)


def _start(parts: "Parts", site: Site, keeper: Keeper, rounds: Rounds, governing: Governor | None) -> None:
    settings = site.settings
    parts.start("keeper", keeper.tick, every_s=keeper.tick_s)
    parts.start("rounds", rounds.a_round, every_s=settings.rounds.poll_s)
    parts.start("left reports", lambda now_s: left_reports(site, now_s), every_s=keeper.tick_s)
    parts.start("drafts", lambda now_s: left_drafts(site, now_s), every_s=DRAFTS_S)
    parts.start("housekeeping", lambda now_s: housekeeping(site, now_s), every_s=HOUSEKEEPING_S)
    if governing is not None:
        parts.start("governing", governing.a_round, every_s=settings.governing.poll_s)
    parts.start("moves", Mover(site).a_round, every_s=MOVING_S)
    if settings.cluster.gateway != "local":
        parts.start("drains", drainer(site).a_round, every_s=DRAINING_S)
    if settings.groups.from_slurm:
        parts.start("shares", lambda _now_s: take_shares(site), every_s=SHARES_S)
    parts.start("pruning", lambda now_s: prune(site, now_s), every_s=PRUNING_S)


def governor(site: Site) -> Governor:
    """What governs the owners' partitions, on the cluster of the settings. Raises `CannotStart`."""
    governing, cluster = site.settings.governing, site.settings.cluster
    if cluster.gateway == "local":
        raise CannotStart(
            f"[governing] mode is {governing.mode}, but [cluster] gateway is local: only a Slurm cluster can be"
            " governed"
        )
    if cluster.partition in governing.partitions:
        raise CannotStart(f"[governing] partitions names {cluster.partition}, which is the agents' own")
    owners = SlurmOwners(governing.partitions, agents=cluster.partition, timeout_s=cluster.timeout_s)
    return Governor(site, owners, _steward(site))


def drainer(site: Site) -> Drainer:
    """What empties nodes."""
    governing, cluster = site.settings.governing, site.settings.cluster
    owners = SlurmOwners(governing.partitions, agents=cluster.partition, timeout_s=cluster.timeout_s)
    return Drainer(site, SlurmNodes(owners, timeout_s=cluster.timeout_s), _steward(site))


def _steward(site: Site) -> Steward:
    governing = site.settings.governing
    return Steward(governing.steward_socket, governing.steward_timeout_s, lambda: site.epoch)


def left_reports(site: Site, now_s: float) -> None:
    """Take the reports of agents that could not reach control at their end."""
    if site.is_leader:
        take_left_reports(site, now_s)


def left_drafts(site: Site, now_s: float) -> None:
    """Remove what agents that have ended were still writing."""
    if not site.is_leader:
        return
    try:
        site.check_leads()
        sweep_drafts(site.engine, site.storage, now_s)
    except (StorageError, QueueError) as error:
        _log.warning("drafts cannot be removed, it will be tried again", reason=str(error))


def housekeeping(site: Site, now_s: float) -> None:
    """Delete what nobody needs any more. What fails is tried again next time."""
    if not site.is_leader:
        return
    try:
        site.check_leads()
        collect(site.engine, site.storage, now_s)
        sweep_tokens(site, now_s)
    except (StorageError, QueueError, OSError) as error:
        _log.warning("housekeeping failed, it will be tried again", reason=str(error))


class Parts:
    """The threads beside the API, and how they and it are stopped together."""

    def __init__(self, site: Site, server: uvicorn.Server) -> None:
        self.failed = False
        self._site = site
        self._server = server
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self, name: str, do: Callable[[float], None], *, every_s: float) -> None:
        """Call `do` with the time, `every_s` after its last end, until all is stopped."""

        def live() -> None:
            try:
                while not self._stop.is_set():
                    do(self._site.clock())
                    self._stop.wait(every_s)
            except Exception:
                self.failed = True
                _log.exception("a part of control has failed; control ends", part=name)
                self._server.should_exit = True

        # A daemon: a program of Slurm that hangs must not keep control from ending.
        thread = threading.Thread(target=live, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    def on_signal(self, number: int, _frame: FrameType | None) -> None:
        """End everything."""
        self._stop.set()
        self._server.should_exit = True

    def stop(self) -> None:
        """Tell the threads to end, and wait a little for them."""
        self._stop.set()
        for thread in self._threads:
            thread.join(SHUTDOWN_S)


def _server(site: Site) -> tuple[uvicorn.Server, socket.socket]:
    """The server and its socket, which listens already: a port that is taken is found out before anything starts."""
    api = site.settings.api
    _allow_files(api.connections_at_most + OWN_FILES)
    try:
        _check_tls(api)
        listening = socket.create_server(
            (api.host, api.port), family=socket.AF_INET6 if ":" in api.host else socket.AF_INET, backlog=BACKLOG
        )
    except ssl.SSLError as error:
        raise CannotStart(f"[api] certificate and key cannot be used: {error.reason or error}") from error
    except OSError as error:
        what = error.filename or f"{api.host} port {api.port}"
        why = str(error.strerror).partition(" (while ")[0]  # create_server() adds the address once more
        raise CannotStart(f"[api] {what}: {why}") from error
    try:
        app = create_app(site)
    except OSError as error:
        raise CannotStart(f"[audit] {error.filename}: {error.strerror}") from error
    config = uvicorn.Config(
        app,
        http=BoundedHead.bounded(request_s=api.request_s, per_host=api.connections_per_host),
        log_config=None,
        access_log=False,
        lifespan="off",
        server_header=False,
        timeout_graceful_shutdown=SHUTDOWN_S,
        backlog=BACKLOG,
        limit_concurrency=api.connections_at_most,
        ssl_certfile=api.certificate,
        ssl_keyfile=api.key,
    )
    return uvicorn.Server(config), listening


def _allow_files(at_least: int) -> None:
    """Let this process have so many files open, as far as its hard limit goes: each connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = at_least if hard == resource.RLIM_INFINITY else min(at_least, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_tls(api: ApiSettings) -> None:
    """Raise `OSError` or `SSLError` now, rather than when the server has already started."""
    if api.certificate is None or api.key is None:
        return
    for path in (api.certificate, api.key):
        path.open("rb").close()  # load_cert_chain's own error does not name the file
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(api.certificate, api.key)


def _log_to_stderr() -> None:
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    logging.getLogger(audit.LOGGER).setLevel(logging.INFO)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso"),
            structlog.processors.format_exc_info,
            structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
    )
