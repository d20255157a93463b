"""What the helper keeps of one container on disk, and how anybody on root's side knows how it is.

A bundle is a folder of root's alone below `CONFIG.bundles`. Its `container.json` is written last when it is made, and
it is renamed before it is removed: so one that was half made or half removed when the power went does not count.

The container's monitor (`monitor`) holds the bundle's FIFO `alive` open for writing as long as it lives. Whoever wants
to know opens it for reading: no number of a process is ever looked up that may be another's by now.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import json
import os
import select
import stat
import subprocess
import tempfile
from typing import Any, NamedTuple

from . import config, folders

_GONE = ".gone-"
_ROOM, _ROOM_BYTES = "exit.room", 512
"""Taken when there still is some; becomes `exit.json`."""
_COUNT_WITHIN_S = 300
_OWN_FILES = {
    "hostname": "gleaner\n",
    "hosts": "127.0.0.1\tlocalhost\n::1\tlocalhost\n127.0.1.1\tgleaner\n",
    "resolv.conf": "",
}


class NoSuch(Exception):
    """There is no container of this name."""


class Exists(Exception):
    """There is one already."""


class Uncounted(Exception):
    """Nobody knows how much something takes on the disk; one line."""


class Taken(NamedTuple):
    """Room on the disk."""

    bytes: int
    files: int
    """Files and folders: a disk may be full of them that has bytes left."""


class Bundle:
    """One container's folder. The name has been checked before."""

    def __init__(self, settings: config.Config, name: str) -> None:
        self.name = name
        self.path = os.path.join(folder(settings), name)

    def inside(self, name: str) -> str:
        """The path of one of its files."""
        return os.path.join(self.path, name)

    def make(self, facts: dict[str, Any], oci: dict[str, Any]) -> None:
        """All that the container needs before it runs. Raises `Exists`."""
        try:
            os.mkdir(self.path, 0o700)
        except FileExistsError as error:
            raise Exists(f"there is a container {self.name} already") from error
        try:
            for name in ("rootfs", "upper", "work", "job"):
                os.mkdir(self.inside(name), 0o755)
            for name, content in _OWN_FILES.items():
                _write(self.inside(name), content, 0o644)
            os.mkfifo(self.inside("alive"), 0o600)
            _write(self.inside("log"), "", 0o600)
            _write(self.inside(_ROOM), " " * _ROOM_BYTES, 0o600)
            _write(self.inside("config.json"), json.dumps(oci), 0o600)
            _write(self.inside("container.json"), json.dumps(facts), 0o600)
        except OSError:
            self.remove()  # else nobody could have the name
            raise

    def facts(self) -> dict[str, Any]:
        """What it was made with. Raises `NoSuch`."""
        found = _read(self.inside("container.json"))
        if found is None:
            raise NoSuch(f"there is no container {self.name}")
        return found

    def owner_uid(self, settings: config.Config) -> int:
        """Who may ask for it, and whose processes are in it. Raises `NoSuch`."""
        return owner_uid(settings, self.facts())

    def put_off(self, label: str, value: str) -> None:
        """Change one of its labels."""
        about = self.facts()
        about["labels"][label] = value
        _write(self.inside("container.json"), json.dumps(about), 0o600)

    def exit(self) -> dict[str, Any] | None:
        """How it ended; None if it has not, or if its monitor was killed and nobody knows."""
        return _read(self.inside("exit.json"))

    def record_exit(self, said: dict[str, Any]) -> None:
        """Keep how it ended, also on a full disk: else a job that is done would be done again."""
        with open(self.inside(_ROOM), "r+", encoding="ascii") as file:
            file.write(json.dumps(said))
        os.replace(self.inside(_ROOM), self.inside("exit.json"))

    def is_monitored(self) -> bool:
        """Whether its monitor lives, so that it runs, or its end is about to be written down."""
        return self.until_ended(None, wait_s=0) is False

    def until_ended(self, connection: int | None, *, wait_s: float | None = None) -> bool:
        """Wait until its monitor has gone: True. False if time is up, or the other side of the connection has gone."""
        try:
            alive = os.open(self.inside("alive"), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return True
        try:
            # One who opens a FIFO hears of the end of writers whom it has seen: so look first, then wait.
            try:
                os.read(alive, 1)
                return True
            except BlockingIOError:
                pass
            watched = [alive] if connection is None else [alive, connection]
            ready = select.poll()  # `select` knows no descriptor above 1023
            for one in watched:
                ready.register(one, select.POLLIN)
            return alive in dict(ready.poll(None if wait_s is None else wait_s * 1000))
        finally:
            os.close(alive)

    def remove(self) -> None:
        """Its files, its written layer among them. Its processes must have ended."""
        gone = tempfile.mkdtemp(prefix=_GONE, dir=os.path.dirname(self.path))
        with contextlib.suppress(FileNotFoundError):
            os.rename(self.path, os.path.join(gone, "bundle"))
        folders.remove(gone)

    def taken(self, *others: str) -> Taken:
        """What it takes on the disk, with other folders of its own. Raises `Uncounted`."""
        return taken(self.path, *others)


def taken(*paths: str) -> Taken:
    """What folders take on the disk. `du` counts folders of any depth, and a file with several names once.

    Raises `Uncounted` when that takes too long.
    """
    return Taken(_du("--block-size=1", *paths), _du("--inodes", *paths))


def _du(what: str, *paths: str) -> int:
    words = ["du", "-s", "-x", what, "--", *paths]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=_COUNT_WITHIN_S
        )
    except subprocess.TimeoutExpired as error:
        raise Uncounted(f"{' '.join(paths)[:200]} was not counted within {_COUNT_WITHIN_S} s") from error
    return sum(int(line.split()[0]) for line in done.stdout.splitlines())  # nothing for one that is gone meanwhile


def owner_uid(settings: config.Config, facts: dict[str, Any]) -> int:
    """Whose a container with these facts is: the service account's, unless it is a user's own job."""
    uid: int = facts.get("uid", settings.agent_uid)
    return uid


def folder(settings: config.Config) -> str:
    """Where all bundles are; made, and found to be root's alone."""
    path = os.path.join(settings.bundles, "containers")
    os.makedirs(path, mode=0o700, exist_ok=True)
    return path


def check_place(settings: config.Config) -> None:
    """Make the place for bundles, and see to it that nobody but root can look into it or put another in its place.

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


def short_lived(settings: config.Config) -> tempfile.TemporaryDirectory[str]:
    """A folder for the time of a call; it is swept if the call does not see its end."""
    return tempfile.TemporaryDirectory(prefix=_GONE, dir=folder(settings))


def all_bundles(settings: config.Config) -> list[Bundle]:
    """Every container, ended ones too."""
    return [one for one, _ in known(settings)]


def known(settings: config.Config) -> list[tuple[Bundle, dict[str, Any]]]:
    """Every container with its facts; one that is being removed is there with them, or not at all."""
    names = sorted(os.listdir(folder(settings)))
    found = [Bundle(settings, name) for name in names if not name.startswith(".")]
    with_facts = [(one, _read(one.inside("container.json"))) for one in found]
    return [(one, about) for one, about in with_facts if about is not None]


def sweep(settings: config.Config) -> None:
    """What was half made or half removed when this program, or the node, went down. Only at the start."""
    for name in os.listdir(folder(settings)):
        found = Bundle(settings, name)
        if name.startswith(_GONE):
            folders.remove(found.path)
        elif _read(found.inside("container.json")) is None:
            found.remove()


def _read(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            found: dict[str, Any] = json.load(file)
    except (FileNotFoundError, ValueError):  # a node that lost its power may have left it empty
        return None
    return found


def _write(path: str, content: str, mode: int) -> None:
    """Whole or not at all."""
    with open(path + ".new", "w", encoding="utf-8", opener=lambda name, flags: os.open(name, flags, mode)) as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
    os.replace(path + ".new", path)
