"""Carry out steps, and take them back. The manifest is written before each change; a change is whole or not made."""

import fcntl
import os
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from gleaner.control.setup.steps import manifest as manifests
from gleaner.control.setup.steps import text_edits
from gleaner.control.setup.steps.changes import (
    Action,
    Entry,
    EntryKind,
    MakeFolder,
    MakeLink,
    Ownership,
    PlainFile,
    Remark,
    RemoveFile,
    RemoveFolder,
    RunProgram,
    SetupRefused,
    StepPlan,
    WriteFile,
)
from gleaner.control.setup.steps.machine import MachineReader, MachineWriter
from gleaner.control.setup.steps.manifest import Answers, Manifest
from gleaner.control.setup.steps.step_types import FOLDER, SetupStep, text_of

_MANIFEST = Ownership(0o600)


@dataclass(frozen=True, slots=True)
class Planned:
    """All that is to be done, and what is left to the reader."""

    plans: tuple[StepPlan, ...]
    remarks: tuple[str, ...]

    @property
    def hints(self) -> tuple[tuple[str, ...], ...]:
        """The commands that setup does not run by itself."""
        return tuple(dict.fromkeys(hint for plan in self.plans for hint in plan.hints))


def plan_all(steps: Sequence[SetupStep], machine: MachineReader, manifest: Manifest, role: str) -> Planned:
    """Return what all steps have to do. Nothing is changed. Raises `SetupRefused`."""
    found = [step.plan(machine, manifest, role) for step in steps]
    plans = tuple(one for one in found if isinstance(one, StepPlan))
    return Planned(plans, tuple(one.text for one in found if isinstance(one, Remark)))


class Installer:
    """A run that changes a machine."""

    def __init__(self, machine: MachineReader, role: str, watch: Callable[[str], None]) -> None:
        self._machine = machine
        self._writer = MachineWriter(machine, watch)
        self._role = role
        self._manifest = manifests.load(machine)

    def apply(self, steps: Sequence[SetupStep], answers: Answers) -> tuple[tuple[str, ...], ...]:
        """Carry out each step that is needed. Return the commands that are left to the reader.

        Raises `SetupRefused`: what was done until then stays, and a second run goes on from there.
        """
        hints: list[tuple[str, ...]] = []
        planned = plan_all(steps, self._machine, self._manifest, self._role)
        if not planned.plans and self._role in self._manifest.answers:
            return ()
        made = self._machine.missing_parents(manifests.PATH)
        for folder in made:
            self._writer.do(MakeFolder(folder, FOLDER))
        with _alone(self._machine):
            manifest = manifests.load(self._machine)
            for folder in made:
                manifest = manifest.with_entry(Entry(EntryKind.FOLDER, folder), self._role)
            self._save(replace(manifest, answers={**manifest.answers, self._role: dict(answers)}))
            for step in steps:
                plan = step.plan(self._machine, self._manifest, self._role)
                if isinstance(plan, StepPlan):
                    for one in (plan,) if plan.later is None else plan.later():
                        self._carry_out(one)
                    hints += plan.hints
                self._share(step)
                service = getattr(step, "service", "")
                if service in self._manifest.restarts and self._machine.is_live:
                    left = tuple(name for name in self._manifest.restarts if name != service)
                    self._save(replace(self._manifest, restarts=left))
        return tuple(dict.fromkeys(hints))

    def _carry_out(self, plan: StepPlan) -> None:
        manifest = self._manifest
        for entry in plan.entries:
            manifest = manifest.with_entry(entry, self._role)
        self._save(replace(manifest, restarts=tuple(dict.fromkeys((*manifest.restarts, *plan.restarts)))))
        for action in plan.actions:
            self._writer.do(action)

    def _share(self, step: SetupStep) -> None:
        """Note that this role, too, needs what a step of another role has made."""
        name = getattr(step, "account", step.name)
        names = {name, self._machine.real_path(name) if name.startswith("/") else name}
        manifest = self._manifest
        for entry in manifest.entries:
            is_above = entry.kind is EntryKind.FOLDER and name.startswith(f"{entry.name}/")
            if self._role not in entry.roles and (entry.name in names or is_above):
                manifest = manifest.with_entry(entry, self._role)
        self._save(manifest)

    def _save(self, manifest: Manifest) -> None:
        if manifest != manifests.load(self._machine):
            self._writer.do(manifest.to_write(_MANIFEST))
        self._manifest = manifest

    def take_back(self, *, purge: bool) -> tuple[str, ...]:
        """Take back all that was made for this role, the last thing first. Return what was left, a line for each.

        An entry leaves the manifest only when what it names is gone, so a run that was interrupted can be repeated.
        """
        remarks: list[str] = []
        if self._role not in self._manifest.answers:
            return (f"nothing of ours is here for the role {self._role}",)
        with _alone(self._machine):
            self._manifest = manifests.load(self._machine)
            for entry in reversed(self._manifest.entries):
                if self._role not in entry.roles:
                    continue
                others = tuple(role for role in entry.roles if role != self._role)
                if others:
                    kept = replace(entry, roles=others)
                    entries = tuple(kept if one.key == entry.key else one for one in self._manifest.entries)
                    self._save(replace(self._manifest, entries=entries))
                    continue
                if not manifests.PATH.startswith(f"{entry.name}/"):
                    for part in _parts(entry):
                        removal = removal_of(part, self._machine, purge=purge)
                        for action in removal.actions:
                            self._writer.do(action)
                        remarks += [removal.remark] if removal.remark else []
                    self._save(self._manifest.without_entry(entry))
            self._end()
        return tuple(remarks)

    def run(self, words: tuple[str, ...]) -> None:
        """Run a command that is otherwise left to the reader. Raises `SetupRefused`."""
        self._writer.do(RunProgram(words))

    def _end(self) -> None:
        """Forget the role, and remove the manifest if that was the last."""
        answers = {role: said for role, said in self._manifest.answers.items() if role != self._role}
        if answers:
            self._save(replace(self._manifest, answers=answers))
            return
        self._writer.do(RemoveFile(manifests.PATH))
        for entry in reversed(self._manifest.entries):  # only those are left that hold the manifest
            self._writer.do(RemoveFolder(entry.name))
        if self._machine.has_systemd:
            self._writer.do(RunProgram(("systemctl", "daemon-reload")))


def _parts(entry: Entry) -> tuple[Entry, ...]:
    """Return what is taken back one after the other. On most systems userdel takes the account's own group, too."""
    if entry.kind is not EntryKind.ACCOUNT:
        return (entry,)
    return tuple(replace(entry, undo=(words,)) for words in entry.undo)


def _folder_of_manifest() -> str:
    return manifests.PATH.rpartition("/")[0]


@contextmanager
def _alone(machine: MachineReader) -> Generator[None]:
    """Hold the manifest's folder: two runs at once would write over each other's manifest. Raises `SetupRefused`."""
    folder = os.open(machine.at(_folder_of_manifest()), os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise SetupRefused("another glean setup runs on this machine: wait for its end") from None
    finally:
        os.close(folder)


def plan_removal(machine: MachineReader, manifest: Manifest, role: str, *, purge: bool) -> tuple[str, ...]:
    """Return what taking back a role would do, a line each. Nothing is changed."""
    lines: list[str] = []
    for entry in reversed(manifest.entries):
        if entry.roles == (role,) and not manifests.PATH.startswith(f"{entry.name}/"):
            removal = removal_of(entry, machine, purge=purge)
            lines += [_words_of(action) for action in removal.actions]
            lines += [removal.remark] if removal.remark else []
    return (*lines, f"remove {manifests.PATH}, or this role in it") if role in manifest.answers else ()


def _words_of(action: Action) -> str:
    match action:
        case RunProgram(words):
            return f"run {' '.join(words)}"
        case WriteFile(path):
            return f"put {path} as it was before"
        case MakeFolder(path, gets):
            return f"set {path} to mode {gets.mode:04o}, owner {gets.uid}:{gets.gid}"
        case RemoveFolder(path, with_content):
            return f"remove {path}{' with all that is in it' if with_content else ' if it is empty'}"
        case RemoveFile(path) | MakeLink(path):
            return f"remove {path}"


@dataclass(frozen=True, slots=True)
class Removal:
    """The actions that take an entry back, and what is left, in one line."""

    actions: tuple[Action, ...] = ()
    remark: str = ""


def removal_of(entry: Entry, machine: MachineReader, *, purge: bool) -> Removal:
    """Return what takes an entry back. What others have changed since stays."""
    path = entry.name
    match entry.kind:
        case EntryKind.FILE:
            backup = machine.file(entry.backup) if entry.backup else None
            return _removal_of_file(entry, machine.file(path), backup, purge=purge)
        case EntryKind.EDIT:
            return _removal_of_edit(entry, machine.file(path))
        case EntryKind.FOLDER if machine.link(path):
            return Removal(remark=f"{path} stays: it is a symbolic link now")
        case EntryKind.FOLDER if machine.folder(path) is None:
            return Removal()
        case EntryKind.FOLDER:
            if entry.had is not None:  # with what is in it: nobody knows whose that is
                return Removal((MakeFolder(path, entry.had),))
            if entry.is_data and purge:
                return Removal((RemoveFolder(path, with_content=True),))
            stays = entry.is_data and any(machine.at(path).iterdir())
            return Removal((RemoveFolder(path),), f"{path} stays: --purge removes it, too" if stays else "")
        case EntryKind.LINK:
            is_ours = machine.link(path) == entry.target
            return Removal((RemoveFile(path),)) if is_ours else Removal()
        case EntryKind.ACCOUNT:
            tables = {"userdel": machine.table("/etc/passwd"), "groupdel": machine.table("/etc/group")}
            return Removal(tuple(RunProgram(words) for words in entry.undo if path in tables[words[0]]))
        case EntryKind.PROGRAM:
            is_done = entry.check is None or machine.is_done(entry.check)
            return Removal(tuple(RunProgram(words) for words in entry.undo) if is_done else ())


def _removal_of_file(entry: Entry, found: PlainFile | None, backup: PlainFile | None, *, purge: bool) -> Removal:
    path = entry.name
    drop = (RemoveFile(entry.backup),) if entry.backup else ()
    if found is None:
        return Removal((RemoveFile(path), *drop))
    if found.digest not in entry.digests and not purge:
        if entry.backup and (backup is None or backup.content == found.content):
            return Removal(drop)  # interrupted before our file was there, or after it was taken back
        return Removal((), f"{path} stays: it was changed since")
    if backup is not None:
        return Removal((WriteFile(path, backup.content, backup.has), *drop))
    if entry.had is not None:
        return Removal((WriteFile(path, found.content, entry.had),))
    return Removal((RemoveFile(path),))


def _removal_of_edit(entry: Entry, found: PlainFile | None) -> Removal:
    drop = (RemoveFile(entry.backup),) if entry.backup else ()
    if found is None:
        return Removal(drop)
    old = text_of(entry.name, found.content)
    text = text_edits.without(old)
    if not text and not entry.backup:
        return Removal((RemoveFile(entry.name),))
    if text == old:
        return Removal(drop)
    return Removal((WriteFile(entry.name, text.encode(errors="surrogateescape"), found.has), *drop))
