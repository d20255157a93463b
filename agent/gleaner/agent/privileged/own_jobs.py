"""Which containers an ordinary user may have: one for each Slurm job of its own that runs on this node now.

The helper alone says what such a container is called, whose it is, where its folder lies, and when it has to be gone.
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
from contextlib import ExitStack, contextmanager, suppress
from typing import Any, NamedTuple

from . import bundle, config, folders
from .bundle import Bundle
from .request import LABEL_END, Refused, Spec
from .slurm_jobs import NoJob, Share, Slurm, SlurmJob, Unknown

LABEL_SLURM_JOB = "org.gleaner.slurm-job"
_NAME = re.compile(r"own-([1-9][0-9]{0,9})-([1-9][0-9]{0,9})\Z")
_GONE = ".gone-"
_NO_END_S = 86_400
"""A job that has no end is looked at again after this long."""
WRONG_S = 1.0
"""A user who asks for a job that is not there to be had waits so long, and all that it asks for waits with it."""


class Owner(NamedTuple):
    """Whose a container is."""

    uid: int
    gid: int

    @classmethod
    def of(cls, uid: int) -> Owner:
        """Raises `Refused` for one that is no account here."""
        try:
            return cls(uid, pwd.getpwuid(uid).pw_gid)
        except KeyError:
            raise Refused(f"uid {uid} is no account of this node's") from None


def name_of(uid: int, job: str) -> str:
    """The one container that this user may have for this job.

    >>> name_of(4301, "66"), job_of("own-4301-66", 4301), job_of("own-4301-66", 4302)
    ('own-4301-66', '66', None)
    """
    return f"own-{uid}-{job}"


def job_of(name: str, uid: int | None = None) -> str | None:
    """The Slurm job of a container of that name; None if it is no own job's, or not this user's."""
    found = _NAME.match(name)
    if found is None or (uid is not None and int(found.group(1)) != uid):
        return None
    return found.group(2)


def owner(uid: int) -> Owner:
    """An ordinary user. Raises `Refused` for any other."""
    found = Owner.of(uid)
    if 0 in found:
        raise Refused("root's own jobs are not run here")
    return found


def share(job: SlurmJob, *, uid: int, node: str) -> Share:
    """What the job has of this node. Raises `Refused` unless it is the user's, and runs here."""
    if job.uid != uid:
        raise Refused(f"job {job.id} is not yours")
    if not job.is_running:
        raise Refused(f"job {job.id} does not run: Slurm calls it {'+'.join(job.states)[:80]}")
    if node not in job.nodes:
        raise Refused(f"job {job.id} does not run on {node}, but on {', '.join(sorted(job.nodes))[:200]}")
    return job.nodes[node]


def checked(spec: Spec, job: SlurmJob, *, owner: Owner, node: str, now_s: float) -> Spec:
    """The container as it may be, with labels of ours. Raises `Refused`."""
    if spec.name != name_of(owner.uid, job.id):
        raise Refused(f"the container of job {job.id} is called {name_of(owner.uid, job.id)}")
    if spec.labels:
        raise Refused("'labels' are not yours to give")
    has = share(job, uid=owner.uid, node=node)
    if spec.cpus > has.cpus:
        raise Refused(f"{spec.cpus} CPUs are more than job {job.id} has on {node} ({has.cpus})")
    if has.memory_mib is not None and spec.memory_mib > has.memory_mib:
        raise Refused(f"{spec.memory_mib} MiB are more than job {job.id} has on {node} ({has.memory_mib})")
    return spec._replace(labels=labels(job, now_s))


def labels(job: SlurmJob, now_s: float) -> dict[str, str]:
    """What a container carries."""
    return {LABEL_SLURM_JOB: job.id, LABEL_END: str(end_s(job, now_s))}


def end_s(job: SlurmJob, now_s: float) -> int:
    """When it is to be looked at again, whether it may stay."""
    return int(now_s) + _NO_END_S if job.end_s is None else job.end_s


def node_name(settings: config.Config) -> str:
    """What Slurm calls this node."""
    return settings.node_name or socket.gethostname().partition(".")[0]


class Places:
    """How many requests of ordinary users are answered at once: of one, and of all. Safe for threads."""

    def __init__(self, *, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._lock = threading.Lock()
        self._taken: dict[int, int] = {}

    def take(self, uid: int) -> bool:
        """Whether there was one left."""
        with self._lock:
            mine = self._taken.get(uid, 0)
            if mine >= self._of_one or sum(self._taken.values()) >= self._of_all:
                return False
            self._taken[uid] = mine + 1
            return True

    def give_back(self, uid: int) -> None:
        """One is free again."""
        with self._lock:
            self._taken[uid] -= 1
            if not self._taken[uid]:
                del self._taken[uid]


class OwnJobs:
    """The user's side of the helper, on this node."""

    def __init__(self, settings: config.Config, slurm: Slurm) -> None:
        self._settings = settings
        self._slurm = slurm
        self._turns: dict[int, threading.Lock] = {}

    def set_up(self) -> None:
        """The folder that users can enter, each its own part of it; what was left there is removed."""
        path = self._settings.users_work
        os.makedirs(path, mode=0o711, exist_ok=True)
        facts = os.lstat(path)
        if not stat.S_ISDIR(facts.st_mode) or facts.st_uid != 0:
            raise config.Misconfigured(f"{path} must be a folder of root's")
        os.chmod(path, 0o711)  # noqa: S103 - what is in it is each user's alone
        for name in self.folders_without_container():
            self.remove_folder(name)

    def admit(self, owner: Owner, number: str) -> dict[str, Any]:
        """What the job has here, where its folder is, and where its program is to wait. Raises `Refused`."""
        with self._turn_of(owner.uid):
            has = share(self._slurm.job(number), uid=owner.uid, node=node_name(self._settings))
        name = name_of(owner.uid, number)
        with suppress(FileExistsError):
            os.mkdir(self.folder(name), 0o711)
        for path in (self.job_folder(name), meetings(self._settings, name)):
            _make_theirs(path, owner)
        return {
            "name": name,
            "folder": self.job_folder(name),
            "meetings": meetings(self._settings, name),
            "cpus": has.cpus,
            "memory_mib": has.memory_mib,
        }

    def spec(self, owner: Owner, spec: Spec) -> Spec:
        """A container of the user's, as it may be. Raises `Refused`."""
        number = job_of(spec.name, owner.uid)
        if number is None:
            raise Refused("'name' is not that of a container of yours")
        with self._turn_of(owner.uid):
            job = self._slurm.job(number)
            return checked(spec, job, owner=owner, node=node_name(self._settings), now_s=time.time())

    @contextmanager
    def _turn_of(self, uid: int) -> Generator[None, None, None]:
        """Slurm is asked one thing at a time for each user, so that nobody waits for what another asks."""
        with self._turns.setdefault(uid, threading.Lock()):
            try:
                yield
            except (Refused, NoJob):
                time.sleep(WRONG_S)
                raise

    def must_run(self, owner: Owner, name: str, *, anew: bool = False) -> None:
        """Raises `Refused` or `NoJob` unless the container's job still runs here; `Unknown` if Slurm is away."""
        with self._turn_of(owner.uid):
            job = self._slurm.job(job_of(name, owner.uid) or "", anew=anew)
            share(job, uid=owner.uid, node=node_name(self._settings))

    def goes_on(self, made: Bundle) -> bool:
        """Whether the container's job runs, as far as Slurm says."""
        try:
            return self.still_runs(made.facts()) is not None
        except Unknown:
            return True

    def end_s(self, made: Bundle) -> float:
        """When a save of it is given up, by Slurm's latest word or else by the label."""
        about = made.facts()
        try:
            with self._turn_of(about["uid"]):
                job = self._slurm.job(about["labels"][LABEL_SLURM_JOB])
            return end_s(job, time.time())
        except Exception:  # whatever it is, the save comes first
            return time.time() + _NO_END_S

    def still_runs(self, about: dict[str, Any]) -> int | None:
        """Its new end, if its job was given more time; None if it has ended. Raises `Unknown`."""
        try:
            job = self._slurm.job(about["labels"][LABEL_SLURM_JOB])
        except NoJob:
            return None
        is_here = job.is_running and job.uid == about["uid"] and node_name(self._settings) in job.nodes
        return end_s(job, time.time()) if is_here else None

    def folder(self, name: str) -> str:
        """What one of those containers has beside its bundle: a folder of root's, with two of its owner's in it."""
        return os.path.join(self._settings.users_work, name)

    def seen_folder(self, name: str) -> str:
        """The same, with all that its owner has mounted there taken away: nothing hides below it."""
        folders.unmount_below(self.folder(name))
        return self.folder(name)

    def job_folder(self, name: str) -> str:
        """The job's own."""
        return os.path.join(self.folder(name), "job")

    def folders_without_container(self) -> list[str]:
        """Of jobs that have not got that far, or of which it was removed; and what was not removed whole."""
        at = bundle.folder(self._settings)
        return [name for name in os.listdir(self._settings.users_work) if not os.path.exists(os.path.join(at, name))]

    def remove_folder(self, name: str) -> None:
        """It may be gone. What its user keeps from being removed is tried again at another time."""
        gone = tempfile.mkdtemp(prefix=_GONE, dir=self._settings.users_work)
        with suppress(FileNotFoundError):
            os.rename(self.folder(name), os.path.join(gone, "folder"))
        folders.remove(gone)

    def remove_forgotten(self) -> None:
        """Folders without a container, of jobs that do not run here any more. Raises `Unknown`."""
        for name in self.folders_without_container():
            number = job_of(name)
            uid = None if number is None else int(name.split("-")[1])
            about = {"labels": {LABEL_SLURM_JOB: number}, "uid": uid}
            if number is None or self.still_runs(about) is None:
                self.remove_folder(name)

    @contextmanager
    def opened_folder(self, name: str) -> Generator[int, None, None]:
        """It, whatever its owner has done to what lies beside it (nothing: that is root's).

        Raises `Refused` if its owner has mounted something on it, whose daemon could tell root anything.
        """
        flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        with ExitStack() as opened:
            whole = os.open(self._settings.users_work, flags)
            opened.callback(os.close, whole)
            try:
                descriptor = os.open(self.job_folder(name), flags)
            except OSError as error:
                raise Refused(f"{self.job_folder(name)} cannot be opened: {error.strerror}") from error
            opened.callback(os.close, descriptor)
            if folders.mount_id(descriptor) != folders.mount_id(whole):
                raise Refused(f"something is mounted on {self.job_folder(name)}: unmount it")
            yield descriptor

    def clear(self, number: str) -> None:
        """After a job's end: folders for which there never was a container."""
        for name in self.folders_without_container():
            if job_of(name) == number:
                self.remove_folder(name)


def meetings(settings: config.Config, name: str) -> str:
    """Where the program of such a container waits for root."""
    return os.path.join(settings.users_work, name, "meetings")


def _make_theirs(path: str, owner: Owner) -> None:
    """A folder of the user's alone, in one of root's."""
    with suppress(FileExistsError):
        os.mkdir(path, 0o700)
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        os.fchown(folder, owner.uid, owner.gid)
        os.fchmod(folder, 0o700)
    finally:
        os.close(folder)
