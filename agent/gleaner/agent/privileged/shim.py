"""`gleaner-runc`: an OCI runtime that is runc, but saves to and restores from an agent.

Docker Engine (its containerd) calls it as it calls runc. Every call goes to runc unchanged, except for containers
that carry an agent's annotation `org.gleaner.meeting`, which comes from the engine's HostConfig and neither from an
image nor from a job's environment:

- `checkpoint`: CRIU's images stream to the agent that waits under that name; containerd finds a small marker.
- `create` with the annotation `org.gleaner.restore`: the process is restored from what the agent serves, and the
  `start` that follows has nothing left to do. So a plain `docker start` resumes a saved job.
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
import shutil
import subprocess
import sys
import tempfile
from typing import Any, NamedTuple, NoReturn

from . import config, meeting

ANNOTATION_MEETING = "org.gleaner.meeting"
ANNOTATION_RESTORE = "org.gleaner.restore"
MARKER = "gleaner"
RESTORED = "gleaner-restored"
"""In runc's own folder of a container: it was restored at `create`, so the `start` to come is done already."""
_LOG_TAIL_BYTES = 64 * 2**10
_DESCRIPTORS = "descriptors.json"
"""Where runc keeps which pipes the process had as its standard streams."""

# runc's options that are followed by a value; all others stand alone, or have it after "=".
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
    "start": set(),
}


class Call(NamedTuple):
    """A command line for runc, taken apart."""

    globals: list[str]
    command: str
    options: list[tuple[str, str | None]]
    container: str

    def option(self, *names: str) -> str | None:
        """The value of an option; the last one counts."""
        found = None
        for name, value in self.options:
            if name in names:
                found = value
        return found

    @property
    def root(self) -> str:
        """Where runc keeps the state of its containers."""
        for number, word in enumerate(self.globals):
            if word == "--root":
                return self.globals[number + 1]
            if word.startswith("--root="):
                return word.partition("=")[2]
        return "/run/runc"

    @property
    def log(self) -> str | None:
        """The file in which the caller looks for the reason of a failure."""
        for number, word in enumerate(self.globals):
            if word == "--log":
                return self.globals[number + 1]
            if word.startswith("--log="):
                return word.partition("=")[2]
        return None


def parse(words: list[str]) -> Call | None:
    """The call, if it is one of those that may concern us; None for all that goes to runc as it is.

    >>> parse(["--root", "/r", "checkpoint", "--image-path", "/i", "c1"]).option("--image-path")
    '/i'
    >>> parse(["--root", "/r", "state", "c1"]) is None
    True
    """
    command_at = _skip_options(words, 0, _GLOBAL_VALUES)
    if command_at >= len(words) or words[command_at] not in _VALUES:
        return None
    command = words[command_at]
    end = _skip_options(words, command_at + 1, _VALUES[command])
    if end != len(words) - 1:
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


def main() -> NoReturn:
    """Entry point: do what the words say, and exit as runc would."""
    words = sys.argv[1:]
    call = parse(words)
    try:
        settings = config.load()
    except config.Misconfigured as error:
        _fail(call, str(error))
    if call is not None:
        try:
            if call.command == "start" and _was_restored(call):
                sys.exit(0)
            if call.command == "checkpoint":
                annotations = _annotations_of_state(call)
                if ANNOTATION_MEETING in annotations:
                    sys.exit(_checkpoint(settings, call, annotations))
            if call.command == "create":
                annotations = _annotations_of_bundle(call)
                if annotations.get(ANNOTATION_RESTORE):
                    sys.exit(_restore(settings, call, annotations))
        except (meeting.NotMet, OSError, ValueError) as error:
            _fail(call, f"gleaner-runc: {error}")
    os.execv(settings.runc, [settings.runc, *words])


def _annotations_of_state(call: Call) -> dict[str, str]:
    """What a container was created with; runc keeps annotations as labels in its state."""
    with open(os.path.join(call.root, call.container, "state.json"), encoding="utf-8") as file:
        labels: list[str] = json.load(file)["config"].get("labels") or []
    return dict(label.split("=", 1) for label in labels if "=" in label)


def _annotations_of_bundle(call: Call) -> dict[str, str]:
    with open(os.path.join(call.option("--bundle", "-b") or ".", "config.json"), encoding="utf-8") as file:
        annotations: dict[str, str] = json.load(file).get("annotations") or {}
    return annotations


def _checkpoint(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Stream the memory to the agent. On a failure the container is as it was, and the agent is told why."""
    image_path = call.option("--image-path")
    if image_path is None:
        raise ValueError("a checkpoint without --image-path")
    met = _meet(settings, annotations)
    with _own_folder(settings) as own:
        listener = meeting.listening(own, meeting.CAPTURE_SOCKET)
        met.say({"version": meeting.VERSION, "do": "save", "container": call.container}, listener.fileno())
        listener.close()
        kept = [(name, value) for name, value in call.options if name not in ("--image-path", "--work-path")]
        status = _run(settings, call, "checkpoint", own, [*kept, *_paths(own)])
        if status == 0:
            os.makedirs(image_path, mode=0o700, exist_ok=True)
            with open(os.path.join(image_path, MARKER), "w", encoding="utf-8") as marker:
                marker.write("The images are with Gleaner's agent.\n")
        descriptors = _text(os.path.join(own, _DESCRIPTORS)) if status == 0 else ""
        met.say({"status": status, "descriptors": descriptors, "log": _log_tail(f"{own}/work")})
    met.close()
    return status


def _restore(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Restore from what the agent serves, where runc would have created a new process."""
    met = _meet(settings, annotations)
    met.say({"version": meeting.VERSION, "do": "restore", "container": call.container})
    answer, _ = met.hear()
    descriptors = answer.get("descriptors")
    if not isinstance(descriptors, str):
        raise meeting.NotMet("the agent names no descriptors")
    with _own_folder(settings) as own:
        with open(os.path.join(own, _DESCRIPTORS), "w", encoding="utf-8") as file:
            file.write(descriptors)
        listener = meeting.listening(own, meeting.SERVE_SOCKET)
        met.say({"listening": True}, listener.fileno())
        listener.close()
        passed = ("--bundle", "-b", "--pid-file", "--console-socket", "--no-pivot")
        options = [(name, value) for name, value in call.options if name in passed]
        status = _run(settings, call, "restore", own, [*options, ("--detach", None), *_paths(own)])
        if status == 0:
            with open(os.path.join(call.root, call.container, RESTORED), "w", encoding="utf-8"):
                pass
        met.say({"status": status, "log": "" if status == 0 else _log_tail(f"{own}/work")})
    met.close()
    return status


def _was_restored(call: Call) -> bool:
    try:
        os.unlink(os.path.join(call.root, call.container, RESTORED))
    except FileNotFoundError:
        return False
    return True


def _meet(settings: config.Config, annotations: dict[str, str]) -> meeting.Meeting:
    return meeting.meet(settings.meetings, annotations.get(ANNOTATION_MEETING, ""), settings.agent_uid)


class _own_folder:  # noqa: N801 - used as a function
    """A new folder that only root can enter, removed at the end."""

    def __init__(self, settings: config.Config) -> None:
        os.makedirs(settings.own, mode=0o700, exist_ok=True)
        facts = os.lstat(settings.own)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ValueError(f"{settings.own} must be root's alone: chmod 700")
        self._path = tempfile.mkdtemp(dir=settings.own)

    def __enter__(self) -> str:
        os.mkdir(os.path.join(self._path, "work"), 0o700)
        return self._path

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._path, ignore_errors=True)


def _run(settings: config.Config, call: Call, command: str, own: str, options: list[tuple[str, str | None]]) -> int:
    """runc, which finds our `criu` before any other."""
    words: list[str] = [settings.runc, *call.globals, command]
    for name, value in options:
        words += [name] if value is None else [name, value]
    programs = os.path.join(settings.library, "bin")
    environment = {**os.environ, "GLEANER_OWN": own, "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}"}
    return subprocess.call([*words, call.container], env=environment)


def _paths(own: str) -> list[tuple[str, str | None]]:
    return [("--image-path", own), ("--work-path", os.path.join(own, "work"))]


def _text(path: str) -> str:
    with open(path, encoding="utf-8") as file:
        return file.read()


def _log_tail(folder: str) -> str:
    """The end of CRIU's log, for the agent to find the reason in."""
    found = ""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
                found += file.read().decode("utf-8", "replace")
    return found


def _fail(call: Call | None, why: str) -> NoReturn:
    """Say why where runc's callers look: in the log that they named, and on standard error."""
    line: dict[str, Any] = {"level": "error", "msg": why}
    if call is not None and call.log is not None:
        try:
            with open(call.log, "a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError:
            pass
    sys.stderr.write(why + "\n")
    sys.exit(1)
