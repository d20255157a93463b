"""Run `gleaner-runc`, an OCI runtime that behaves like runc, but saves to and restores from an agent.

Docker Engine (through containerd) calls the shim as it would call runc. Every call is passed to runc unchanged, except
for containers that have an agent's annotation `org.gleaner.handshake`, which comes from the engine's HostConfig and
never from a container image or a job's environment:

- `checkpoint`: CRIU's images stream to the agent that listens under that name, and containerd finds a small marker.
- `create`: the container is given an init, its user has a name, and it can make only sockets of the usual kinds
  (`own_config`).
- `pause`: a container that cannot be frozen continues to run (`freezing`).
- `resume`: it is not an error if a container already runs because CRIU was killed. Otherwise the engine would consider
  it paused permanently.
- `kill` with SIGKILL: the processes of a frozen container are killed before they run again. A container that runc
  considers ended, but whose processes still run, is also killed.
- `delete`: the mounts that a restore has made for CRIU are unmounted, if runc and this program were killed in that
  restore.
- `create` with the annotation `org.gleaner.restore`: the process is restored from the images that the agent serves, and
  the freezer holds it back until the `start` that follows. So a plain `docker start` resumes a saved job, and the
  process does not end before the engine watches for its end.

The engine makes several calls for each container, whether it is ours or not, and waits for each call. So all calls that
do not concern us are passed to runc with only `os` and `sys` imported, and without reading any settings. Wrong settings
therefore do not stop any other user's container, and our own containers can still be killed and removed.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import sys

TYPE_CHECKING = False  # importing `typing` alone takes longer than all the rest
if TYPE_CHECKING:
    from typing import NoReturn

ANNOTATION_HANDSHAKE = "org.gleaner.handshake"
ANNOTATION_RESTORE = "org.gleaner.restore"
ANNOTATION_END = "org.gleaner.end-s"
"""The agent's end, in seconds since the epoch. A save or restore that is not done by then is given up."""
ANNOTATION_OWNER = "org.gleaner.owner"
"""The uid of a user job's owner. The service account's containers do not have this annotation.

A user job's checkpoints are sealed (`seal`).
"""
ANNOTATION_IMAGE = "org.gleaner.image"
"""The id of the container image of a user job."""
RESTORED = "gleaner-restored"
"""The name of an empty file in runc's folder for a container.

It means that the container was restored at `create`, and that `start` lets it run.
"""

# runc's options that are followed by a value. All others have no value, or have it after "=".
_GLOBAL_VALUES = {"--log", "--log-format", "--root", "--criu", "--rootless"}
_VALUES: dict[str, set[str]] = {
    "create": {"--bundle", "-b", "--console-socket", "--pidfd-socket", "--pid-file", "--preserve-fds"},
    "checkpoint": {
        "--image-path",
        "--work-path",
        "--parent-path",
        "--status-fd",
        "--page-server",
        "--manage-cgroups-mode",
        "--empty-ns",
    },
    "delete": set(),
    "kill": set(),
    "pause": set(),
    "resume": set(),
    "start": set(),
}
# The words after the container's name in a call that concerns us. Only `kill` has any.
_BEHIND: dict[str, tuple[list[str], ...]] = {"kill": (["KILL"], ["SIGKILL"], ["9"])}


class Call:
    """A parsed command line for runc."""

    def __init__(self, before: list[str], command: str, options: list[tuple[str, str | None]], container: str) -> None:
        self.globals = before
        """The words before the command."""
        self.command = command
        self.options = options
        self.container = container

    def option(self, *names: str) -> str | None:
        """Return the value of an option, or None if it is missing. If the option is repeated, the last one counts."""
        found = None
        for name, value in self.options:
            if name in names:
                found = value
        return found

    @property
    def folder(self) -> str:
        """The folder in which runc keeps the state of the container."""
        return os.path.join(self._global("--root") or "/run/runc", self.container)

    @property
    def log(self) -> str | None:
        """The file in which the caller looks for the reason for a failure."""
        return self._global("--log")

    def _global(self, sought: str) -> str | None:
        for number, word in enumerate(self.globals):
            if word == sought:
                return self.globals[number + 1]
            if word.startswith(f"{sought}="):
                return word.partition("=")[2]
        return None


def parse(words: list[str]) -> Call | None:
    """Return the call if it can concern us, or None for a call that is passed to runc unchanged.

    >>> parse(["--root", "/r", "checkpoint", "--image-path", "/i", "c1"]).option("--image-path")
    '/i'
    >>> parse(["--root", "/r", "state", "c1"]) is None
    True
    >>> parse(["kill", "--all", "c1", "9"]).container, parse(["kill", "c1", "TERM"])
    ('c1', None)
    """
    command_at = _skip_options(words, 0, _GLOBAL_VALUES)
    if command_at >= len(words) or words[command_at] not in _VALUES:
        return None
    command = words[command_at]
    end = _skip_options(words, command_at + 1, _VALUES[command])
    if end >= len(words) or words[end + 1 :] not in _BEHIND.get(command, ([],)):
        return None
    options: list[tuple[str, str | None]] = []
    at = command_at + 1
    while at < end:
        name, equals, value = words[at].partition("=")
        if not equals and name in _VALUES[command]:
            at += 1
            options.append((name, words[at]))
        else:
            options.append((name, value if equals else None))
        at += 1
    return Call(words[:command_at], command, options, words[end])


def _skip_options(words: list[str], at: int, with_value: set[str]) -> int:
    while at < len(words) and words[at].startswith("-") and words[at] != "-":
        at += 2 if words[at] in with_value else 1
    return at


def main(runc: str | None = None) -> NoReturn:
    """Carry out the command line, and exit as runc would.

    `runc` is the program to which other calls are passed, as recorded at installation. If it is None, the settings name
    the program.
    """
    words = sys.argv[1:]
    call = parse(words)
    if call is not None:
        if call.command == "start" and _was_restored(call):
            from ..common import freezing, processes

            freezing.let_go(processes.cgroups_made_by_runc(call.folder))
            sys.exit(0)
        if call.command == "create" and _says(_config_of(call), ANNOTATION_HANDSHAKE):
            _change_config(call)
        if call.command in ("create", "checkpoint") and may_be_ours(call):
            from . import transfer

            status = transfer.run(call)
            if status is not None:
                sys.exit(status)
        if call.command == "delete" and os.path.isdir(os.path.join(call.folder, "criu-root")):
            from . import transfer

            transfer.unmount_for_criu(call)
    if runc is None:
        from ..common import config

        runc = config.load().runc
    if call is not None and call.command in ("kill", "pause", "resume") and may_be_ours(call):
        sys.exit(_done_after_all(call, [runc, *words]))
    os.execv(runc, [runc, *words])


def may_be_ours(call: Call) -> bool:
    """Return True if the annotation's name is anywhere in the engine's (`create`) or runc's file about the container.

    This quick check can be wrong only when it returns True. `transfer` finds out later whether the name *is* that of an
    annotation. For a file that cannot be read the answer is False, because runc reports the error.
    """
    if call.command == "create":
        return _says(_config_of(call), ANNOTATION_RESTORE)
    return _says(os.path.join(call.folder, "state.json"), ANNOTATION_HANDSHAKE)


def _config_of(call: Call) -> str:
    return os.path.join(call.option("--bundle", "-b") or ".", "config.json")


def _says(path: str, sought: str) -> bool:
    try:
        with open(path, "rb") as file:
            return sought.encode() in file.read()
    except OSError:
        return False


def _change_config(call: Call) -> None:
    from . import own_config

    try:
        own_config.change(os.path.dirname(_config_of(call)), ANNOTATION_HANDSHAKE)
    except (OSError, *own_config.MALFORMED) as error:
        sys.stderr.write(f"gleaner-runc: the container's configuration cannot be changed: {error}\n")
        sys.exit(1)


def _done_after_all(call: Call, words: list[str]) -> int:
    """Have runc carry out the call.

    Return runc's exit status, or 0 if runc has failed but the requested result was reached nevertheless.
    """
    from ..common import freezing, processes

    folders = processes.cgroups_made_by_runc(call.folder)
    if call.command == "kill" and freezing.end_frozen(folders):
        return 0
    _, how = os.waitpid(os.posix_spawn(words[0], words, os.environ), 0)
    status = os.waitstatus_to_exitcode(how)
    if status != 0:
        done = {"kill": freezing.end, "pause": freezing.holds_after_all, "resume": freezing.goes_on_after_all}
        if done[call.command](folders):
            return 0
    return abs(status)


def _was_restored(call: Call) -> bool:
    try:
        os.unlink(os.path.join(call.folder, RESTORED))
    except OSError:
        return False
    return True
