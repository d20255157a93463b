"""The kinds of steps. Each says what is wanted and reads what is there; a pure function plans the change, or none."""

import difflib
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from gleaner.control.setup.facts import Output, Unread
from gleaner.control.setup.reading import environment
from gleaner.control.setup.steps import text_edits
from gleaner.control.setup.steps.changes import (
    Action,
    Entry,
    EntryKind,
    MakeFolder,
    MakeLink,
    Ownership,
    PlainFile,
    ProgramCheck,
    Remark,
    RunProgram,
    SetupRefused,
    StepPlan,
    WriteFile,
    digest_of,
)
from gleaner.control.setup.steps.machine import MachineReader
from gleaner.control.setup.steps.manifest import Manifest

FOLDER = Ownership(0o755)
PLAIN = Ownership(0o644)
BACKUP = ".before-gleaner"
"""The end of the name of a file of before."""


class SetupStep(Protocol):
    """One thing that a machine needs."""

    @property
    def name(self) -> str:
        """The name for `--skip`."""
        ...

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done; None if all is as it should be. Raises `SetupRefused`."""
        ...


def difference_of(path: str, old: bytes, new: bytes) -> str:
    """Return a unified diff of two texts."""
    before, after = (text.decode(errors="replace").splitlines() for text in (old, new))
    return "\n".join(difflib.unified_diff(before, after, path, path, lineterm=""))


@dataclass(frozen=True, slots=True)
class FileStep:
    """A whole file of ours. An admin may change a file with `is_settings`: then it stays as it is."""

    path: str
    content: bytes
    gets: Ownership = PLAIN
    is_settings: bool = False
    restarts: tuple[str, ...] = ()
    hints: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the file."""
        entry, parents = manifest.find(EntryKind.FILE, self.path), machine.missing_parents(self.path)
        found, backup, wanted = machine.file(self.path), machine.file(f"{self.path}{BACKUP}"), self
        if not machine.is_root and found is not None:  # only root can give a file to somebody
            wanted = replace(self, gets=replace(self.gets, uid=found.has.uid, gid=found.has.gid))
        return with_parents(file_plan(wanted, found, backup, entry, role), parents)


def file_plan(
    wanted: FileStep, found: PlainFile | None, backup: PlainFile | None, entry: Entry | None, role: str
) -> StepPlan | Remark | None:
    """Return the change from what is there to what is wanted. Pure.

    What was there before is kept as `backup`, and comes again when setup is taken back.
    """
    path, digest = wanted.path, digest_of(wanted.content)
    write = WriteFile(path, wanted.content, wanted.gets)
    old = b"" if found is None else found.content
    difference = difference_of(path, old, wanted.content)
    record = replace(entry or Entry(EntryKind.FILE, path), digests=(digest,))
    plan = StepPlan(f"write {path}", (record,), (write,), difference, None, wanted.restarts, wanted.hints)
    if found is None:
        return plan
    is_ours = entry is not None and found.digest in entry.digests
    is_same = found.digest == digest
    if is_same and (found.has == wanted.gets or (wanted.is_settings and not is_ours)):
        return None
    if wanted.is_settings and (not is_ours or (entry is not None and entry.roles not in ((), (role,)))):
        return Remark(f"{path} stays as it is: it was there before, or was changed since")
    if is_same:
        record = replace(record, had=record.had if is_ours else found.has)
        said = f"{path}: mode {found.has.mode:04o}, owner {found.has.uid}:{found.has.gid}"
        return replace(plan, title=f"set mode and owner of {path}", entries=(record,), difference=said)
    if is_ours:
        record = replace(record, digests=(found.digest, digest))
        if record.had is None or (record.backup and backup is not None):
            return replace(plan, entries=(record,))
    elif entry is not None and (not entry.backup or (backup is not None and backup.content != found.content)):
        return Remark(f"{path} stays as it is: it was changed since; remove it to have it written anew")
    record = replace(record, backup=f"{path}{BACKUP}")
    save = WriteFile(record.backup, found.content, record.had or found.has)
    return replace(plan, title=f"replace {path}", entries=(record,), actions=(save, write))


@dataclass(frozen=True, slots=True)
class EditStep:
    """Lines of ours in a file that may be a site's. `edit` is pure: it gets the text without our lines."""

    path: str
    edit: Callable[[str], str]
    remarks: Callable[[str], tuple[str, ...]] = lambda _: ()
    hints: tuple[tuple[str, ...], ...] = ()

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the lines."""
        path = machine.real_path(self.path)
        entry, parents = manifest.find(EntryKind.EDIT, path), machine.missing_parents(path)
        has_backup = machine.file(f"{path}{BACKUP}") is not None
        plan = edit_plan(replace(self, path=path), machine.file(path), entry, has_backup=has_backup)
        return with_parents(plan, parents)


def edit_plan(
    wanted: EditStep, found: PlainFile | None, entry: Entry | None, *, has_backup: bool
) -> StepPlan | Remark | None:
    """Return the change of a text. Pure."""
    path = wanted.path
    old = "" if found is None else text_of(path, found.content)
    bare = text_edits.without(old)
    text = wanted.edit(bare)
    remarks = wanted.remarks(bare)
    if text_edits.ours(text) == text_edits.ours(old):  # wherever in the file they are
        return Remark("; ".join(remarks)) if remarks else None
    new, gets = text.encode(errors="surrogateescape"), Ownership(0o644) if found is None else found.has
    backup = "" if found is None else f"{path}{BACKUP}"
    actions: list[Action] = [WriteFile(path, new, gets)]
    if found is not None and not has_backup:
        actions.insert(0, WriteFile(backup, found.content, found.has))
    record = entry or Entry(EntryKind.EDIT, path, backup=backup)
    said = "\n".join((difference_of(path, b"" if found is None else found.content, new), *remarks))
    return StepPlan(f"change {path}", (record,), tuple(actions), said, hints=wanted.hints)


def text_of(path: str, content: bytes) -> str:
    """Return a text that becomes the same bytes again. Raises `SetupRefused` if it is none."""
    if b"\0" in content:
        raise SetupRefused(f"{path} is no text: mend it, or leave that step out with --skip {path}")
    return content.decode(errors="surrogateescape")


@dataclass(frozen=True, slots=True)
class FolderStep:
    """A folder. One with `is_data` holds checkpoints or the database."""

    path: str
    gets: Ownership
    is_data: bool = False

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the folder."""
        found, entry = machine.folder(self.path), manifest.find(EntryKind.FOLDER, self.path)
        gets = self.gets
        if not machine.is_root and found is not None:
            gets = replace(gets, uid=found.uid, gid=found.gid)
        return with_parents(folder_plan(replace(self, gets=gets), found, entry), machine.missing_parents(self.path))


def folder_plan(wanted: FolderStep, found: Ownership | None, entry: Entry | None) -> StepPlan | None:
    """Return the change of a folder. Pure."""
    if found == wanted.gets:
        return None
    had = found if entry is None else entry.had
    record = Entry(EntryKind.FOLDER, wanted.path, had=had, is_data=wanted.is_data)
    words = f"mode {wanted.gets.mode:04o}, owner {wanted.gets.uid}:{wanted.gets.gid}"
    before = "" if found is None else f" (now mode {found.mode:04o}, owner {found.uid}:{found.gid})"
    title = f"{'make' if found is None else 'change'} the folder {wanted.path}: {words}{before}"
    return StepPlan(title, (record,), (MakeFolder(wanted.path, wanted.gets),))


@dataclass(frozen=True, slots=True)
class LinkStep:
    """A symbolic link. Where something else is, that stays."""

    path: str
    target: str

    @property
    def name(self) -> str:
        """The path."""
        return self.path

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the link."""
        found = machine.link(self.path)
        if found is not None:
            return None if found in ("", self.target) else Remark(f"{self.path} stays: it leads to {found}")
        record = Entry(EntryKind.LINK, self.path, target=self.target)
        plan = StepPlan(f"link {self.path} to {self.target}", (record,), (MakeLink(self.path, self.target),))
        return with_parents(plan, machine.missing_parents(self.path))


def with_parents(plan: StepPlan | Remark | None, parents: tuple[str, ...]) -> StepPlan | Remark | None:
    """Return a plan that first makes the folders that are missing above what it writes."""
    if not isinstance(plan, StepPlan) or not parents:
        return plan
    entries = tuple(Entry(EntryKind.FOLDER, path) for path in parents)
    actions = tuple(MakeFolder(path, FOLDER) for path in parents)
    return replace(plan, entries=(*entries, *plan.entries), actions=(*actions, *plan.actions))


@dataclass(frozen=True, slots=True)
class AccountStep:
    """An ordinary account with a group of its own, without a login, with given numbers."""

    account: str
    uid: int
    gid: int

    @property
    def name(self) -> str:
        """The name for `--skip`."""
        return "account"

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the account."""
        users, groups = machine.table("/etc/passwd"), machine.table("/etc/group")
        prefix = ("--prefix", machine.root) if machine.root else ()
        return account_plan(self, users, groups, prefix)


def account_plan(
    wanted: AccountStep, users: dict[str, list[str]], groups: dict[str, list[str]], prefix: tuple[str, ...]
) -> StepPlan | None:
    """Return the programs that make an account. Pure. Raises `SetupRefused` if its numbers are not free."""
    name, uid, gid = wanted.account, str(wanted.uid), str(wanted.gid)
    if name in groups and groups[name][2] != gid:
        raise SetupRefused(f"the group {name} has the number {groups[name][2]} here, not {gid}: use one everywhere")
    if name in users:
        if users[name][3] != gid:
            raise SetupRefused(
                f"the account {name} is in the group number {users[name][3]} here, not {gid}: use one everywhere"
            )
        if users[name][2] != uid:
            raise SetupRefused(
                f"the account {name} has the number {users[name][2]} here, not {uid}: use one everywhere"
            )
        others = [line[0] for line in groups.values() if line[2] == gid and line[0] != name]
        if others and name not in groups:
            raise SetupRefused(f"the group {gid} of the account {name} is {others[0]} here: it must be named {name}")
        return None
    for line in users.values():
        if line[2] == uid:
            raise SetupRefused(f"the number {uid} is {line[0]}'s here: name another with --uid, the same everywhere")
    actions: list[Action] = []
    undo: list[tuple[str, ...]] = [("userdel", *prefix, name)]
    if name not in groups:
        taken = [line[0] for line in groups.values() if line[2] == gid]
        if taken:
            raise SetupRefused(
                f"the group number {gid} is {taken[0]}'s here: name another with --gid, the same everywhere"
            )
        actions.append(RunProgram(("groupadd", *prefix, "-g", gid, name)))
        undo.append(("groupdel", *prefix, name))
    words = ("useradd", *prefix, "-u", uid, "-g", name, "-M", "-d", "/nonexistent", "-s", "/usr/sbin/nologin", name)
    actions.append(RunProgram(words))
    entry = Entry(EntryKind.ACCOUNT, name, undo=tuple(undo))
    return StepPlan(f"make the account {name} ({uid}:{gid})", (entry,), tuple(actions))


@dataclass(frozen=True, slots=True)
class ProgramStep:
    """Programs that bring something about, with a check of whether that is needed, and programs that take it back."""

    name: str
    check: ProgramCheck
    words: tuple[tuple[str, ...], ...]
    undo: tuple[tuple[str, ...], ...] = ()
    service: str = ""
    """The service that is restarted by `words`, if another step wants that."""
    restarts: tuple[str, ...] = ()
    is_optional: bool = False
    """True: where the first program is not there, its commands are left to the reader."""
    undo_check: ProgramCheck | None = None
    """Tells whether there is something to undo; by default `check` does."""
    check_shows: bool = False
    """True: the check's program also prints what `words` would do, and fails where they would."""
    works_in_root: bool = False
    """True: it also works on a system that does not run."""

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done."""
        commands = "; ".join(" ".join(words) for words in self.words)
        if not machine.is_live and not self.works_in_root:
            return Remark(f"{self.name}: left for the running system: {commands}")
        is_due = machine.is_live and self.service in manifest.restarts
        checked = machine.run(self.check.words)
        if self.check.is_passed(checked) and not is_due:
            return None
        if self.is_optional and not _has_program(self.words[0][0]):
            return Remark(f"{self.name}: there is no {self.words[0][0]} here; where it is: {commands}")
        entry = Entry(EntryKind.PROGRAM, self.name, check=self.undo_check or self.check, undo=self.undo)
        actions = tuple(RunProgram(words) for words in self.words)
        title = self.name if self.check_shows else f"{self.name}: {commands}"
        return StepPlan(title, (entry,) if self.undo else (), actions, self._shown(checked), restarts=self.restarts)

    def _shown(self, checked: Output | Unread) -> str:
        if not self.check_shows:
            return ""
        if isinstance(checked, Unread):
            raise SetupRefused(f"{self.name}: {checked.why}")
        if checked.status != 0:
            raise SetupRefused(f"{self.name}: {checked.complaint}")
        return checked.stdout.rstrip()


@dataclass(frozen=True, slots=True)
class RemarkStep:
    """Something that setup cannot do here."""

    name: str
    text: str

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return the remark."""
        return Remark(self.text)


def _has_program(name: str) -> bool:
    return shutil.which(name, path=environment()["PATH"]) is not None


@dataclass(frozen=True, slots=True)
class MadeStep:
    """Files whose content is made when they are written, such as a key. `is_there` tells whether they are in order."""

    name: str
    title: str
    is_there: Callable[[MachineReader], bool]
    make: Callable[[MachineReader], tuple[FileStep, ...]]

    def plan(self, machine: MachineReader, manifest: Manifest, role: str) -> StepPlan | Remark | None:
        """Return what has to be done for the files."""
        if self.is_there(machine):
            return None

        def later() -> tuple[StepPlan, ...]:
            plans = (step.plan(machine, manifest, role) for step in self.make(machine))
            return tuple(plan for plan in plans if isinstance(plan, StepPlan))

        return StepPlan(self.title, later=later)
