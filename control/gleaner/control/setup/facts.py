"""The facts that the checks judge: what was read of one machine. Plain records; `readers` fills them."""

import errno
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar
from urllib.parse import urlsplit

from gleaner.agent.privileged.common.config import Config
from gleaner.control.settings import Settings

if TYPE_CHECKING:  # it loads the agent's libraries, which only nodes have
    from gleaner.agent.settings import AgentSettings

ACCOUNT_LIMITS = ("GrpJobs", "GrpSubmitJobs", "MaxJobs", "MaxSubmitJobs", "GrpTRES", "MaxTRESPerJob", "MaxWall")
QOS_LIMITS = (
    "GrpJobs", "GrpSubmitJobs", "MaxJobsPerUser", "MaxSubmitJobsPerUser", "MaxJobsPerAccount",
    "MaxSubmitJobsPerAccount", "GrpTRES", "MaxTRESPerJob", "MaxTRESPerUser", "MaxWall",
)  # fmt: skip
"""Slurm's limits that let nothing start if they are too small."""
TRIAL = "sbatch --test-only"
"""The name of the trial submission among the programs, see `readers`."""
Value = TypeVar("Value")
_LONGEST = 160
"""The most letters of a program's output in a finding."""


class MachineRole(StrEnum):
    """The part of a machine in Gleaner."""

    CONTROL = "control"
    NODE = "node"
    CLIENT = "client"


@dataclass(frozen=True, slots=True)
class Unread:
    """The reason, in one line, why a fact was not read. `is_missing`: what was to be read is not there."""

    why: str
    is_missing: bool = False

    @property
    def is_denied(self) -> bool:
        """True if the rights of whoever runs the doctor did not suffice."""
        return os.strerror(errno.EACCES) in self.why


class NotRead(Exception):
    """A check needs a fact that was not read."""


UNTRUSTED, MISNAMED = "is not trusted", "is not for that name"
"""Words about a certificate that no authority of ours vouches for, and about one that has other names."""
NOT_INSTALLED = "is not installed here"
"""Words about a library of Python's."""
HANGS = "accepts connections"
"""Words about a server that then does not answer."""
NOT_ASKED = Unread("this was not read")


@dataclass(frozen=True, slots=True)
class Output:
    """A program that has ended: its exit status, and what it has printed."""

    status: int
    stdout: str
    stderr: str = ""

    @property
    def complaint(self) -> str:
        """The last line that the program has printed, or its exit status."""
        lines = [line.strip() for line in f"{self.stdout}\n{self.stderr}".splitlines() if line.strip()]
        return lines[-1][:_LONGEST] if lines else f"exit status {self.status}"


class FolderOnTheWay(NamedTuple):
    """A folder that has to be entered to reach a file. Its owner, group and mode."""

    path: str
    uid: int
    gid: int
    mode: int


class Refusal(NamedTuple):
    """Why an account cannot read a file, in one line, and the command that lets it enter a folder, if it is that."""

    why: str
    enter: str = ""

    def remedy(self, usual: str) -> str:
        """Return what to do; `usual` if it is the file itself."""
        return self.enter or usual


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file: its text, owner and mode (the nine bits of permissions)."""

    text: str
    uid: int = 0
    mode: int = 0o644
    gid: int = 0
    changed_s: float = 0.0
    """The time of the last change of its text, seconds since the epoch."""
    folders: tuple[FolderOnTheWay, ...] = ()
    """The folders from the root folder to it."""

    @property
    def is_writable_by_others(self) -> bool:
        """True if others than its owner may write to it."""
        return bool(self.mode & 0o022)

    def is_readable_by(self, account: "Account") -> bool:
        """Return True if the file's owner, group and mode let this account read it."""
        return account.may(0o4, uid=self.uid, gid=self.gid, mode=self.mode)


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder: its owner and mode, and the free space of its file system: bytes, and inodes (files)."""

    uid: int
    mode: int
    free_bytes: int
    free_files: int = sys.maxsize
    path: str = ""
    all_bytes: int = sys.maxsize
    all_files: int = 0
    """Zero if the file system has no number of files that it can hold."""


@dataclass(frozen=True, slots=True)
class StorageFacts:
    """The storage folder, as the service account sees it. An empty `trouble` says that the trial writes worked."""

    uid: int
    mode: int
    is_set_up: bool
    id: str
    """The storage's own number; empty if it has none yet."""
    free_bytes: int
    free_files: int
    trouble: str
    wrote_s: float
    """The time that the trial writes took."""
    inode: int = 0
    """The inode of the file with the number, and the time of its last change (`storage_root.StorageNumber`)."""
    changed_s: float = 0.0
    key_notes: Mapping[str, tuple[str, float]] = field(default_factory=dict[str, tuple[str, float]])
    """By node, the fingerprint of its key of user jobs, and the time at which an agent there noted it."""
    foreign: str = ""
    """A folder of Gleaner's in it that has another owner."""
    foreign_uid: int = 0


@dataclass(frozen=True, slots=True)
class QueueFacts:
    """The service account's way to the queue's SQLite database. Empty texts: nothing keeps it from writing."""

    refused: str
    """The first file, or the folder, that the account cannot write."""
    uid: int
    """The owner of that file."""
    mode: int
    is_read_only: bool
    """True if its file system is."""
    holder: str
    """The program that has held the lock of writers for as long as was looked."""
    holder_pid: int
    is_holder_ours: bool


@dataclass(frozen=True, slots=True)
class SecretKeyFacts:
    """The file of the key for groups' secrets. An empty `trouble` says that the service account can use it."""

    uid: int
    mode: int
    is_missing: bool
    is_on_storage: bool
    trouble: str
    tried: int = 0
    """The number of groups' stored secrets that were tried with the key."""
    unopened: int = 0
    """Those of them that it does not open."""


@dataclass(frozen=True, slots=True)
class UserJobsKey:
    """The node's key of user jobs: its fingerprint, and when its file was last changed, in seconds since the epoch."""

    fingerprint: str
    changed_s: float
    node: str


@dataclass(frozen=True, slots=True)
class StoredFacts:
    """A few rows of the queue's database."""

    secrets: int
    """The number of groups' secrets."""
    runtimes: tuple[str, ...]
    """The runtimes of all agents so far: "docker", "criu"."""


@dataclass(frozen=True, slots=True)
class EpochFacts:
    """The newest epoch that the Slurm admin service has kept in its file (0 for none), and that of control's queue."""

    file: str
    heard: int
    controls: int


@dataclass(frozen=True, slots=True)
class HeartbeatFacts:
    """The file in which the Slurm admin service writes down that control is alive while entitlements are on."""

    file: str
    age_s: float | None
    """None if there is no such file, or no time in it."""
    fresh_for_s: float
    """The age from which no job is held at its submission."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate that an authority vouches for: the names in it, and its end (seconds since the epoch)."""

    names: tuple[str, ...]
    ends_s: float


@dataclass(frozen=True, slots=True)
class ControlFacts:
    """Control's answer to `/health`."""

    url: str
    status: int
    health: Mapping[str, Any]
    """Empty if the answer was none of Gleaner's."""
    ahead_s: float | None
    """By how much this machine's clock is ahead of control's; None if control did not say its time."""
    unsure_s: float
    """The most by which `ahead_s` may be wrong."""
    certificate: Certificate | None
    """None with plain http."""
    is_here: bool = False
    """True if that control runs on this machine."""


@dataclass(frozen=True, slots=True)
class Account:
    """An account of this machine."""

    name: str
    uid: int
    groups: tuple[str, ...]
    gids: tuple[int, ...] = ()

    def class_of(self, uid: int, gid: int) -> Literal["u", "g", "o"]:
        """Return the class, as chmod names it, whose bits of a mode count for the account: owner, group or others."""
        return "u" if self.uid == uid else "g" if gid in self.gids else "o"

    def may(self, bits: int, *, uid: int, gid: int, mode: int) -> bool:
        """Return True if the account has these bits of a mode (4 to read, 1 to enter) on what has this owner."""
        has = mode >> {"u": 6, "g": 3, "o": 0}[self.class_of(uid, gid)]
        return self.uid == 0 or has & bits == bits


@dataclass(frozen=True, slots=True)
class Programs:
    """Root's programs on a node, against the record of the installer and against this version of Gleaner."""

    many: int
    changed: tuple[str, ...]
    """Files that are gone, or that differ from the installer's record."""
    other_version: tuple[str, ...]
    """Files that differ from those of this version."""
    foreign: tuple[str, ...]
    """Files that others than root may change."""


@dataclass(frozen=True, slots=True)
class Facts:
    """All that was read of one machine. What a role does not need stays `NOT_ASKED`."""

    role: MachineRole
    now_s: float
    uid: int
    kernel: str
    version: str
    """The installed version of Gleaner."""
    settings: Settings | Unread = NOT_ASKED
    settings_file: str = ""
    """The file of those settings; empty if there is none."""
    agent: "AgentSettings | Unread" = NOT_ASKED
    privileged: Config | Unread = NOT_ASKED
    programs: Mapping[str, Output | Unread] = field(default_factory=dict[str, Output | Unread])
    """By the names in `readers`."""
    files: Mapping[str, TextFile | Unread] = field(default_factory=dict[str, TextFile | Unread])
    """By path."""
    folders: Mapping[str, Folder | Unread] = field(default_factory=dict[str, Folder | Unread])
    """By path."""
    storage: StorageFacts | Unread = NOT_ASKED
    control: ControlFacts | Unread = NOT_ASKED
    output_folder: Folder | Unread = NOT_ASKED
    """A node's folder for what agents print."""
    large_request: str | Unread = NOT_ASKED
    """Empty if a request that needs several packets gets to control."""
    copies: Folder | Unread = NOT_ASKED
    """The folder in which containerd leaves a copy of a restored container's memory."""
    token: Output | Unread = NOT_ASKED
    """Control's answer to a question with the caller's token: the status, and the reason."""
    problem: str | Unread = NOT_ASKED
    """The trouble with agents or Slurm that control tells of; empty if there is none."""
    certificate: Certificate | Unread = NOT_ASKED
    """The one in control's settings."""
    account: Account | Unread = NOT_ASKED
    """The service account."""
    queue: QueueFacts | Unread = NOT_ASKED
    secret_key: SecretKeyFacts | Unread = NOT_ASKED
    audit: str | Unread = NOT_ASKED
    """Empty if the service account may write the file for audit lines, else one line about what it may not write."""
    schema: str | Unread = NOT_ASKED
    """Empty if the database has this version's tables, else what is wrong."""
    stored: StoredFacts | Unread = NOT_ASKED
    installed: Programs | Unread = NOT_ASKED
    docker_socket: str | Unread = NOT_ASKED
    """Empty if the service account may open Docker's socket, else the socket's owner, group and mode."""
    helper: str | Unread = NOT_ASKED
    """The node helper's answer."""
    user_jobs_key: UserJobsKey | Unread = NOT_ASKED
    munge: str | Unread = NOT_ASKED
    """The name of the machine's own account in a credential that munge made and read."""
    slurm_admin: str | Unread = NOT_ASKED
    """Empty if the Slurm admin service answers."""
    slurm_admin_account: str = ""
    """The name of the account of that service; empty if it is not known."""
    epochs: EpochFacts | Unread = NOT_ASKED
    heartbeat: HeartbeatFacts | Unread = NOT_ASKED
    commands: tuple[str, ...] | Unread = NOT_ASKED
    """Those of our programs, and of the system's that matter here, that run now."""
    slurmd_limits: str | Unread = NOT_ASKED
    """The limits of slurmd as the kernel prints them (`/proc/PID/limits`)."""
    docker_folder: Folder | Unread = NOT_ASKED
    """The folder in which the running Docker Engine keeps images, and what containers write."""
    host: str = ""
    """The short name of this machine."""
    memory_mib: int = 0
    cpus: int = 0
    up_s: float = 0.0
    """The time since this machine was started, without the time for which it slept, as systemd counts."""
    user: str = ""
    """The name of whoever runs this."""
    has_systemd: bool = False
    overrides: frozenset[str] = frozenset()
    """The names of the environment's variables that stand above the file of settings."""

    @property
    def is_root(self) -> bool:
        """True if the doctor may see all."""
        return self.uid == 0

    @property
    def is_account_or_root(self) -> bool:
        """True if the doctor can act as the service account. Anybody else tries only what they may do themselves."""
        return self.is_root or (not isinstance(self.account, Unread) and self.uid == self.account.uid)

    def output(self, name: str) -> Output:
        """Return what a program has printed. Raises `NotRead` if it was not run, or has failed."""
        found = needed(self.programs.get(name, NOT_ASKED))
        if found.status != 0:
            raise NotRead(f"{name} failed: {found.complaint}")
        return found

    def file(self, path: str) -> TextFile | Unread:
        """Return a file."""
        return self.files.get(path, NOT_ASKED)

    def refusal_to_account(self, path: str) -> Refusal | None:
        """Return why the service account cannot read this file; None if it can, or if that is not known.

        Root can read everything, so its success proves nothing.
        """
        file, account = self.file(path), self.account
        if isinstance(file, Unread) or isinstance(account, Unread):
            return None
        for folder in file.folders:
            if not account.may(0o1, uid=folder.uid, gid=folder.gid, mode=folder.mode):
                said = _owner_and_mode(folder.uid, folder.mode)
                return Refusal(
                    f"{account.name} cannot read {path}, since it may not enter {folder.path} ({said})",
                    f"chmod {account.class_of(folder.uid, folder.gid)}+x {folder.path}",
                )
        if file.is_readable_by(account):
            return None
        return Refusal(f"{account.name} cannot read {path} ({_owner_and_mode(file.uid, file.mode)})")


def _owner_and_mode(uid: int, mode: int) -> str:
    return f"{'root' if uid == 0 else f'uid {uid}'}'s, mode {mode:o}"


def needed(fact: Value | Unread) -> Value:
    """Return a fact that was read. Raises `NotRead`."""
    if isinstance(fact, Unread):
        raise NotRead(fact.why)
    return fact


def unit_blocks(text: str) -> list[dict[str, str]]:
    """Return what `systemctl show` says of each unit."""
    lines = (block.splitlines() for block in text.strip().split("\n\n"))
    return [{key: value for key, _, value in (line.partition("=") for line in some)} for some in lines]


def rows_in(text: str) -> list[list[str]]:
    r"""Return the rows that `sacctmgr --parsable2` has printed.

    >>> rows_in("one|root||\n\n")
    [['one', 'root', '', '']]
    """
    return [line.split("|") for line in text.splitlines() if line.strip()]


def sqlite_file(url: str) -> Path:
    """Return the file of an SQLite database.

    >>> sqlite_file("sqlite:////var/lib/gleaner/queue.db")
    PosixPath('/var/lib/gleaner/queue.db')
    """
    return Path(urlsplit(url).path.removeprefix("/"))


def trouble_in_token(text: str) -> str:
    r"""Return what is wrong with the text of a token's file; empty if it holds one token and no more.

    >>> [trouble_in_token(text) for text in ("Bearer a1", "a1\nb2\n", "'a1'", "", "a1\r\n")]
    ["begins with 'Bearer '", 'holds more than one line', 'has the token in quotes', 'is empty', '']
    """
    token = text.strip()
    if token.lower().startswith(("bearer ", "authorization:")):
        return f"begins with '{token.split(maxsplit=1)[0]} '"
    if len(token.splitlines()) > 1:
        return "holds more than one line"
    if token[:1] in {"'", '"'}:
        return "has the token in quotes"
    if not token:
        return "is empty"
    is_plain = token.isascii() and token.isprintable() and " " not in token
    return "" if is_plain else "does not hold one line of plain text"


def version_in(text: str) -> tuple[int, ...]:
    """Return the first version number in a text, for comparing; empty if there is none.

    >>> version_in("Version: 4.1.1"), version_in("slurm 24.11.5"), version_in("?")
    ((4, 1, 1), (24, 11, 5), ())
    """
    match = re.search(r"\d{1,6}(?:\.\d{1,6})+", text)
    return tuple(int(part) for part in match[0].split(".")) if match else ()


def dotted(version: tuple[int, ...]) -> str:
    """Return a version as people write it.

    >>> dotted((22, 5))
    '22.5'
    """
    return ".".join(map(str, version))
