"""Our files on a machine: those that are missing or differ, and the changes that install, repair or remove them.

`/etc/gleaner/setup.json` lists the files that setup has written, with their digests, and the programs that undo the
other changes. A file that differs from its digest is foreign, or was edited, and is never overwritten. The list is
saved after each change, so a second run completes one that was interrupted.
"""

import difflib
import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from pydantic import BaseModel, ValidationError

from gleaner.agent.privileged.common import system_programs
from gleaner.agent.system import atomic
from gleaner.control.setup.answers import SetupRefused

LIST = "/etc/gleaner/setup.json"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_WITHIN_S = 300.0
Words = tuple[str, ...]
Answers = Mapping[str, dict[str, Any]]  # for each role


class OwnFile(NamedTuple):
    """A file or a folder.

    An admin is allowed to edit a `settings` file. The content of a `brief` file is not shown. A `data` folder is
    removed only by `glean setup` with `--remove --purge`.
    """

    path: str
    content: bytes = b""
    mode: int = 0o644
    uid: int = 0
    gid: int = 0
    kind: str = "file"

    @property
    def digest(self) -> str:
        """Return the digest of a file's content, or the kind of a folder."""
        return self.kind if self.kind in _FOLDERS else hashlib.sha256(self.content).hexdigest()

    @property
    def rights(self) -> str:
        """Return the mode and the owner."""
        return f"mode {self.mode:04o}, owner {self.uid}:{self.gid}"


_FOLDERS = ("folder", "data")


class Command(NamedTuple):
    """Programs that are run if necessary, and again when a command (by its name) or a path in `after` has changed."""

    name: str
    do: tuple[Words, ...]
    undo: tuple[Words, ...] = ()
    is_done: bool = False
    after: tuple[str, ...] = ()


class Wanted(NamedTuple):
    """All that a role needs on a machine. A remark describes a task that is left to the admin."""

    files: tuple[OwnFile, ...] = ()
    commands: tuple[Command, ...] = ()
    remarks: tuple[str, ...] = ()


def joined(*parts: Wanted) -> Wanted:
    """Return everything that these parts need, in this order."""
    return Wanted(*(sum(each, ()) for each in zip(*parts, strict=True)))


class SetupList(BaseModel):
    """The list of everything that setup has created on a machine, with the answers of each role."""

    answers: dict[str, dict[str, Any]] = {}
    files: dict[str, str] = {}
    undo: dict[str, tuple[Words, ...]] = {}
    is_complete: bool = True


class TargetMachine:
    """A machine, or a folder with a system that is not running, such as an image under construction."""

    def __init__(self, root: str = "") -> None:
        self.is_live = not root
        self.root = root.rstrip("/")
        found = self.find(LIST)
        try:
            self.listed = SetupList.model_validate_json(found.content) if found else SetupList()
        except ValidationError as error:
            raise SetupRefused(f"{LIST} is broken: move it and what it names away, and run this again") from error

    @property
    def has_systemd(self) -> bool:
        """Return True if systemd runs on this machine."""
        return self.is_live and Path("/run/systemd/system").is_dir()

    def at(self, path: str) -> Path:
        """Return the real place of one of the machine's paths."""
        return Path(f"{self.root}{path}")

    def find(self, path: str) -> OwnFile | None:
        """Return the file or folder at a path, or None if there is none. Raises `SetupRefused` if it is unreadable."""
        place = self.at(path)
        try:
            facts = place.lstat()
            kind = {stat.S_IFDIR: "folder", stat.S_IFREG: "file"}.get(stat.S_IFMT(facts.st_mode), "neither")
            content = place.read_bytes() if kind == "file" else b""
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SetupRefused(f"{path} cannot be read: {error.strerror}; run this as root") from error
        return OwnFile(path, content, stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid, kind)

    def is_ours(self, found: OwnFile) -> bool:
        """Return True if setup has written exactly this file, or has created this folder."""
        return found.path in self.listed.files and found.digest in (self.listed.files[found.path], "folder")

    def save(self) -> None:
        """Write the list, or remove it with the last role."""
        place = self.at(LIST)
        if self.listed.answers:
            place.parent.mkdir(parents=True, exist_ok=True)
            atomic.write(place, self.listed.model_dump_json(indent=1).encode(), mode=0o644)
        else:
            place.unlink(missing_ok=True)
            _remove_folder(place.parent)


Change = tuple[str, Callable[[], object]]
"""One change: its description and its function."""


class SetupPlan(NamedTuple):
    """All changes in order, and the tasks that are left to the admin."""

    changes: Sequence[Change]
    remarks: Sequence[str]


def make_plan(machine: TargetMachine, wanted: Wanted, *, purge: bool = False) -> SetupPlan:
    """Return the changes to make, which include removing everything that is listed but not wanted. This function itself
    changes nothing.

    Raises `SetupRefused` if a foreign file is in the way.
    """
    listed, remarks = machine.listed, list(wanted.remarks)
    names = [command.name for command in wanted.commands]
    gone = [name for name in reversed(listed.undo) if name not in names]
    changes = [_programs(machine, name, listed.undo[name], ()) for name in gone]
    files = {file.path: file for file in (*_parents(machine, wanted.files), *wanted.files)}
    for path in sorted({*listed.files} - {*files}, reverse=True):
        found = machine.find(path)
        if listed.files[path] == "data" and not purge:
            remarks.append(f"{path} stays with all that is in it: --purge removes it also")
        elif found and (purge or machine.is_ours(found)):
            changes.append((f"remove {path}", partial(_remove, machine, path)))
            if path.endswith(".service") and machine.is_live and not machine.has_systemd:
                remarks.append(f"no systemd runs here: end the program of {path} yourself")
        elif found:
            remarks.append(f"{path} stays: it was changed by hand")
    written: list[str] = []
    for path, file in sorted(files.items()):
        found = machine.find(path)
        if _is_due(machine, file, found):
            written.append(path)
            changes.append((_difference(file, found), partial(_write, machine, file)))
        elif file.kind == "settings" and found and found.content != file.content:
            remarks.append(f"{path} stays as you have changed it; move it away to have it written again")
    for command in wanted.commands:
        is_hit = not listed.is_complete or any(one.startswith(command.after) for one in written)
        if not command.is_done or (command.after and is_hit):
            written.append(command.name)
            changes.append(_programs(machine, command.name, command.do, command.undo))
    return SetupPlan(changes, remarks)


def _parents(machine: TargetMachine, files: Iterable[OwnFile]) -> Iterator[OwnFile]:
    """Yield the parent folders of these files that are missing, or that setup has created."""
    for path in {str(above) for file in files for above in PurePosixPath(file.path).parents}:
        if path in machine.listed.files or not machine.at(path).is_dir():
            yield OwnFile(path, mode=0o755, kind="folder")


def _is_due(machine: TargetMachine, file: OwnFile, found: OwnFile | None) -> bool:
    """Return True if a file has to be written. Raises `SetupRefused` if a foreign file is in the way."""
    if found is None:
        return True
    has_rights = found[2:5] == file[2:5]
    if file.kind in _FOLDERS and found.kind == "folder":
        if has_rights or machine.is_ours(found) or not any(machine.at(file.path).iterdir()):
            return not has_rights
        cure = f"chown {file.uid}:{file.gid} {file.path} && chmod {file.mode:04o} {file.path}, or name another folder"
        raise SetupRefused(f"{file.path} is not empty, and has {found.rights}: {cure}")
    if file.kind not in _FOLDERS and found.kind == "file":
        if found.content == file.content:
            return not has_rights
        if file.kind == "settings" or machine.is_ours(found):
            return machine.is_ours(found)
    raise SetupRefused(f"{file.path} is foreign, or was changed by hand: move it, and run this again")


def _difference(file: OwnFile, found: OwnFile | None) -> str:
    old, before = ("not there", b"") if found is None else (found.rights, found.content)
    lines, new = (text.decode(errors="replace").splitlines() for text in (before, file.content))
    shown = [] if file.kind == "brief" else [*difflib.unified_diff(lines, new, lineterm="")][2:]
    return "\n".join((f"write {file.path}: {file.rights} ({old})", *shown))


def _write(machine: TargetMachine, file: OwnFile) -> None:
    place = machine.at(file.path)
    if file.kind in _FOLDERS:
        place.mkdir(exist_ok=True)
        place.chmod(file.mode)
    else:
        atomic.write(place, file.content, mode=file.mode)
    os.chown(place, file.uid, file.gid, follow_symlinks=False)
    machine.listed.files[file.path] = file.digest


def _remove(machine: TargetMachine, path: str) -> None:
    place, kind = machine.at(path), machine.listed.files.pop(path)
    if kind not in _FOLDERS:
        place.unlink()
    elif kind == "data":
        shutil.rmtree(place, ignore_errors=True)
    else:
        _remove_folder(place)


def _remove_folder(place: Path) -> None:
    """Remove a folder if it contains no files of others, and nothing is mounted on it."""
    shutil.rmtree(place / "__pycache__", ignore_errors=True)  # written by the programs that run as root
    with suppress(OSError):
        place.rmdir()


def _programs(machine: TargetMachine, name: str, programs: tuple[Words, ...], undo: tuple[Words, ...]) -> Change:
    """Return the change that runs programs. `undo` is added to the list before they run. Without `undo`, their entry is
    removed from the list."""

    def do() -> None:
        if undo:
            machine.listed.undo[name] = undo
            machine.save()
        for words in programs:
            run(*words)
        if not undo:
            machine.listed.undo.pop(name, None)

    return "\n".join(f"run {' '.join(words)}" for words in programs), do


def carry_out(machine: TargetMachine, plan: SetupPlan, answers: Answers, watch: Callable[[str], object]) -> None:
    """Make all changes. The machine then has the roles of these answers.

    Raises `SetupRefused`. A second run then continues from the same point.
    """
    listed = machine.listed
    listed.answers, listed.is_complete = {**listed.answers, **answers}, False
    try:
        machine.save()
        for title, do in plan.changes:
            watch(title)
            do()
            machine.save()
        listed.answers, listed.is_complete = dict(answers), True
        machine.save()
    except OSError as error:
        place = error.filename or LIST
        raise SetupRefused(f"{place}: {error.strerror}: correct that, and run this again to continue") from error


def run(*words: str) -> str:
    """Return the output of a program. Raises `SetupRefused` if it fails."""
    environment = {"PATH": PATH, "LC_ALL": "C.UTF-8"}
    try:
        status, stdout, stderr = system_programs.run(words, within_s=_WITHIN_S, environment=environment, folder="/")
    except OSError as error:
        status, stdout, stderr = 1, "", str(error)
    if status != 0:
        complaint = (stderr.strip() or stdout.strip() or f"status {status}").splitlines()[-1]
        raise SetupRefused(f"{' '.join(words)} failed: {complaint}: correct that, and run this again to continue")
    return stdout


def read(*words: str) -> str | None:
    """Return the output of a program, or None if it fails."""
    with suppress(SetupRefused):
        return run(*words)
    return None
