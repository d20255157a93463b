"""Run `gleaner-helper`, the only program that runs as root and talks to agents on nodes without Docker Engine.

It listens on a Unix socket for the service account, which the kernel identifies (SO_PEERCRED). Each connection carries
one request and its answer (messages of `system.ipc`). This module handles every kind of request. The helper can be
killed and restarted while containers run, because each container has its own monitor, and all facts about it are on
disk. The helper is also the watchdog. It removes a container whose agent's end has passed, and containers beyond the
limits of bytes and files.

If the settings name a key (`user_jobs_key`), the helper also serves the owners of Slurm jobs that run on this node.
Each owner can have one container for each such job, sees no others, and cannot add a container image (`user_jobs`).
"""

from __future__ import annotations  # the node may have Python 3.9

import fcntl
import json
import os
import resource
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import IO, Any, NoReturn

from ...system import ipc
from ...system.ipc import Refusal, Server
from ...system.tar_policy import Hostile
from ..common import agent_leftovers, bundle, config, request, system_programs
from ..common.bundle import Bundle
from ..common.slurm_job import NoJob, Slurm, Unknown, is_number
from ..common.user_jobs import LABEL_SLURM_JOB, Owner, Places, UserJobs, job_of, owner
from . import containers, image_store, monitor
from .containers import Failed
from .watchdog import Watchdog

_AT_ONCE = 1024
_USERS_AT_ONCE = 1024
_USER_AT_ONCE = 256
_TURNS = 8
_LONG = ("admit", "wait", "run", "checkpoint")
"""Requests that wait for programs other than root's, or that wait for each other anyway."""
_IMPORT_WITHIN_S = 3600
_IMPORT_MEMORY_BYTES = 2**30
_TAKES = {"run": "a folder", "import": "a file"}
"""Requests that carry a descriptor."""


class Helper:
    """The server for all requests, which handles each in its own thread."""

    def __init__(self, settings: config.Config) -> None:
        self._settings = settings
        self._user_jobs = UserJobs(settings, Slurm(settings.scontrol)) if settings.user_jobs_key else None
        self._agents_places = Places(of_one=_AT_ONCE, of_all=_AT_ONCE)
        self._users_places = Places(of_one=_USER_AT_ONCE, of_all=_USERS_AT_ONCE)
        self._turns: dict[int, threading.BoundedSemaphore] = {}
        self._busy: set[str] = set()
        self._pausing: weakref.WeakValueDictionary[str, threading.Lock] = weakref.WeakValueDictionary()
        self._lock = threading.Lock()
        self.watchdog = Watchdog(settings, self._user_jobs, self._alone, self._remove)

    def serve(self, listener: socket.socket) -> NoReturn:
        """Answer requests until the program ends."""
        Server(
            admit=self._admit,
            converse=self._answer,
            release=self._release,
            report=_report,
        ).serve(listener)

    def _admit(self, uid: int) -> None:
        is_served = uid == self._settings.agent_uid or self._user_jobs is not None
        if not is_served or not self._places(uid).take(uid):
            raise Refusal

    def _release(self, uid: int) -> None:
        self._places(uid).release(uid)

    def _places(self, uid: int) -> Places:
        return self._agents_places if uid == self._settings.agent_uid else self._users_places

    def _turn(self, uid: int, do: str) -> AbstractContextManager[Any]:
        """Return a limit on the requests of one user that run root's programs at the same time."""
        if uid == self._settings.agent_uid or do in _LONG:
            return nullcontext()
        return self._turns.setdefault(uid, threading.BoundedSemaphore(_TURNS))

    def _answer(self, connection: socket.socket, uid: int) -> None:
        descriptor = None
        caller = ipc.Handshake(connection, ipc.PATIENCE_S)
        try:
            message, descriptor = caller.hear()
            with self._turn(uid, str(message.get("do"))):
                fields, answer_descriptor = self._dispatch(uid, message, descriptor, connection)
            try:
                caller.say({"ok": True, **fields}, answer_descriptor)
            finally:
                if answer_descriptor is not None:
                    os.close(answer_descriptor)
        except ipc.HandshakeFailed:
            pass  # the other side has closed, or its message cannot be understood
        except Exception as error:
            with suppress(ipc.HandshakeFailed):
                caller.say({"ok": False, **_error_fields(error)})
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _dispatch(self, uid: int, message: ipc.Message, descriptor: int | None, connection: socket.socket) -> Any:
        """Return the answer to a request, and the descriptor that is sent with it."""
        do = str(message.get("do"))
        if do in _TAKES and descriptor is None:
            raise request.Refused(f"{do} comes with the descriptor of {_TAKES[do]}")
        settings = self._settings
        if uid != settings.agent_uid:
            owner(uid)  # any request is refused unless the uid is an ordinary user's
        if do == "facts":
            request.check_fields(message)
            return {**containers.facts(settings), "images": sorted(image_store.named_images(settings))}, None
        if do == "admit":
            number = request.check_fields(message, slurm_job=is_number)["slurm_job"]
            return self._users(do).admit(owner(uid), number), None
        if do == "list":
            request.check_fields(message)
            bundles = bundle.with_facts(settings)
            mine = {one.name: about["labels"] for one, about in bundles if bundle.owner_uid(settings, about) == uid}
            return {"containers": mine}, None
        if do == "create":
            spec = self._allowed_spec(uid, request.spec(message))
            with self._alone(spec.name):
                containers.create(settings, spec, Owner.of(uid))
            return {}, None
        if do in ("image", "import"):
            name = request.check_fields(message, image=request.is_image)["image"]
            image = image_store.find(settings, name)
            if image is None and do == "import":
                if uid != settings.agent_uid:
                    raise Failed("image", f"the image {name} is not on the node, and only an admin brings one")
                _import(descriptor or 0, name)
                image = image_store.find(settings, name)
            return {"image_id": image.id if image else None}, None
        if do in ("images", "drop"):
            return self._of_images(uid, message), None
        if do == "signal":
            fields = request.check_fields(message, name=request.is_name, signal=request.is_signal)
            containers.signal(settings, self._bundle(uid, fields["name"]), fields["signal"])
            return {}, None
        container = self._bundle(uid, request.check_fields(message, name=request.is_name)["name"])
        return self._of_container(do, container, descriptor, connection)

    def _of_images(self, uid: int, message: ipc.Message) -> dict[str, Any]:
        """Answer a request about pushed images, which only agents can add and remove."""
        if uid != self._settings.agent_uid:
            raise request.Refused(f"{message['do']}: only agents bring and remove images")
        if message["do"] == "images":
            request.check_fields(message)
            return {"images": [list(image) for image in image_store.unnamed(self._settings)]}
        image_id = request.check_fields(message, image=request.is_image_id)["image"]
        return {"dropped": image_store.drop(self._settings, image_id)}

    def _users(self, do: str) -> UserJobs:
        if self._user_jobs is None:
            raise request.Refused(f"{do}: user jobs are not served on this node")
        return self._user_jobs

    def _allowed_spec(self, uid: int, spec: request.Spec) -> request.Spec:
        """Return the specification that the container's owner is allowed. Raises `Refused`."""
        if uid != self._settings.agent_uid:
            return self._users("create").spec(owner(uid), spec)
        if job_of(spec.name) is not None:
            raise request.Refused("'name' is one of those that user jobs have")
        return spec

    def _bundle(self, uid: int, name: str) -> Bundle:
        """Return one of the caller's containers. Another user's container is treated as if it did not exist."""
        container = Bundle(self._settings, name)
        is_users = uid != self._settings.agent_uid
        if is_users != (job_of(name) is not None) or (is_users and job_of(name, uid) is None):
            raise bundle.NoSuch(f"there is no container {name}")
        with suppress(bundle.NoSuch):
            if container.owner_uid(self._settings) != uid:
                raise Failed("gone", f"there is no container {name}")
        return container

    def _of_container(self, do: str, container: Bundle, descriptor: int | None, connection: socket.socket) -> Any:
        settings = self._settings
        simple: dict[str, Callable[[], Any]] = {
            "pause": lambda: self._pause(container),
            "unpause": lambda: containers.unpause(settings, container),
            "checkpoint": lambda: self._checkpoint(container),
            "run": lambda: self._run(container, descriptor or 0, connection),
            "remove": lambda: self._remove(container),
        }
        if do in simple:
            with self._alone(container.name) if do in ("run", "remove") else nullcontext():
                simple[do]()
            return {}, None
        about = container.facts()
        if do == "about":
            return {
                "image_id": about["image_id"],
                "ended": not container.is_monitored(),
            }, None
        if do == "taken":
            return {"taken": containers.disk_use(container)}, None
        if do == "logs":
            return {}, os.open(container.inside("log"), os.O_RDONLY | os.O_CLOEXEC)
        if do == "wait":
            container.wait_for_end(connection.fileno())
            return {"exit": container.exit(), "ended": not container.is_monitored()}, None
        raise request.Refused(f"there is no request {do[:40]!r}")

    def _run(self, container: Bundle, folder: int, connection: socket.socket) -> None:
        if job_of(container.name) is None:
            inputs = _second_descriptor(connection) if container.facts().get("inputs") else None
            try:
                containers.run(self._settings, container, folder, inputs)
            finally:
                if inputs is not None:
                    os.close(inputs)
            return
        users = self._users("run")
        whose = owner(container.owner_uid(self._settings))
        users.must_run(whose, container.name)
        with users.open_folder(container.name) as theirs:
            if not os.path.samestat(os.fstat(folder), os.fstat(theirs)):
                raise Failed("fault", f"the job's folder must be {users.job_folder(container.name)}")
        containers.run(self._settings, container, folder, goes_on=lambda: users.goes_on(container))
        # The job might have ended in the meantime, when its Epilog found no container to end. From now on the Epilog
        # finds one.
        try:
            users.must_run(whose, container.name, anew=True)
        except (request.Refused, NoJob):
            self._remove(container)
            raise
        except Unknown:
            container.set_label(request.LABEL_END, str(int(time.time())))  # the watchdog asks Slurm again

    def _remove(self, container: Bundle) -> None:
        containers.remove(self._settings, container)
        if self._user_jobs is not None and job_of(container.name) is not None:
            self._user_jobs.remove_folder(container.name)

    def _pause(self, container: Bundle) -> None:
        """Freeze a container, but not during a save, when CRIU itself has stopped it and released the freezer.

        A freeze would stop CRIU's own code in the container, and the save would never end.
        """
        with self._one_pause(container.name):
            if f"{container.name} is being saved" not in self._busy:
                containers.pause(self._settings, container)

    def _checkpoint(self, container: Bundle) -> None:
        users = None if job_of(container.name) is None else self._user_jobs
        end_s = None if users is None else users.end_s(container)
        with self._alone(container.name, "saved"):
            with self._one_pause(container.name):
                pass  # wait for a pause that began earlier
            containers.checkpoint(self._settings, container, end_s=end_s)

    def _one_pause(self, name: str) -> threading.Lock:
        """Return the lock that all pauses and saves of this container share."""
        with self._lock:
            return self._pausing.setdefault(name, threading.Lock())

    @contextmanager
    def _alone(self, name: str, doing: str = "made or removed") -> Generator[None, None, None]:
        """Prevent others from taking the same action on a container of this name.

        Raises `Failed` if that action is already under way.
        """
        with self._lock:
            if (busy := f"{name} is being {doing}") in self._busy:
                raise Failed("fault", busy)
            self._busy.add(busy)
        try:
            yield
        finally:
            self._busy.discard(busy)


def _second_descriptor(connection: socket.socket) -> int:
    """Return the descriptor in a request's second message, which is that of the folder with the inputs."""
    message, descriptor = ipc.Handshake(connection, ipc.PATIENCE_S).hear()
    if descriptor is None:
        raise request.Refused("run comes with a second descriptor, of the folder with the inputs")
    if message:
        os.close(descriptor)
        raise request.Refused("the message with the folder of inputs has no fields")
    return descriptor


def _report(line: str) -> None:
    sys.stderr.write(f"{line}\n")


def _error_fields(error: Exception) -> dict[str, str]:
    line = " ".join(str(error).split())[:2000]
    if isinstance(error, (request.Refused, bundle.Exists, config.Misconfigured, Unknown)):
        return {"kind": "fault", "why": line}
    kinds = {Failed: getattr(error, "kind", ""), bundle.NoSuch: "gone", Hostile: "image"}
    kind = next((kind for each, kind in kinds.items() if isinstance(error, each)), "")
    return {"kind": kind or "fault", "why": line if kind else f"{type(error).__name__}: {line}"}


def _import(descriptor: int, name: str) -> None:
    """Import an image in a separate process with little memory, so that a hostile archive cannot kill the helper."""
    words = [sys.executable, "-IS", sys.argv[0], "import", name, str(descriptor)]
    try:
        result = system_programs.run(words, within_s=_IMPORT_WITHIN_S, pass_fds=(descriptor,))
    except TimeoutError as error:  # reading the file might hang, and others wait for their images
        raise Failed("image", f"the archive of {name} was not read within {_IMPORT_WITHIN_S} s") from error
    if result.status != 0:
        lines = result.stderr.strip().splitlines()
        raise Failed("image", f"the archive of {name} is not taken: {lines[-1] if lines else 'it was killed'}")


# The commands for an admin, Slurm's Epilog or the watchdog, each in its own process.


def _run_import(settings: config.Config, name: str, source: str) -> NoReturn:
    """Run `gleaner-helper import NAME FILE`, for an admin. The helper itself passes a descriptor's number as FILE."""
    resource.setrlimit(resource.RLIMIT_AS, (_IMPORT_MEMORY_BYTES, _IMPORT_MEMORY_BYTES))
    try:
        descriptor = int(source) if source.isdigit() else os.open(source, os.O_RDONLY | os.O_CLOEXEC)
        image_id = image_store.import_image(settings, descriptor, name)
    except (Hostile, OSError) as error:
        sys.exit(" ".join(str(error).split()) or type(error).__name__)
    sys.stdout.write(image_id + "\n")
    sys.exit(0)


def _forget(settings: config.Config, name: str) -> NoReturn:
    """Run `gleaner-helper forget NAME`, for an admin."""
    image = image_store.find(settings, name)
    if image is None:
        sys.exit(f"there is no image {name}")
    if any(about["image_id"] == image.id for _, about in bundle.with_facts(settings)):
        sys.exit(f"a container still uses {name}")
    image_store.forget(settings, name)
    sys.exit(0)


def _clear(settings: config.Config, slurm_job: str) -> NoReturn:
    """Run `gleaner-helper clear SLURM_JOB`, for Slurm's Epilog, to remove what an ended job's agent left behind."""
    for container, about in bundle.with_facts(settings):
        try:
            if about["labels"].get(LABEL_SLURM_JOB) == slurm_job:
                containers.remove(settings, container)
        except (Failed, OSError):
            with suppress(OSError, bundle.NoSuch):
                container.set_label(request.LABEL_END, "0")  # the watchdog tries again
    if settings.user_jobs_key:
        UserJobs(settings, Slurm(settings.scontrol)).clear(slurm_job)
    sys.exit(0)


def _sweep(settings: config.Config) -> NoReturn:
    """Run `gleaner-helper sweep`, for the watchdog, to remove the sockets and old logs of past agents."""
    agent_leftovers.remove_all(settings, time.time())
    sys.exit(0)


_COMMANDS: dict[str, tuple[Callable[..., NoReturn], int]] = {
    "import": (_run_import, 2),
    "forget": (_forget, 1),
    "clear": (_clear, 1),
    "sweep": (_sweep, 0),
}
"""The commands, and the number of arguments of each."""


def main() -> NoReturn:
    """Run the daemon, a command (`import`, `forget`, `clear`, `sweep`), or `monitor ...`, which the daemon calls."""
    os.umask(0o022)  # private files are in folders that only root can enter
    words = sys.argv[1:]
    try:
        settings = config.load()
        if words[:1] == ["monitor"] and len(words) in {5, 6}:
            monitor.main(words[1:])
            sys.exit(0)
        if words:
            command, most = _COMMANDS.get(words[0], (None, 0))
            if command is None or len(words) != 1 + most:
                sys.exit("usage: gleaner-helper [import NAME FILE | forget NAME | clear SLURM_JOB | sweep]")
            command(settings, *words[1:])
        bundle.check_place(settings)
        alone = _only_one(settings)
        bundle.sweep(settings)
        if settings.user_jobs_key:
            config.key(settings)
            UserJobs(settings, Slurm(settings.scontrol)).set_up()
    except config.Misconfigured as error:
        sys.exit(str(error))
    with alone:
        helper = Helper(settings)
        helper.watchdog.watch()
        helper.serve(_listen(settings))


def _only_one(settings: config.Config) -> IO[str]:
    """Return a lock for the life of this program, because a second helper would replace the first one's socket."""
    lock = open(os.path.join(settings.bundles, ".lock"), "w", encoding="ascii")  # noqa: SIM115
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        sys.exit("another gleaner-helper runs on this node")
    return lock


def _listen(settings: config.Config) -> socket.socket:
    """Return the socket. Only the service account can open it, unless user jobs are served.

    Callers are identified only by the kernel.
    """
    path = settings.helper_socket
    mode = 0o666 if settings.user_jobs_key else 0o600
    listener = ipc.listen(path, mode=mode, owner_uid=settings.agent_uid)
    sys.stderr.write(json.dumps({"listening": path}) + "\n")
    return listener
