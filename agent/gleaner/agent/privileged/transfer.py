"""One save or one restore: a meeting with the agent, and runc, whose CRIU streams (`criu`) over what was agreed there.

Nothing of the agent's is opened here, and what it says is looked at before it is used. When the agent is killed, its
ends of the pipes close with it, and CRIU lets the container go on. One that is there and does nothing (stopped, or
stuck in its storage) would hold CRIU for ever, and with it the engine's hand on the container: so at the agent's end
CRIU is killed, and the container too, since CRIU may have left it in disorder. What we keep meanwhile lies in a folder
of root's own, which goes with the call, or with the next one if this one was killed.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import fcntl
import json
import os
import re
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from . import cgroups, config, folders, freezing, links, linux, meeting, own_jobs, vdso
from .processes import kill_descendants, kill_with_descendants
from .seal import Broken, Relay, Sealed, opened, seal
from .shim import (
    ANNOTATION_END,
    ANNOTATION_IMAGE,
    ANNOTATION_MEETING,
    ANNOTATION_OWNER,
    ANNOTATION_RESTORE,
    RESTORED,
)

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from .shim import Call

MARKER = "gleaner"
END_VARIABLE = "GLEANER_END_S"
DESCRIPTORS = "descriptors.json"
"""Where runc keeps which pipes the process had as its standard streams."""
_LOG_TAIL_BYTES = 64 * 2**10
_STREAM_CHARS = 4096
_CLEAN_UP_S = 2.0
_LOOK_S = 60.0
"""How often the clock is looked at: it may be set."""
_PIPE = re.compile(r"pipe:\[[0-9]{1,20}\]\Z")


def run(call: Call) -> int | None:
    """Save or restore, if the call is for a container of an agent's; the exit status. None if runc is to do it."""
    try:
        if call.command == "checkpoint":
            annotations = _annotations_of_state(call)
            if ANNOTATION_MEETING in annotations:
                return _save(config.load(), call, annotations)
        else:
            annotations = _annotations_of_bundle(call)
            if annotations.get(ANNOTATION_RESTORE):
                return _restore(config.load(), call, annotations)
    except (config.Misconfigured, meeting.NotMet, Broken, links.Foreign, OSError, ValueError) as error:
        _say_why(call, f"gleaner-runc: {error}")
        return 1
    return None


def _annotations_of_state(call: Call) -> dict[str, str]:
    """What a container was created with; runc keeps annotations as labels in its state."""
    with open(os.path.join(call.folder, "state.json"), encoding="utf-8") as file:
        labels: list[str] = json.load(file)["config"].get("labels") or []
    return dict(label.split("=", 1) for label in labels if "=" in label)


def _annotations_of_bundle(call: Call) -> dict[str, str]:
    with open(os.path.join(call.option("--bundle", "-b") or ".", "config.json"), encoding="utf-8") as file:
        annotations: dict[str, str] = json.load(file).get("annotations") or {}
    return annotations


def _save(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Stream the memory to the agent. On a failure the container is as it was, and the agent is told why."""
    image_path, end_s = call.option("--image-path"), _end(annotations)
    if image_path is None:
        raise ValueError("a checkpoint without --image-path")
    _must_stand_still(call)
    owner, met = _met(settings, annotations)
    with own_folder(settings) as own:
        listener = meeting.listening(own, meeting.CAPTURE_SOCKET)
        relay, given = _relayed(own, listener, None) if owner.key else (None, listener)
        met.say({"version": meeting.VERSION, "do": "save", "container": call.container}, given.fileno())
        given.close()
        kept = [(name, value) for name, value in call.options if name not in ("--image-path", "--work-path")]
        words = [*kept, *_paths(own)]
        status = _run(settings, call, "checkpoint", own, words, end_s=end_s, owner=owner, relay=relay)
        if status == 0:
            _must_stand_still(call)
        descriptors = _text(os.path.join(own, DESCRIPTORS)) if status == 0 else ""
        last = {"descriptors": descriptors}
        if relay is not None and status == 0:
            relay.finish(end_s)
            last["seal"] = seal(owner.key, owner.uid, Sealed(descriptors, relay.images, owner.image))
        if status == 0:
            os.makedirs(image_path, mode=0o700, exist_ok=True)
            with open(os.path.join(image_path, MARKER), "w", encoding="utf-8") as marker:
                # Never the same twice: containerd refuses content that it already takes in for another container.
                marker.write(f"The images are with Gleaner's agent, {os.urandom(16).hex()}.\n")
        met.say({"status": status, "log": _log_tail(f"{own}/work"), **last})
    met.close()
    return status


def _must_stand_still(call: Call) -> None:
    """Raise `ValueError` if the container goes on, whoever takes it for paused."""
    if freezing.goes_on_after_all(cgroups.made_by_runc(call.folder)):
        raise ValueError(f"{call.container} is not paused: its files would be of another time than its memory")


def _restore(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Restore from what the agent serves, where runc would have created a new process."""
    end_s = _end(annotations)
    owner, met = _met(settings, annotations)
    met.say({"version": meeting.VERSION, "do": "restore", "container": call.container})
    answer, unwanted = met.hear()
    if unwanted is not None:
        os.close(unwanted)
    sealed = opened(owner.key, owner.uid, answer.get("seal"), owner.image) if owner.key else None
    descriptors = checked_descriptors(sealed.descriptors if sealed else answer.get("descriptors"))
    with own_folder(settings) as own:
        with open(os.path.join(own, DESCRIPTORS), "w", encoding="utf-8") as file:
            json.dump(descriptors, file)
        listener = meeting.listening(own, meeting.SERVE_SOCKET)
        relay, given = _relayed(own, listener, sealed, vdso.Guard())
        met.say({"listening": True}, given.fileno())
        given.close()
        passed = ("--bundle", "-b", "--pid-file", "--console-socket", "--no-pivot")
        options = [(name, value) for name, value in call.options if name in passed]
        words = [*options, ("--detach", None), *_paths(own)]
        try:
            with (
                _without_links(settings, call, own, owner.uid) if sealed else contextlib.nullcontext(),
                contextlib.ExitStack() as on_failure,
            ):
                on_failure.callback(_end_what_is_left, call)
                status = _run(settings, call, "restore", own, words, end_s=end_s, owner=owner, relay=relay)
                if status == 0:
                    with open(os.path.join(call.folder, RESTORED), "w", encoding="utf-8"):
                        pass
                    on_failure.pop_all()
        except Broken as error:
            with contextlib.suppress(meeting.NotMet):
                met.say({"status": 1, "log": f"(00.000000) Error (seal.py:0): {error}\n"})
            raise
        # An agent that is gone by now has lost its container, as at any later time: that is the watchdog's to mend.
        with contextlib.suppress(meeting.NotMet):
            met.say({"status": status, "log": "" if status == 0 else _log_tail(f"{own}/work")})
    met.close()
    return status


def _end_what_is_left(call: Call) -> None:
    """End what runc and CRIU have left of a restore that failed.

    Where CRIU itself was killed near its end, the container's processes go on, and nobody else knows of them. Where
    runc was, the container's files stay mounted for CRIU.
    """
    until_s = time.monotonic() + _CLEAN_UP_S
    while not _all_have_ended() and time.monotonic() < until_s:
        kill_descendants(os.getpid())  # not only once: what is just being forked may be seen by no look
        time.sleep(0.01)
    unmount_for_criu(call)


def unmount_for_criu(call: Call) -> None:
    """Unmount what runc has mounted for CRIU in the container's folder. A mount that is stuck is left."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        folders.unmount_below(os.path.realpath(call.folder))


def _all_have_ended() -> bool:
    """Return True if no child of ours is left. Only then can a cgroup be removed."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return False
    return True


@contextlib.contextmanager
def _without_links(settings: config.Config, call: Call, own: str, uid: int) -> Generator[None]:
    """`criu` puts them back before the processes go on; whatever else happens, it is done here."""
    bundle = call.option("--bundle", "-b") or "."
    of_layer: list[links.Kept] = []
    with contextlib.suppress(FileNotFoundError):
        of_layer = links.kept_in(bundle)
    links.keep(own, links.freeze(os.path.join(bundle, "job"), uid, disk=settings.users_work), *of_layer)
    try:
        yield
    finally:
        links.put_back(own)


def _relayed(
    own: str, listener: socket.socket, sealed: Sealed | None, guard: vdso.Guard | None = None
) -> tuple[Relay, socket.socket]:
    """A relay for what CRIU says at `listener`, and the socket at which the other side is to listen instead."""
    given = meeting.listening(own, "relayed.sock")
    return Relay(listener, os.path.join(own, "relayed.sock"), sealed, guard), given


def checked_descriptors(text: object) -> list[str]:
    """What the process had as its three standard streams. Raises `NotMet`.

    runc looks only at pipes, and hands their names to CRIU; with fewer than three entries it crashes.

    >>> checked_descriptors('["/dev/null", "pipe:[7]", "pipe:[8]"]')
    ['/dev/null', 'pipe:[7]', 'pipe:[8]']
    """
    found: list[str] = []
    if isinstance(text, str):
        with contextlib.suppress(ValueError, RecursionError):
            found = json.loads(text)
    if type(found) is not list or len(found) != 3:
        raise meeting.NotMet("the agent names no three descriptors")
    for stream in found:
        if type(stream) is not str or len(stream) > _STREAM_CHARS or not stream.isprintable():
            raise meeting.NotMet("the agent names a descriptor that is no text")
        if "pipe:" in stream and not _PIPE.match(stream):
            raise meeting.NotMet(f"the agent names a descriptor {stream[:100]!r}, which is no pipe")
    return found


class _Owner(NamedTuple):
    """Whose container it is, and what its saves are sealed with: empty for the service account's."""

    uid: int
    key: bytes
    image: str = ""


def _met(settings: config.Config, annotations: dict[str, str]) -> tuple[_Owner, meeting.Meeting]:
    """Go to the one who waits. Raises `NotMet`, or `Misconfigured`."""
    name, uid = annotations.get(ANNOTATION_MEETING, ""), annotations.get(ANNOTATION_OWNER)
    if uid is None:
        return _Owner(settings.agent_uid, b""), meeting.meet(settings.meetings, name, settings.agent_uid)
    if not settings.own_jobs_key:
        raise config.Misconfigured("users' own jobs are not served on this node: own_jobs_key is not set")
    owner = _Owner(int(uid), config.key(settings), annotations.get(ANNOTATION_IMAGE, ""))
    place = own_jobs.meetings(settings, meeting.checked_name(name))
    return owner, meeting.meet(place, name, owner.uid)


@contextlib.contextmanager
def own_folder(settings: config.Config) -> Generator[str]:
    """A new folder that only root can enter, removed at the end; those of calls that were killed are removed too."""
    os.makedirs(settings.own, mode=0o700, exist_ok=True)
    whole = os.open(settings.own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        facts = os.fstat(whole)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ValueError(f"{settings.own} must be root's alone: chmod 700")
        fcntl.flock(whole, fcntl.LOCK_EX)
        for name in os.listdir(whole):
            _remove_unless_held(os.path.join(settings.own, name))
        path = os.path.join(settings.own, f"{os.getpid()}-{os.urandom(4).hex()}")
        os.mkdir(path, 0o700)
        held = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(held, fcntl.LOCK_EX)  # for as long as this process lives; children do not inherit it
    finally:
        os.close(whole)
    try:
        os.mkdir(os.path.join(path, "work"), 0o700)
        yield path
    finally:
        folders.remove(path)
        os.close(held)


def is_held(path: str) -> bool:
    """Return True while the call that has made this folder lives."""
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:  # the next call has removed it
        return False
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(folder)
    return False


def _remove_unless_held(path: str) -> None:
    try:
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except OSError:  # gone by now
        return
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folders.remove(path)
    except BlockingIOError:
        pass
    finally:
        os.close(folder)


def _end(annotations: dict[str, str]) -> float:
    """When the agent has to be gone; never, if nobody says it. Raises `ValueError` for what is no time.

    The node helper, which asks Slurm anew, may know it better than the annotation.
    """
    end_s = float(os.environ.get(END_VARIABLE) or annotations.get(ANNOTATION_END, "inf"))
    if not end_s > 0:
        raise ValueError(f"the agent's end is said to be {end_s}")
    return end_s


def _run(
    settings: config.Config,
    call: Call,
    command: str,
    own: str,
    options: list[tuple[str, str | None]],
    *,
    end_s: float,
    owner: _Owner,
    relay: Relay | None,
) -> int:
    """runc, which finds our `criu` before any other.

    Raises `NotMet` when the agent's end comes first, and `Broken` when CRIU was to be given what was not saved.
    """
    words: list[str] = [settings.runc, *call.globals, command]
    for name, value in options:
        words += [name] if value is None else [name, value]
    programs = os.path.join(settings.library, "bin")
    environment = {
        **os.environ,
        "GLEANER_OWN": own,
        "GLEANER_UID": str(owner.uid),
        "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
    }
    linux.become_subreaper()  # what loses its parent below us stays below us, and can be ended
    runc = subprocess.Popen([*words, call.container], env=environment)
    ended = os.pidfd_open(runc.pid)
    watched = select.poll()
    watched.register(ended, select.POLLIN)
    if relay is not None:
        watched.register(relay.failed, select.POLLIN)
    while True:
        ready = dict(watched.poll(min(max(0.0, end_s - time.time()), _LOOK_S) * 1000))
        if relay is not None and relay.failed in ready and command == "restore":
            _take_down(runc, settings, call, patience_s=_CLEAN_UP_S)
            raise Broken(relay.reason)
        if ended in ready:
            status = runc.wait()
            if command == "restore" or _all_have_ended():
                return status
            time.sleep(0.05)  # runc was killed, and CRIU undoes what it has begun: nobody may thaw the container before
        if relay is not None and relay.failed in ready:  # its pipes are closed, so CRIU's save fails too
            watched.unregister(relay.failed)
        if time.time() >= end_s:
            # After a save, CRIU may have left the container in disorder: it must not go on meanwhile.
            _take_down(runc, settings, call, patience_s=_CLEAN_UP_S if command == "restore" else None)
            raise meeting.NotMet("the agent's end has come, and it was not done")


def _take_down(runc: subprocess.Popen[bytes], settings: config.Config, call: Call, *, patience_s: float | None) -> None:
    """End what runc has begun, and the container after it.

    With patience CRIU is ended first, and runc has this long to take down what it has mounted. Without it all end at
    once.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        if patience_s is not None:
            kill_descendants(runc.pid)
            runc.wait(patience_s)
    if runc.returncode is None:
        kill_with_descendants(runc.pid)
        runc.wait()
    kill_descendants(os.getpid())  # CRIU, where the program between it and runc was killed
    subprocess.call([settings.runc, *call.globals, "kill", call.container, "KILL"])


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


def _say_why(call: Call, why: str) -> None:
    """Say it where runc's callers look: in the log that they named, and on standard error."""
    if call.log is not None:
        with contextlib.suppress(OSError), open(call.log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": why}) + "\n")
    sys.stderr.write(why + "\n")
