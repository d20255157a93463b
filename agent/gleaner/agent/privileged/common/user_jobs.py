"""Manage the containers that an ordinary user can have, one for each Slurm job of that user on this node.

Only the helper decides such a container's name, its owner, where its folder is, and when it must be removed.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import pwd
import re
import socket
import stat
import tempfile
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from ...system import openat
from . import bundle, config, mounts
from .bundle import Bundle
from .request import LABEL_END, Refused, Spec
from .slurm_job import NoJob, Share, Slurm, SlurmJobRecord, Unknown

LABEL_SLURM_JOB = "org.gleaner.slurm-job"
_NAME = re.compile(r"own-([1-9][0-9]{0,9})-([1-9][0-9]{0,9})\Z")
_TRASH = ".gone-"
_NO_END_S = 86_400
"""A job that has no end is checked again after this long."""
WRONG_S = 1.0
"""The delay for a user who asks for an unavailable job, and for all other requests of that user."""


class Owner(NamedTuple):
    """The user to whom a container belongs."""

    uid: int
    gid: int

    @classmethod
    def of(cls, uid: int) -> Owner:
        """Return the owner with this uid. Raises `Refused` if this node has no such account."""
        try:
            return cls(uid, pwd.getpwuid(uid).pw_gid)
        except KeyError:
            raise Refused(f"uid {uid} is no account of this node's") from None


def name_of(uid: int, job: str) -> str:
    """Return the name of the one container that this user can have for this job.

    >>> name_of(4301, "66"), job_of("own-4301-66", 4301), job_of("own-4301-66", 4302)
    ('own-4301-66', '66', None)
    """
    return f"own-{uid}-{job}"


def job_of(name: str, uid: int | None = None) -> str | None:
    """Return the Slurm job of a container of that name, or None if the name is not a user job's, or not this user's."""
    match = _NAME.match(name)
    if match is None or (uid is not None and int(match.group(1)) != uid):
        return None
    return match.group(2)


def owner(uid: int) -> Owner:
    """Return an ordinary user. Raises `Refused` for root."""
    owner = Owner.of(uid)
    if 0 in owner:
        raise Refused("root's jobs are not run here")
    return owner


def share(job: SlurmJobRecord, *, uid: int, node: str) -> Share:
    """Return the part of this node that the job has. Raises `Refused` unless the job is the user's and runs here."""
    if job.uid != uid:
        raise Refused(f"job {job.id} is not yours")
    if not job.is_running:
        raise Refused(f"job {job.id} does not run: Slurm calls it {'+'.join(job.states)[:80]}")
    if node not in job.nodes:
        raise Refused(f"job {job.id} does not run on {node}, but on {', '.join(sorted(job.nodes))[:200]}")
    return job.nodes[node]


def check_spec(spec: Spec, job: SlurmJobRecord, *, owner: Owner, node: str, now_s: float) -> Spec:
    """Return the specification that is allowed for the container, with the helper's own labels. Raises `Refused`."""
    if spec.name != name_of(owner.uid, job.id):
        raise Refused(f"the container of job {job.id} is called {name_of(owner.uid, job.id)}")
    if spec.inputs:
        raise Refused("'inputs' are not for user jobs: put them into the job's folder")
    if spec.mounts:
        raise Refused("'mounts' are not for user jobs")
    if spec.labels:
        raise Refused("'labels' are not yours to give")
    has = share(job, uid=owner.uid, node=node)
    if spec.cpus > has.cpus:
        raise Refused(f"{spec.cpus} CPUs are more than job {job.id} has on {node} ({has.cpus})")
    if has.memory_mib is not None and spec.memory_mib > has.memory_mib:
        raise Refused(f"{spec.memory_mib} MiB are more than job {job.id} has on {node} ({has.memory_mib})")
    return spec._replace(labels=labels(job, now_s))


def labels(job: SlurmJobRecord, now_s: float) -> dict[str, str]:
    """Return the labels that a user job's container carries."""
    return {LABEL_SLURM_JOB: job.id, LABEL_END: str(end_s(job, now_s))}


def end_s(job: SlurmJobRecord, now_s: float) -> int:
    """Return the time at which to check again whether the job's container is allowed to stay."""
    return int(now_s) + _NO_END_S if job.end_s is None else job.end_s


def node_name(settings: config.Config) -> str:
    """Return this node's name in Slurm."""
    return settings.node_name or socket.gethostname().partition(".")[0]


class Places:
    """A limit on the user requests that are answered at the same time, for one user and for all users.

    Safe for threads.
    """

    def __init__(self, *, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._lock = threading.Lock()
        self._in_use: dict[int, int] = {}

    def take(self, uid: int) -> bool:
        """Take a place. Return False if there is no free place."""
        with self._lock:
            mine = self._in_use.get(uid, 0)
            if mine >= self._of_one or sum(self._in_use.values()) >= self._of_all:
                return False
            self._in_use[uid] = mine + 1
            return True

    def release(self, uid: int) -> None:
        """Free a place again."""
        with self._lock:
            self._in_use[uid] -= 1
            if not self._in_use[uid]:
                del self._in_use[uid]


class UserJobs:
    """The part of the helper on this node that serves users."""

    def __init__(self, settings: config.Config, slurm: Slurm) -> None:
        self._settings = settings
        self._slurm = slurm
        self._turns: dict[int, threading.Lock] = {}

    def set_up(self) -> None:
        """Make the folder in which each user can enter only their own part, and remove leftovers from it.

        Raises `config.Misconfigured` if the folder does not belong to root.
        """
        path = self._settings.users_work
        os.makedirs(path, mode=0o711, exist_ok=True)
        facts = os.lstat(path)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != 0:
            raise config.Misconfigured(f"{path} must be a folder of root's")
        os.chmod(path, 0o711)  # noqa: S103 - each entry can be read only by its user
        for name in self.folders_without_container():
            self.remove_folder(name)

    def admit(self, owner: Owner, number: str) -> dict[str, Any]:
        """Return the job's part of the node, and the paths of its folder and its handshakes. Raises `Refused`."""
        with self._turn_of(owner.uid):
            has = share(self._slurm.job(number), uid=owner.uid, node=node_name(self._settings))
        name = name_of(owner.uid, number)
        with suppress(FileExistsError):
            os.mkdir(self.folder(name), 0o711)
        for path in (self.job_folder(name), handshakes(self._settings, name)):
            make_theirs(path, owner)
        return {
            "name": name,
            "folder": self.job_folder(name),
            "handshakes": handshakes(self._settings, name),
            "cpus": has.cpus,
            "memory_mib": has.memory_mib,
        }

    def spec(self, owner: Owner, spec: Spec) -> Spec:
        """Return the specification that is allowed for a user's container. Raises `Refused`."""
        number = job_of(spec.name, owner.uid)
        if number is None:
            raise Refused("'name' is not that of a container of yours")
        with self._turn_of(owner.uid):
            job = self._slurm.job(number)
            return check_spec(spec, job, owner=owner, node=node_name(self._settings), now_s=time.time())

    @contextmanager
    def _turn_of(self, uid: int) -> Generator[None, None, None]:
        """Send Slurm one request at a time for each user, so that no user waits for another user's requests."""
        with self._turns.setdefault(uid, threading.Lock()):
            try:
                yield
            except (Refused, NoJob):
                time.sleep(WRONG_S)
                raise

    def must_run(self, owner: Owner, name: str, *, anew: bool = False) -> None:
        """Check that the container's job still runs here.

        Raises `Refused` or `NoJob` if it does not, and `Unknown` if Slurm does not answer.
        """
        with self._turn_of(owner.uid):
            job = self._slurm.job(job_of(name, owner.uid) or "", anew=anew)
            share(job, uid=owner.uid, node=node_name(self._settings))

    def goes_on(self, container: Bundle) -> bool:
        """Return True if the container's job runs, or if Slurm does not answer."""
        try:
            return self.still_runs(container.facts()) is not None
        except Unknown:
            return True

    def end_s(self, container: Bundle) -> float:
        """Return the time when a save of the container is given up: its job's end, or a day from now."""
        about = container.facts()
        try:
            with self._turn_of(about["uid"]):
                job = self._slurm.job(about["labels"][LABEL_SLURM_JOB])
            return end_s(job, time.time())
        except Exception:  # whatever the error is, the save is more important
            return time.time() + _NO_END_S

    def still_runs(self, about: dict[str, Any]) -> int | None:
        """Return the job's end, which might have been moved, or None if the job has ended. Raises `Unknown`."""
        try:
            job = self._slurm.job(about["labels"][LABEL_SLURM_JOB])
        except NoJob:
            return None
        is_here = job.is_running and job.uid == about["uid"] and node_name(self._settings) in job.nodes
        return end_s(job, time.time()) if is_here else None

    def folder(self, name: str) -> str:
        """Return a container's folder outside its bundle.

        The folder belongs to root, and two folders in it belong to the owner.
        """
        return os.path.join(self._settings.users_work, name)

    def unmounted_folder(self, name: str) -> str:
        """Return this folder after unmounting everything that its owner mounted there, so that no file is hidden."""
        mounts.unmount_below(self.folder(name))
        return self.folder(name)

    def job_folder(self, name: str) -> str:
        """Return the path of the job's own folder."""
        return os.path.join(self.folder(name), "job")

    def folders_without_container(self) -> list[str]:
        """Return the folders that have no container.

        Either their jobs have no container yet, or the container was removed, or the folder was not removed completely.
        """
        at = bundle.folder(self._settings)
        return [name for name in os.listdir(self._settings.users_work) if not os.path.exists(os.path.join(at, name))]

    def remove_folder(self, name: str) -> None:
        """Remove a container's folder, if it exists. If its user prevents this, the removal is tried again later."""
        trash = tempfile.mkdtemp(prefix=_TRASH, dir=self._settings.users_work)
        with suppress(FileNotFoundError):
            os.rename(self.folder(name), os.path.join(trash, "folder"))
        mounts.remove_tree(trash)

    def remove_forgotten(self) -> None:
        """Remove folders that have no container and whose jobs no longer run here. Raises `Unknown`."""
        for name in self.folders_without_container():
            number = job_of(name)
            uid = None if number is None else int(name.split("-")[1])
            about = {"labels": {LABEL_SLURM_JOB: number}, "uid": uid}
            if number is None or self.still_runs(about) is None:
                self.remove_folder(name)

    @contextmanager
    def open_folder(self, name: str) -> Generator[int, None, None]:
        """Yield a descriptor of the job's folder. The owner cannot change the folders beside it, which belong to root.

        Raises `Refused` if the owner has mounted something on the folder, because the daemon behind such a mount could
        report anything.
        """
        flags = os.O_PATH | openat.FOLDER
        try:
            descriptor = os.open(self.job_folder(name), flags)
        except OSError as error:
            raise Refused(f"{self.job_folder(name)} cannot be opened: {error.strerror}") from error
        with openat.closing_fd(descriptor), openat.closing_fd(os.open(self._settings.users_work, flags)) as whole:
            if mounts.mount_id(descriptor) != mounts.mount_id(whole):
                raise Refused(f"something is mounted on {self.job_folder(name)}: unmount it")
            yield descriptor

    def clear(self, number: str) -> None:
        """Remove the folders of a finished job, except those that have a container."""
        for name in self.folders_without_container():
            if job_of(name) == number:
                self.remove_folder(name)


def handshakes(settings: config.Config, name: str) -> str:
    """Return the folder in which the program of the container's owner listens for the shim."""
    return os.path.join(settings.users_work, name, "handshakes")


def make_theirs(path: str, owner: Owner) -> None:
    """Make a folder that only the user can enter, inside one that belongs to root."""
    os.makedirs(path, mode=0o700, exist_ok=True)
    with openat.closing_fd(os.open(path, openat.FOLDER)) as folder:
        os.fchown(folder, owner.uid, owner.gid)
        os.fchmod(folder, 0o700)
