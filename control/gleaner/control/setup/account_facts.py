"""Facts that are read as the service account: what it may open, write and start. Root becomes it for each."""

import errno
import os
import pwd
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from gleaner.agent.system import untrusted
from gleaner.control.input_errors import one_line
from gleaner.control.setup import machine_facts, reading
from gleaner.control.setup.facts import (
    Output,
    QueueFacts,
    SecretKeyFacts,
    StorageFacts,
    Unread,
    sqlite_file,
)
from gleaner.control.slurm import munge as munge_programs
from gleaner.control.slurm.commands import NODE_PATH

Told = TypeVar("Told")
_PROBE = "gleaner.control.setup.storage_probe"
_QUEUE_PROBE = "gleaner.control.setup.queue_probe"
_KEY_PROBE = "gleaner.control.setup.key_probe"
_HELPER = "import sys; from gleaner.agent.runtime.helper_client import HelperClient as C; C(sys.argv[1]).ask('facts')"

_NOT_THE_ACCOUNT = Unread("this can be tried by root, or by the service account")
_MUNGE_SAYS = "munge: Error: "
_NOT_OPEN = 9
_BECOME = """\
become=
if [ "$(id -u)" = 0 ]; then become="setpriv --reuid=$2 --regid=$(id -g "$2") --init-groups"; fi
"""
_MAY_OPEN = f"""{_BECOME}\
$become test -e / || exit 1
$become test -w "$1" && exit 0
stat -L -c '%U:%G, mode %a' "$1" && exit 9
"""
_MAY_WRITE = f"""{_BECOME}\
folder=$(dirname "$1")
$become test -e / || exit 1
[ -d "$folder" ] || {{ echo "there is no folder $folder"; exit 9; }}
for place in "$folder" "$1"; do
  [ "$place" = "$1" ] && ! [ -e "$place" ] && continue
  $become test -w "$place" || {{ stat -L -c '%n is %U:%G, mode %a' "$place"; exit 9; }}
done
"""
"""The folder, too: old audit lines are renamed in it."""
_CANNOT_BECOME = 9
_START_AGENT = f"""{_BECOME}\
cd /
export PATH="$3" PYTHONDONTWRITEBYTECODE=1
$become true || exit 9
exec $become "$1" --version
"""


def _told(ended: Output, make: Callable[..., Told], *, where: Path, verb: str) -> Told | Unread:
    """Return the facts that a probe has printed as JSON."""
    try:
        answer = untrusted.json_of(ended.stdout)
        if "error" in answer:
            return Unread(f"{where}: {answer['error']}", bool(answer["is_missing"]))
        return make(**answer)
    except (ValueError, TypeError):
        return Unread(f"{where} cannot be {verb}: {ended.complaint}")


def storage(folder: Path, uid: int, patience_s: float) -> StorageFacts | Unread:
    """Return the facts of the storage folder, by a program of its own that acts as the service account."""
    ended = reading.run((sys.executable, "-P", "-m", _PROBE, str(folder), str(uid)), within_s=patience_s)
    if isinstance(ended, Unread):
        return Unread(f"the storage folder {folder} did not answer within {patience_s:g} s")
    return _told(ended, StorageFacts, where=folder, verb="tried")


def secret_key(path: Path, folder: Path, database: Path | None, patience_s: float) -> SecretKeyFacts | Unread:
    """Return the facts of the key for secrets, by a program of its own that acts as the owner of the storage folder.

    `database` is the SQLite queue with the groups' secrets, which the key must open.
    """
    words = (sys.executable, "-P", "-m", _KEY_PROBE, str(path), str(folder), str(database or ""))
    ended = reading.run(words, within_s=patience_s)
    if isinstance(ended, Unread):
        return Unread(f"{path} was not read within {patience_s:g} s")
    try:
        answer = untrusted.json_of(ended.stdout)
        return Unread(f"{path}: {answer['error']}") if "error" in answer else SecretKeyFacts(**answer)
    except (ValueError, TypeError):
        return Unread(f"{path} cannot be looked at")  # what the program has printed may have a part of the key


def start_of_agent(url: str, ca_file: Path | None, uid: int, patience_s: float) -> Output | Unread:
    """Start the program that control starts on nodes, as the service account, and only for its version.

    Root reads any file: its own success says nothing.
    """
    ends_s = time.monotonic() + patience_s
    control = machine_facts.control(url, ca_file, patience_s)
    found = machine_facts.find_controls_agent(control, within_s=patience_s)
    if isinstance(found, Unread):
        return found
    path = found.stdout
    if Path(path).name != machine_facts.AGENT_PROGRAM:
        return Unread(f"control starts {path}, a program of the site's, which is not tried")
    if os.geteuid() not in {0, uid}:
        return _NOT_THE_ACCOUNT
    left_s = max(0.0, ends_s - time.monotonic())
    ended = reading.run(("sh", "-c", _START_AGENT, "sh", path, str(uid), NODE_PATH), within_s=left_s)
    if isinstance(ended, Unread):
        return Unread(f"{path} was not started within {patience_s:g} s")
    return Unread(ended.complaint) if ended.status == _CANNOT_BECOME else ended


def queue(url: str, uid: int, patience_s: float) -> QueueFacts | Unread:
    """Return the facts of an SQLite queue, by a program of its own that acts as the service account."""
    path = sqlite_file(url)
    ended = reading.run((sys.executable, "-P", "-m", _QUEUE_PROBE, str(path), str(uid)), within_s=patience_s)
    if isinstance(ended, Unread):
        return Unread(f"{path} could not be looked at within {patience_s:g} s")
    return _told(ended, QueueFacts, where=path, verb="looked at")


def helper(socket: str, uid: int, patience_s: float) -> str | Unread:
    """Return an empty text if the node helper answers. Root asks as the service account: no other root is answered."""
    become = ("setpriv", f"--reuid={uid}", "--clear-groups") if os.geteuid() == 0 else ()
    ended = reading.run((*become, sys.executable, "-P", "-c", _HELPER, socket), within_s=patience_s)
    if isinstance(ended, Unread):
        return ended
    if ended.status == 0:
        return ""
    return Unread(ended.complaint.removeprefix("gleaner.agent.runtime.interface.RuntimeFault: "))


def docker_socket(url: str, uid: int, patience_s: float) -> str | Unread:
    """Return an empty text if the service account may open Docker's socket, else the socket's owner, group and mode.

    Root asks as the service account, with the groups that this machine gives it: Docker answers root in any case.
    """
    path = url.removeprefix("unix://")
    if path == url:
        return Unread(f"{url} is no socket of this machine")
    return _refusal(_MAY_OPEN, path, uid, patience_s)


def audit_file(path: Path | None, uid: int, patience_s: float) -> str | Unread:
    """Return an empty text if the service account may write this file in its folder, else what it may not write."""
    if path is None:
        return ""
    return _refusal(_MAY_WRITE, str(path), uid, patience_s)


def _refusal(script: str, path: str, uid: int, patience_s: float) -> str | Unread:
    """Return an empty text if the script finds that the account may use this path, else what it prints."""
    if os.geteuid() not in {0, uid}:
        return _NOT_THE_ACCOUNT
    ended = reading.run(("sh", "-c", script, "sh", path, str(uid)), within_s=patience_s)
    if isinstance(ended, Unread):
        return ended
    if ended.status == _NOT_OPEN and ended.stdout.strip():
        return one_line(ended.stdout)
    return "" if ended.status == 0 else Unread(ended.complaint)


def munge(socket: Path | None, uid: int, patience_s: float) -> str | Unread:
    """Return the number of the user in a credential that munge has made and read, both here.

    Root has it made as the service account: root itself may open any socket.
    """
    where = socket if socket is not None and socket.exists() else None
    try:
        credential = _credential_of(uid, where, patience_s / 2)
        if isinstance(credential, Unread):
            return credential
        return str(munge_programs.decode(credential, socket=where, timeout_s=patience_s / 2).uid)
    except munge_programs.MungeError as error:
        return Unread(one_line(str(error)), is_missing="not installed" in str(error))


def _credential_of(uid: int, socket: Path | None, within_s: float) -> str | Unread:
    """Return a credential of the service account, or of who runs this. Raises `MungeError`."""
    if os.geteuid() == 0 and uid > 0:
        with suppress(KeyError):  # without a name, the account gets no groups
            entry = pwd.getpwuid(uid)
            become = ("setpriv", f"--reuid={uid}", f"--regid={entry.pw_gid}", "--init-groups")
            where = () if socket is None else (f"--socket={socket}",)
            ended = reading.run((*become, "munge", "--no-input", *where), within_s=within_s)
            if not isinstance(ended, Unread) and ended.status == 0:
                return ended.stdout.strip()
            said = "" if isinstance(ended, Unread) else " ".join(ended.stderr.split())
            if said.startswith(_MUNGE_SAYS) and os.strerror(errno.EACCES) in said:
                reason = said.removeprefix(_MUNGE_SAYS).partition(" (Did you")[0]
                return Unread(f"munge refuses {entry.pw_name}: {one_line(reason)}")
    return munge_programs.encode("glean doctor", socket=socket, timeout_s=within_s)
