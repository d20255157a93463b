"""A server of the API on one port. All its resources are prepared before the loops and the server start."""

import os
import resource
import signal
import socket
import ssl
from collections.abc import Sequence
from types import FrameType

import structlog
import uvicorn
from starlette.types import ASGIApp

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import StorageError
from gleaner.control.api.app import Door, create_app
from gleaner.control.api.connections import DoorListener, Patience, Timed
from gleaner.control.control_state import ControlState
from gleaner.control.daemon import logs
from gleaner.control.daemon.loops import JOIN_S, Loop, LoopThreads
from gleaner.control.queue.database import check_schema, connect
from gleaner.control.queue.errors import QueueError
from gleaner.control.settings import ApiSettings, Settings
from gleaner.control.web.app import with_pages

BACKLOG = 1024
OWN_FILES = 500
"""The number of open files needed besides the connections, for the database, the storage and Slurm's programs."""

_log = structlog.get_logger(__name__)


class CannotStart(QueueError):
    """The program cannot start with these settings. The text is one line with the reason and the remedy."""


def ready_state(settings: Settings, *, follows: bool) -> ControlState:
    """Return the state of this program after checking its database and its storage. Raises `QueueError`."""
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
    return ControlState(settings=settings, engine=engine, storage=storage, follows=follows)


def door_app(state: ControlState, door: Door) -> ASGIApp:
    """Return the app with this port's routes, plus the web pages if it is the people's port. Raises `CannotStart`."""
    try:
        app = create_app(state, [door])
        return with_pages(app) if door is Door.PEOPLE else app
    except OSError as error:
        raise CannotStart(f"[audit] {error.filename}: {error.strerror}") from error


class HttpServer:
    """A server whose socket already listens, so that a port in use is noticed before the program changes anything."""

    def __init__(self, app: ASGIApp, api: ApiSettings, port: int, patience: Patience | None = None) -> None:
        """Open the socket. Raises `CannotStart`."""
        _allow_files(api.connections_at_most + OWN_FILES)
        try:
            _check_tls(api)
            listening = _listen(api.host, port)
        except ssl.SSLError as error:
            raise CannotStart(f"[api] certificate and key cannot be used: {error.reason or error}") from error
        except OSError as error:
            what = error.filename or f"{api.host} port {port}"
            why = str(error.strerror).partition(" (while ")[0]  # create_server() would add the address again
            raise CannotStart(f"[api] {what}: {why}") from error
        self._listener = DoorListener(listening, at_most=api.connections_at_most, patience=patience or Patience())
        self.address = self._listener.getsockname()[:2]
        config = uvicorn.Config(
            Timed(app, self._listener, proxies=api.proxies),
            loop="asyncio",
            http="h11",  # httptools does not limit the size of the headers
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=JOIN_S,
            backlog=BACKLOG,
            ssl_certfile=api.certificate,
            ssl_keyfile=api.key,
        )
        self._server = uvicorn.Server(config)

    def run(self, door: str) -> None:
        """Serve requests until `stop` is called, or until SIGTERM or SIGINT."""
        _log.info("listening", door=door, address=self.address, tls=self._server.config.is_ssl)
        self._server.run(sockets=[self._listener])

    def stop(self) -> None:
        """End `run`."""
        self._server.should_exit = True


def serve(state: ControlState, loops: Sequence[Loop], server: HttpServer, door: Door) -> None:
    """Run the loops and the server until SIGTERM or SIGINT."""
    threads = LoopThreads(state)

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        threads.stop()
        server.stop()

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    try:
        threads.run_once(loops[0])  # the other loops and the first answers depend on this one
        for loop in loops:
            threads.start(loop)
        server.run(door)
    finally:
        threads.join()


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens on this address. With `::` it also accepts callers by IPv4. Raises `OSError`."""
    if ":" not in host:
        return socket.create_server((host, port), backlog=BACKLOG)
    takes_ipv4 = host == "::" and socket.has_dualstack_ipv6()
    return socket.create_server((host, port), family=socket.AF_INET6, backlog=BACKLOG, dualstack_ipv6=takes_ipv4)


def _allow_files(at_least: int) -> None:
    """Raise the limit of open files to this number, within the hard limit. Each connection is an open file."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = at_least if hard == resource.RLIM_INFINITY else min(at_least, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _check_tls(api: ApiSettings) -> None:
    """Check the certificate and the key before the server starts. Raises `OSError` or `SSLError`."""
    if api.certificate is None or api.key is None:
        return
    for path in (api.certificate, api.key):
        path.open("rb").close()  # load_cert_chain's own error does not name the file
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(api.certificate, api.key)
