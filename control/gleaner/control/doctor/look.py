"""One look at this machine: the methods to read it, and the facts that several checks need, which are read once.

No method waits longer than the look lasts. If something is unreadable, `Unread` is raised, with the reason in one line.
"""

import json
import os
import pwd
import stat
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as NotInTime
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from pydantic import ValidationError

from gleaner.agent.privileged.common import config, system_programs
from gleaner.agent.privileged.common.system_programs import ProgramResult
from gleaner.agent.system import untrusted
from gleaner.control.doctor import connection
from gleaner.control.doctor.finding import MachineRole, Unread
from gleaner.control.input_errors import InputError, one_line, read_toml, table_complaint
from gleaner.control.settings import Settings

if TYPE_CHECKING:  # it loads the agent's libraries, which only nodes have
    from gleaner.agent.settings import SiteAgentSettings

Value = TypeVar("Value")
_SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_USUAL_ACCOUNT = "gleaner"
_OWNER_S = 1.0
"""The longest time to find the storage's owner. The storage itself is tried in parallel."""
_LAST_WORD_S = 0.5
"""The time between the end of a program that hangs and the end of the whole look."""
_LEAST_S = 0.2
_LARGEST_FILE = 2**20
_LONGEST = 160
"""The greatest number of letters of a program's output in a finding."""
_ASK_AGAIN_S = 0.5


def started(read: Callable[[], Value]) -> "Future[Value]":
    """Call a function in its own thread, which does not keep this program from ending."""
    future: Future[Value] = Future()
    threading.Thread(target=_settle, args=(future, read), daemon=True).start()
    return future


def _settle(future: "Future[Value]", read: Callable[[], Value]) -> None:
    try:
        future.set_result(read())
    except BaseException as error:
        future.set_exception(error)


def complaint(ended: ProgramResult) -> str:
    """Return the last line that a program has printed, or its exit status."""
    lines = [line.strip() for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
    return lines[-1][:_LONGEST] if lines else f"exit status {ended.status}"


@dataclass(frozen=True, slots=True)
class FileStatus:
    """The owner of a file or folder, and its mode (the nine bits of permissions)."""

    uid: int
    mode: int
    changed_s: float
    """The time of the last change of its content."""

    @property
    def is_roots_alone(self) -> bool:
        """Return True if only root can write to it."""
        return self.uid == 0 and not self.mode & 0o022

    def __str__(self) -> str:
        """Return its owner and mode in words."""
        return f"{'root' if self.uid == 0 else f'uid {self.uid}'}'s, mode {self.mode:o}"


class Look:
    """The facts that were read so far, and the time at which the look ends. In tests, `root` is another folder."""

    def __init__(self, role: MachineRole, load: Callable[[], Settings], *, within_s: float, root: str = "/") -> None:
        self.role = role
        self.ends_s = time.monotonic() + within_s
        self._enough_s = within_s / 2  # a program with less time than this is not reported as hanging
        self._load = load
        self._root = Path(root)
        self._once: dict[str, Future[Any]] = {}
        self._lock = threading.Lock()
        self.is_root = os.geteuid() == 0

    @property
    def left_s(self) -> float:
        """Return the time that one more call can take."""
        return max(_LEAST_S, self.ends_s - _LAST_WORD_S - time.monotonic())

    def once(self, name: str, read: Callable[[], Value]) -> Value:
        """Call `read` once for each name, and return its value or raise its exception again."""
        with self._lock:
            is_mine = name not in self._once
            future = self._once.setdefault(name, Future())
        if is_mine:
            _settle(future, read)
        return cast("Value", future.result())

    def at(self, path: str) -> Path:
        """Return the path of one of the system's files below `root`."""
        return self._root / path.lstrip("/")

    @property
    def has_systemd(self) -> bool:
        """Return True if systemd runs here."""
        return self.at("/run/systemd/system").is_dir()

    def run(self, *words: str, stdin: str = "") -> ProgramResult:
        """Run a program to its end."""
        environment = {name: os.environ[name] for name in ("SLURM_CONF", "PYTHONPATH") if name in os.environ}
        environment |= {"PATH": f"{os.environ.get('PATH', '')}:{_SYSTEM_PATH}".strip(":"), "LC_ALL": "C"}
        within_s = self.left_s
        try:
            return system_programs.run(words, within_s=within_s, stdin=stdin, environment=environment, folder="/")
        except FileNotFoundError as error:
            raise Unread(f"there is no program {words[0]} here", is_missing=True) from error
        except TimeoutError as error:
            why = f"{words[0]} did not answer within {within_s:.1f} s"
            raise (Unread(why) if within_s >= self._enough_s else NotInTime(why)) from error
        except OSError as error:
            raise Unread(f"{words[0]} cannot be run: {error.strerror}") from error

    def run_as_account(self, *words: str, stdin: str = "") -> ProgramResult:
        """Run a program as the service account. Only root and the account itself can do this."""
        account = self.account
        if os.geteuid() == account.pw_uid:
            return self.run(*words, stdin=stdin)
        if not self.is_root:
            raise Unread("only root and the service account can try this", to_do="run this as root")
        as_account = (f"--reuid={account.pw_uid}", f"--regid={account.pw_gid}", "--init-groups", "--")
        return self.run("setpriv", *as_account, *words, stdin=stdin)

    def probe(self, name: str, *arguments: str) -> dict[str, Any]:
        """Run a probe (`probe.py`) as the service account."""
        words = (sys.executable, "-P", "-m", "gleaner.control.doctor.probe", name)
        ended = self.run_as_account(*words, stdin=json.dumps(arguments))
        try:
            answer: dict[str, Any] = untrusted.json_of(ended.stdout)
        except ValueError as error:
            raise Unread(f"{self.account.pw_name} cannot try this: {complaint(ended)}") from error
        if "error" in answer:
            raise Unread(str(answer["error"]))
        return answer

    def is_refused(self, path: Path, access: str) -> bool:
        """Return True if the service account is known to lack this access (`r` or `w`) to a path."""
        try:
            return self.run_as_account("test", f"-{access}", str(path)).status != 0
        except Unread:
            return False

    def printed(self, *words: str) -> str:
        """Return the output of a program that must succeed. Each program is run only once."""
        ended = self.once(" ".join(words), partial(self.run, *words))
        if ended.status != 0:
            raise Unread(f"{' '.join(words[:3])} failed: {complaint(ended)}")
        return ended.stdout

    def place(self, path: str | Path) -> FileStatus:
        """Return the owner and mode of a file or folder."""
        try:
            facts = Path(path).stat()
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError)
            why = f"there is no {path}" if is_missing else f"{path} cannot be looked at: {error.strerror}"
            raise Unread(why, is_missing=is_missing) from error
        return FileStatus(facts.st_uid, stat.S_IMODE(facts.st_mode), facts.st_mtime)

    def text(self, path: str | Path) -> str:
        """Return a file's text, at most a mebibyte."""
        place = self.place(path)
        try:
            with Path(path).open("rb") as file:
                return untrusted.text_of(file.read(_LARGEST_FILE))
        except OSError as error:
            raise Unread(f"{path} ({place}) cannot be read: {error.strerror}") from error

    @property
    def settings(self) -> Settings:
        """Return the settings of control and of the command line."""
        try:
            return self.once("settings", self._load)
        except InputError as error:
            raise Unread(str(error)) from error

    @property
    def privileged(self) -> config.Config:
        """Return the settings of the programs that run as root."""
        path = self.at(config.CONFIG_FILE)
        try:
            return config.load(str(path))
        except config.Misconfigured as error:
            raise Unread(str(error), is_missing=not path.exists()) from error

    @property
    def agent(self) -> "SiteAgentSettings":
        """Return the agents' settings. Raises an error of one line with the file, the line and the fault."""
        return self.once("agent", _agent_settings)

    @property
    def account(self) -> pwd.struct_passwd:
        """Return the service account.

        It is the owner of the storage folder or, on other machines, the agents' account.
        """
        return self.once("account", self._find_account)

    def _find_account(self) -> pwd.struct_passwd:
        uid = self.privileged.agent_uid if self.role is MachineRole.NODE else None
        if self.role is MachineRole.CONTROL:
            folder = self.settings.storage.folder
            with suppress(OSError, NotInTime):  # the checks of the storage report it
                uid = started(lambda: folder.stat().st_uid).result(timeout=_OWNER_S)
        try:
            return pwd.getpwnam(_USUAL_ACCOUNT) if uid is None else pwd.getpwuid(uid)
        except KeyError as error:
            raise Unread(f"there is no account {uid or _USUAL_ACCOUNT} on this machine", is_missing=True) from error

    @property
    def account_name(self) -> str:
        """Return the name of the service account, even if the account is unknown."""
        try:
            return self.account.pw_name
        except Unread:
            return _USUAL_ACCOUNT

    @property
    def storage_folder(self) -> Path:
        """Return the storage folder from this machine's settings."""
        return self.agent.storage if self.role is MachineRole.NODE else self.settings.storage.folder

    @property
    def storage(self) -> dict[str, Any]:
        """Return the facts of the storage folder, as the service account sees it (`probe.storage`)."""
        return self.once("storage", lambda: self.probe("storage", str(self.storage_folder)))

    @property
    def url(self) -> str:
        """Return the address at which this machine expects control."""
        return (self.agent.control_url if self.role is MachineRole.NODE else self.settings.client.url)[0]

    def ask(self, path: str, *, token: str = "") -> connection.HttpAnswer:
        """Send a request to control."""
        ca_file = self.agent.ca_file if self.role is MachineRole.NODE else self.settings.client.ca_file
        # Keep some time to report a server that hangs.
        return connection.ask(self.url, path, ca_file, within_s=0.7 * self.left_s, token=token)

    @property
    def health(self) -> connection.HttpAnswer:
        """Return control's answer to `/health`, which needs no token.

        While control's database is slow, the request is repeated for up to half of the look's time, because a busy
        machine is not a fault.
        """
        return self.once("health", self._ask_health)

    def _ask_health(self) -> connection.HttpAnswer:
        half_s = time.monotonic() + self.left_s / 2
        while True:
            answer = self.ask("/health")
            if answer.values.get("queue", "ok") == "ok" or time.monotonic() > half_s:
                return answer
            time.sleep(_ASK_AGAIN_S)

    @property
    def token(self) -> str:
        """Return the user's token."""
        path = self.settings.client.token_file.expanduser()
        secret = self.text(path).strip()
        if not secret.isascii() or len(secret.split()) != 1 or secret[0] in "'\"":
            raise Unread(f"{path} does not contain exactly one token, without quotes or `Bearer`")
        return secret

    def answer_with_token(self, question: str) -> connection.HttpAnswer:
        """Return control's answer to a request with the user's token."""
        return self.once(question, partial(self.ask, question, token=self.token))


def _agent_settings() -> "SiteAgentSettings":
    try:
        from gleaner.agent.settings import SiteAgentSettings
    except ModuleNotFoundError as error:
        raise Unread(f"{error.name}, which agents need, is not installed here", is_missing=True) from error
    file = None
    try:
        file = read_toml(agent_file(), missing="no such file")
        return SiteAgentSettings()
    except ValidationError as error:
        place = file.place([str(part) for part in error.errors()[0]["loc"]]) if file else ""
        raise Unread(table_complaint(SiteAgentSettings, error.errors()[0], place=place)) from error
    except (InputError, OSError, ValueError) as error:
        raise Unread(one_line(str(error))) from error


def agent_file() -> Path:
    """Return the path of the agents' settings."""
    return Path(os.environ.get("GLEANER_AGENT_SETTINGS") or "/etc/gleaner/agent.toml")
