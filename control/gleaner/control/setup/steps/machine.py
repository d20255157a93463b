"""The machine that is set up: `MachineReader` reads it, and `MachineWriter` is the only code of setup that changes it.

A dry run has no writer. With a root folder, all paths are those of a system that does not run, such as an image in the
making: no service is started there.
"""

import os
import shutil
import stat
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath

from gleaner.agent.privileged.common import system_programs
from gleaner.agent.system import atomic, openat
from gleaner.control.input_errors import one_line
from gleaner.control.setup import reading
from gleaner.control.setup.facts import Output, Unread
from gleaner.control.setup.steps.changes import (
    Action,
    MakeFolder,
    MakeLink,
    Ownership,
    PlainFile,
    ProgramCheck,
    RemoveFile,
    RemoveFolder,
    RunProgram,
    SetupRefused,
    WriteFile,
)

CHECK_S = 30.0
"""The longest that a program may take that only tells something."""
RUN_S = 300.0
"""The longest that a program may take that changes something."""
_LARGEST_FILE = 16 * 2**20


class MachineReader:
    """A machine as it is now. Nothing here changes it."""

    def __init__(self, root: str = "") -> None:
        self.is_live = not root
        """True if this is the running system, and no folder with one. "/" is a folder: an image in the making."""
        self.root = root.rstrip("/")
        self.is_root = os.geteuid() == 0

    @property
    def has_systemd(self) -> bool:
        """True if systemd runs here."""
        return self.is_live and Path("/run/systemd/system").is_dir()

    def at(self, path: str) -> Path:
        """Return where one of the machine's paths lies."""
        return Path(f"{self.root}{path}")

    def file(self, path: str) -> PlainFile | None:
        """Return a plain file; None if there is nothing. Raises `SetupRefused` for all else."""
        place = self.at(path)
        try:
            facts = place.lstat()
            if not stat.S_ISREG(facts.st_mode):
                what = "a symbolic link" if stat.S_ISLNK(facts.st_mode) else "no plain file"
                raise SetupRefused(f"{path} is {what}: remove it, or leave that step out with --skip")
            if facts.st_size > _LARGEST_FILE:
                raise SetupRefused(f"{path} is too large for what it should be: {facts.st_size} bytes")
            return PlainFile(place.read_bytes(), Ownership(stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SetupRefused(one_line(f"{path} cannot be read: {error.strerror}; run this as root")) from error

    def real_path(self, path: str) -> str:
        """Return the path of the file to which a name leads, if it is a symbolic link on a running system."""
        return os.path.realpath(path) if self.is_live else path

    def folder(self, path: str) -> Ownership | None:
        """Return the mode and owner of a folder; None if there is nothing. Raises `SetupRefused` for all else."""
        if self.at(path).is_symlink():
            raise SetupRefused(_no_link(path))
        return self._folder_behind(path)

    def _folder_behind(self, path: str) -> Ownership | None:
        """Return the same for the folder to which a name leads: above ours, a system may have links."""
        try:
            facts = self.at(path).stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise SetupRefused(one_line(f"{path} cannot be looked at: {error.strerror}")) from error
        if not stat.S_ISDIR(facts.st_mode):
            raise SetupRefused(f"{path} is no folder: remove it, or name another")
        return Ownership(stat.S_IMODE(facts.st_mode), facts.st_uid, facts.st_gid)

    def missing_parents(self, path: str) -> tuple[str, ...]:
        """Return the folders above a path that are not there, the highest first."""
        above = [str(folder) for folder in PurePosixPath(path).parents]
        return tuple(folder for folder in reversed(above) if self._folder_behind(folder) is None)

    def link(self, path: str) -> str | None:
        """Return where a symbolic link leads; "" for something else, None for nothing."""
        try:
            return str(self.at(path).readlink())
        except OSError:
            return "" if os.path.lexists(self.at(path)) else None

    def table(self, path: str) -> dict[str, list[str]]:
        """Return the lines of /etc/passwd or /etc/group by their names."""
        found = self.file(path)
        lines = "" if found is None else found.content.decode(errors="replace")
        return {line.split(":")[0]: line.split(":") for line in lines.splitlines() if line.count(":") > 2}

    def run(self, words: Sequence[str]) -> Output | Unread:
        """Run a program that only tells something."""
        return reading.run(words, within_s=CHECK_S)

    def is_done(self, check: ProgramCheck) -> bool:
        """Return True if a check is passed now."""
        return check.is_passed(self.run(check.words))


class MachineWriter:
    """All changes of setup to a machine. `watch` is told each change before it is made."""

    def __init__(self, machine: MachineReader, watch: Callable[[str], None]) -> None:
        self._machine = machine
        self._watch = watch

    def do(self, action: Action) -> None:
        """Make one change. Raises `SetupRefused` if that is not possible."""
        try:
            self._do(action)
        except OSError as error:
            what = str(getattr(action, "path", "")) or str(error.filename or "")
            hint = "" if self._machine.is_root else "; run this as root"
            raise SetupRefused(one_line(f"{what}: {error.strerror or error}{hint}")) from error

    def _do(self, action: Action) -> None:
        match action:
            case WriteFile(path, content, gets):
                self._watch(f"writing {path}")
                place = self._machine.at(path)
                atomic.write(place, content, mode=gets.mode)
                self._own(place, gets)
            case RemoveFile(path):
                place = self._machine.at(path)
                place.with_name(f"{place.name}.new").unlink(missing_ok=True)  # the draft of a run that was killed
                if os.path.lexists(place):
                    self._watch(f"removing {path}")
                    place.unlink()
            case MakeFolder(path, gets):
                place = self._machine.at(path)
                self._watch(f"making {path}")
                with suppress(FileExistsError):
                    place.mkdir(mode=0o700)
                with _opened(place, path) as folder:
                    if self._machine.is_root:
                        os.fchown(folder, gets.uid, gets.gid)
                    os.fchmod(folder, gets.mode)
                atomic.sync_folder(place.parent)
            case RemoveFolder(path, with_content):
                self._remove_folder(path, with_content=with_content)
            case MakeLink(path, target):
                self._watch(f"linking {path}")
                self._machine.at(path).symlink_to(target)
            case RunProgram(words):
                self._watch(f"running {' '.join(words)}")
                self._run(words)

    def _remove_folder(self, path: str, *, with_content: bool) -> None:
        place = self._machine.at(path)
        if not place.is_dir():
            return
        with _opened(place, path) as folder:
            if with_content:
                self._watch(f"removing all of {path}")
                for name in openat.entries(folder):
                    if stat.S_ISDIR(os.lstat(name, dir_fd=folder).st_mode):
                        shutil.rmtree(name, dir_fd=folder)
                    else:
                        os.unlink(name, dir_fd=folder)
            is_empty = not openat.entries(folder)
        if is_empty and not place.is_mount():
            self._watch(f"removing {path}")
            place.rmdir()

    def _own(self, place: Path, gets: Ownership) -> None:
        if self._machine.is_root:
            os.chown(place, gets.uid, gets.gid, follow_symlinks=False)

    def _run(self, words: tuple[str, ...]) -> None:
        try:
            done = system_programs.run(words, within_s=RUN_S, environment=reading.environment(), folder="/")
        except FileNotFoundError:
            raise SetupRefused(f"there is no program {words[0]} here: install it") from None
        except OSError as error:
            raise SetupRefused(one_line(f"{' '.join(words)}: {error.strerror or error}")) from error
        if done.status != 0:
            said = Output(done.status, done.stdout, done.stderr).complaint
            raise SetupRefused(one_line(f"{' '.join(words)} failed: {said}"))


def _no_link(path: str) -> str:
    return f"{path} is a symbolic link: put a folder there, or leave that step out with --skip {path}"


@contextmanager
def _opened(place: Path, path: str) -> Generator[int]:
    """Open a folder, and never the one to which a link leads. Raises `SetupRefused` for a link."""
    try:
        folder = os.open(place, openat.FOLDER)
    except OSError as error:
        if place.is_symlink():
            raise SetupRefused(_no_link(path)) from error
        raise
    try:
        yield folder
    finally:
        os.close(folder)
