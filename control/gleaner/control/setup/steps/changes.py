"""The records that plans are made of: what is on a machine, what is to be done, what the manifest keeps. Pure."""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum

from gleaner.control.setup.facts import Output, Unread


class SetupRefused(Exception):
    """Setup cannot go on. The text is one line: what is wrong, and what to do."""


@dataclass(frozen=True, slots=True)
class Ownership:
    """The mode (the nine bits of permissions), and the numbers of the owner and the group."""

    mode: int
    uid: int = 0
    gid: int = 0


@dataclass(frozen=True, slots=True)
class PlainFile:
    """A plain file, as it is on a machine."""

    content: bytes
    has: Ownership

    @property
    def digest(self) -> str:
        """The content's SHA-256."""
        return digest_of(self.content)


def digest_of(content: bytes) -> str:
    """Return the SHA-256 of a content."""
    return hashlib.sha256(content).hexdigest()


@dataclass(frozen=True, slots=True)
class WriteFile:
    """Write a whole file."""

    path: str
    content: bytes = field(repr=False)
    gets: Ownership


@dataclass(frozen=True, slots=True)
class RemoveFile:
    """Remove a file or a symbolic link, if it is there."""

    path: str


@dataclass(frozen=True, slots=True)
class MakeFolder:
    """Make a folder, or set the mode and owner of one that is there."""

    path: str
    gets: Ownership


@dataclass(frozen=True, slots=True)
class RemoveFolder:
    """Remove a folder if it is empty, or with `with_content` with all that is in it."""

    path: str
    with_content: bool = False


@dataclass(frozen=True, slots=True)
class MakeLink:
    """Make a symbolic link."""

    path: str
    target: str


@dataclass(frozen=True, slots=True)
class RunProgram:
    """Run a program to its end, which must be a success."""

    words: tuple[str, ...]


Action = WriteFile | RemoveFile | MakeFolder | RemoveFolder | MakeLink | RunProgram


class EntryKind(StrEnum):
    """The kind of a thing that setup has made."""

    FILE = "file"
    EDIT = "edit"
    FOLDER = "folder"
    LINK = "link"
    ACCOUNT = "account"
    PROGRAM = "program"


@dataclass(frozen=True, slots=True)
class ProgramCheck:
    """A program that tells whether something is done: it succeeds, and prints the words `expected` ("": any)."""

    words: tuple[str, ...]
    expected: str = ""

    def is_passed(self, said: Output | Unread) -> bool:
        """Return True if the program has succeeded and printed the expected words."""
        if isinstance(said, Unread) or said.status != 0:
            return False
        words = re.split(r"[\s,|:]+", said.stdout)
        return not self.expected or f" {self.expected} " in f" {' '.join(words)} "


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the manifest: one thing that setup makes, or is about to make, and how to take it back."""

    kind: EntryKind
    name: str
    """A path; an account's name; the name of a step that runs programs."""
    roles: tuple[str, ...] = ()
    digests: tuple[str, ...] = ()
    """FILE: what setup has written, or was about to write when it was interrupted."""
    backup: str = ""
    """FILE, EDIT: where the file of before is kept; empty if there was none."""
    had: Ownership | None = None
    """FOLDER: of a folder that was there before."""
    target: str = ""
    """LINK."""
    check: ProgramCheck | None = None
    """PROGRAM: tells whether there is something to undo."""
    undo: tuple[tuple[str, ...], ...] = ()
    """ACCOUNT, PROGRAM: the programs that take it back."""
    is_data: bool = False
    """FOLDER: it holds checkpoints or the database. Only `--purge` removes what is in it."""

    @property
    def key(self) -> tuple[EntryKind, str]:
        """The kind and the name, which two entries of the same thing have in common."""
        return self.kind, self.name


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The work of one step: what people see, what the manifest gets first, and the actions in their order."""

    title: str
    entries: tuple[Entry, ...] = ()
    actions: tuple[Action, ...] = ()
    difference: str = ""
    """A unified diff, or other lines for people."""
    later: Callable[[], tuple["StepPlan", ...]] | None = None
    """Makes what cannot be known before, such as a key, in memory; then the plans to write it."""
    restarts: tuple[str, ...] = ()
    """The services that have to be restarted because of it."""
    hints: tuple[tuple[str, ...], ...] = ()
    """Commands that setup does not run by itself, since others than Gleaner notice them."""


@dataclass(frozen=True, slots=True)
class Remark:
    """A step that leaves something to the reader, in one line."""

    text: str
