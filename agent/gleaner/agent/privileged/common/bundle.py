"""Keep the node helper's files about one container, and tell root's programs whether the container runs.

A bundle is a folder below `CONFIG.bundles` that only root can enter. `container.json` is written last when a bundle is
made, and the bundle is renamed before it is removed. So a bundle that was half made or half removed when the power
failed is recognized and ignored.

The container's monitor (`helper/monitor`) holds the bundle's FIFO `alive` open for writing as long as it lives. Other
programs open the FIFO for reading to find out whether the monitor lives. They do not look up a process number, because
the system might have given the number to another process.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import json
import os
import select
import stat
import tempfile
from typing import Any

from ...system import atomic, openat
from . import config, disk_usage, mounts
from .disk_usage import DiskUse

_TRASH = ".gone-"
_ROOM, _ROOM_BYTES = "exit.room", 512
"""A file that is made while the disk still has room, and that becomes `exit.json`."""
_COUNT_WITHIN_S = 300.0
_OWN_FILES = {
    "hostname": "gleaner\n",
    "hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tgleaner\n",
    "resolv.conf": "",
}


class NoSuch(Exception):
    """There is no container with this name."""


class Exists(Exception):
    """There is already a container with this name."""


class Bundle:
    """One container's folder. The caller has checked the name."""

    def __init__(self, settings: config.Config, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder(settings), name)

    def inside(self, name: str) -> str:
        """Return the path of a file in the bundle."""
        return os.path.join(self.path, name)

    def make(self, facts: dict[str, Any], oci: dict[str, Any]) -> None:
        """Write everything that the container needs before it runs. Raises `Exists`."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError as error:
            raise Exists(f"there is a container {self.name} already") from error
        try:
            mounts_here = map(mount_place, range(len(facts.get("mounts", ()))))
            for name in ("rootfs", "upper", "work", "job", "inputs", *mounts_here):
                os.mkdir(self.inside(name), 0o755)
            for name, content in _OWN_FILES.items():
                _write(self.inside(name), content, 0o644)
            os.mkfifo(self.inside("alive"), 0o600)
            _write(self.inside("log"), "", 0o600)
            _write(self.inside(_ROOM), " " * _ROOM_BYTES, 0o600)
            _write(self.inside("config.json"), json.dumps(oci), 0o600)
            _write(self.inside("container.json"), json.dumps(facts), 0o600)
        except OSError:
            self.remove()  # otherwise the name could not be used again
            raise

    def facts(self) -> dict[str, Any]:
        """Return the facts with which the container was made. Raises `NoSuch`."""
        facts = _read(self.inside("container.json"))
        if facts is None:
            raise NoSuch(f"there is no container {self.name}")
        return facts

    def owner_uid(self, settings: config.Config) -> int:
        """Return the uid of the container's owner, to whom its processes belong. Raises `NoSuch`."""
        return owner_uid(settings, self.facts())

    def set_label(self, label: str, value: str) -> None:
        """Change one of the container's labels."""
        about = self.facts()
        about["labels"][label] = value
        _write(self.inside("container.json"), json.dumps(about), 0o600)

    def exit(self) -> dict[str, Any] | None:
        """Return how the container ended, or None if it has not ended or its monitor was killed before that."""
        return _read(self.inside("exit.json"))

    def record_exit(self, exit: dict[str, Any]) -> None:
        """Record how the container ended, even on a full disk. Otherwise a job that is done would run again."""
        with open(self.inside(_ROOM), "r+", encoding="ascii") as file:
            file.write(json.dumps(exit))
        os.replace(self.inside(_ROOM), self.inside("exit.json"))

    def is_monitored(self) -> bool:
        """Return True if the monitor lives, in which case the container runs, or its end is about to be recorded."""
        return self.wait_for_end(None, wait_s=0) is False

    def wait_for_end(self, connection: int | None, *, wait_s: float | None = None) -> bool:
        """Wait until the monitor has ended.

        Return False if the time is up, or if the other side of the connection has closed it.
        """
        try:
            alive = os.open(self.inside("alive"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        with openat.closing_fd(alive):
            # A reader of a FIFO is told only about the end of writers that it has seen, so read first and then wait.
            with contextlib.suppress(BlockingIOError):
                os.read(alive, 1)
                return True
            descriptors = [alive] if connection is None else [alive, connection]
            ready = select.poll()  # `select` cannot handle descriptors above 1023
            for one in descriptors:
                ready.register(one, select.POLLIN)
            return alive in dict(ready.poll(None if wait_s is None else wait_s * 1000))

    def remove(self) -> None:
        """Remove the bundle's files, the written layer among them. The container's processes must have ended."""
        trash = tempfile.mkdtemp(prefix=_TRASH, dir=os.path.dirname(self.path))
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, os.path.join(trash, "bundle"))
        mounts.remove_tree(trash)


def mount_place(number: int) -> str:
    """Return the name of the folder in a bundle at which the container's mount with this number is mounted."""
    return f"mount-{number}"


def disk_use(*paths: str) -> DiskUse:
    """Return the space that folders take on the disk, or a lower bound if the count takes too long."""
    use = DiskUse()
    for path in paths:
        use = use.plus(disk_usage.count_disk_use(path, within_s=_COUNT_WITHIN_S))
    return use


def room(settings: config.Config) -> DiskUse:
    """Return how many bytes and files containers can still write. The values are negative beyond a limit."""
    use = disk_use(*(one.path for one in all_bundles(settings)))
    return DiskUse(settings.most_container_bytes - use.size_bytes, settings.most_container_files - use.inodes)


def owner_uid(settings: config.Config, facts: dict[str, Any]) -> int:
    """Return the owner of a container, which is the service account unless it belongs to a user job."""
    uid: int = facts.get("uid", settings.agent_uid)
    return uid


def folder(settings: config.Config) -> str:
    """Return the folder of all bundles, which only root can enter. Make it if it does not exist."""
    path = os.path.join(settings.bundles, "containers")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def check_place(settings: config.Config) -> None:
    """Make the folder for bundles, and check that only root can look into it or replace it.

    Raises `Misconfigured`.
    """
    os.makedirs(settings.bundles, mode=0o700, exist_ok=True)
    os.chmod(settings.bundles, 0o700)
    at = settings.bundles
    while True:
        facts = os.lstat(at)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != 0 or facts.st_mode & 0o022:
            raise config.Misconfigured(f"{at} must be a folder of root's that nobody else can write to: chmod go-w")
        if at == "/":
            return
        at = os.path.dirname(at.rstrip("/"))


def temporary_folder(settings: config.Config) -> tempfile.TemporaryDirectory[str]:
    """Return a folder that exists for the duration of one call. If the call is killed, `sweep` removes the folder."""
    return tempfile.TemporaryDirectory(prefix=_TRASH, dir=folder(settings))


def all_bundles(settings: config.Config) -> list[Bundle]:
    """Return every container, including those that have ended."""
    return [one for one, _ in with_facts(settings)]


def with_facts(settings: config.Config) -> list[tuple[Bundle, dict[str, Any]]]:
    """Return every container with its facts. A container that is being removed is either returned with all its facts or
    left out."""
    names = sorted(os.listdir(folder(settings)))
    bundles = [Bundle(settings, name) for name in names if not name.startswith(".")]
    with_facts = [(one, _read(one.inside("container.json"))) for one in bundles]
    return [(one, about) for one, about in with_facts if about is not None]


def sweep(settings: config.Config) -> None:
    """Remove bundles that were half made or half removed when this program, or the node, went down.

    Call this only when the program starts.
    """
    for name in os.listdir(folder(settings)):
        container = Bundle(settings, name)
        if name.startswith(_TRASH):
            mounts.remove_tree(container.path)
        elif _read(container.inside("container.json")) is None:
            container.remove()


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            content: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):  # a power failure on the node can leave the file empty
        return None
    return content


def _write(path: str, content: str, mode: int) -> None:
    atomic.replace(path, content.encode(), mode=mode)
