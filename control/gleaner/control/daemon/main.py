"""The control program: the API in the main thread, and each of its steps (`steps`) in a thread beside it."""

import logging
import os
import resource
import signal
import socket
import ssl
import sys
from types import FrameType

import structlog
import uvicorn

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.api import audit
from gleaner.control.api.app import create_app
from gleaner.control.api.http_protocol import BoundedHead
from gleaner.control.control_state import ControlState
from gleaner.control.daemon.leader import LeaderLoop, this_program
from gleaner.control.daemon.steps import SHUTDOWN_S, StepThreads, control_steps
from gleaner.control.queue.database import check_schema, connect
from gleaner.control.queue.errors import QueueError
from gleaner.control.settings import ApiSettings, Settings
from gleaner.control.slurm.factory import cluster

BACKLOG = 1024
OWN_FILES = 500
"""The least number of open files beside the connections: for the database, the storage, and Slurm's programs."""

_log = structlog.get_logger(__name__)


class CannotStart(QueueError):
    """The program cannot start with these settings; the text is one line that says why and what to do."""


def run(settings: Settings) -> None:
    """Serve until SIGTERM or SIGINT. Raises `QueueError` (`CannotStart`) if it cannot start.

    Killed at any point, it loses nothing.
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
    state = ControlState(settings=settings, engine=engine, storage=storage)
    _check_entitlements(settings)
    leader = LeaderLoop(state, this_program())
    steps = control_steps(state, leader, cluster(settings))
    server, listening = _server(state)
    # All that may refuse has been made by now. From here on the program leads and submits agents.

    threads = StepThreads(state.clock, state.faults)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threads.stop()
        server.should_exit = True

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        threads.do(steps[0])  # the leader's: the others' first rounds find out then whether this program leads
        for step in steps:
            threads.start(step)
        _log.info("listening", address=listening.getsockname()[:2], tls=settings.api.certificate is not None)
        server.run(sockets=[listening])
    finally:
        threads.join()
        if state.is_leader:
            leader.resign()
        engine.dispose()


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
        app = create_app(state)
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
