"""Carry out one save or restore: a handshake with the agent, and a call of runc, whose CRIU (`criu_call`) streams
images to or from the agent.

No path of the agent is opened here, and the agent's messages are checked before they are used. When the agent is
killed, its ends of the pipes close, and CRIU lets the container continue. An agent that exists but does nothing
(because it is stopped, or stuck in its storage) would hold up CRIU indefinitely, and so block the engine's calls on the
container. So at the agent's end CRIU is killed together with the container, since CRIU might have left it in an
inconsistent state. During the call, our files are in a folder that belongs to root. It is removed at the end of the
call, or by the next call if this one was killed.
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
from typing import TYPE_CHECKING, Any, NamedTuple

from ...system import ipc, openat, tar_policy
from ..common import bundle, config, freezing, linux, mounts, symlink_guard, user_jobs
from ..common.processes import cgroups_made_by_runc, first_process, kill_descendants, kill_with_descendants
from . import head_room, own_config, page_watchdog, vdso, written_layer
from .main import ANNOTATION_END, ANNOTATION_HANDSHAKE, ANNOTATION_IMAGE, ANNOTATION_OWNER, ANNOTATION_RESTORE, RESTORED
from .seal import Broken, Relay, SaveNotes, open_seal, seal
from .unsavable import Reason, log_line

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from .main import Call

MARKER = "gleaner"
END_VARIABLE = "GLEANER_END_S"
DESCRIPTORS = "descriptors.json"
"""The file in which runc lists the pipes that were the process's standard streams."""
_HELD_FILE = "held.json"
_LOG_TAIL_BYTES = 64 * 2**10
_STREAM_CHARS = 4096
_CLEAN_UP_S = 2.0
_PIPE = re.compile(r"pipe:\[[0-9]{1,20}\]\Z")


def run(call: Call) -> int | None:
    """Save or restore a container, if the call is for an agent's container.

    Return the exit status, or None if runc is to carry out the call.
    """
    try:
        if call.command == "checkpoint":
            annotations = _annotations_of_state(call)
            if ANNOTATION_HANDSHAKE in annotations:
                return _save(config.load(), call, annotations)
        else:
            annotations = _annotations_of_bundle(call)
            if annotations.get(ANNOTATION_RESTORE):
                return _restore(config.load(), call, annotations)
    except (
        config.Misconfigured,
        ipc.HandshakeFailed,
        Broken,
        symlink_guard.Foreign,
        written_layer.NotTaken,
        bundle.NoSuch,
        OSError,
        ValueError,
    ) as error:
        say_why(call, f"gleaner-runc: {error}")
        return 1
    return None


def _annotations_of_state(call: Call) -> dict[str, str]:
    """Return the annotations with which a container was created. runc keeps them as labels in its state."""
    with _reading(os.path.join(call.folder, "state.json")) as state:
        labels: list[str] = state["config"].get("labels") or []
        return dict(label.split("=", 1) for label in labels if "=" in label)


def _annotations_of_bundle(call: Call) -> dict[str, str]:
    with _reading(os.path.join(call.option("--bundle", "-b") or ".", "config.json")) as container:
        annotations: dict[str, Any] = dict(container.get("annotations") or {})
        if not all(isinstance(text, str) for text in annotations.values()):
            raise TypeError("an annotation is no text")
        return annotations


def _root_of_state(call: Call) -> str:
    with _reading(os.path.join(call.folder, "state.json")) as state:
        return os.path.realpath(str(state["config"]["rootfs"]))


def _root_of_bundle(call: Call) -> str:
    folder = call.option("--bundle", "-b") or "."
    with _reading(os.path.join(folder, "config.json")) as container:
        return os.path.realpath(os.path.join(folder, str(container["root"]["path"])))


@contextlib.contextmanager
def _reading(path: str) -> Generator[Any]:
    """Yield the content of a JSON file. Raises `ValueError` if it does not have the form that the context expects."""
    try:
        with open(path, encoding="utf-8") as file:
            yield json.load(file)
    except own_config.MALFORMED as error:
        raise ValueError(f"{path} is not understood ({type(error).__name__}: {error})") from error


def _save(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Stream the memory and the written files to the agent.

    After a failure the container is as before, and the agent is told the reason.
    """
    image_path, end_s = call.option("--image-path"), _end(annotations)
    if image_path is None:
        raise ValueError("a checkpoint without --image-path")
    _must_stand_still(call)
    owner, agent = _connect(settings, annotations)
    need = head_room.of_container(call.folder)
    if why := need.refusal():
        agent.say({"status": 1, "log": log_line(why)})
        raise ValueError(why.text)
    with own_folder(settings) as own:
        listener = ipc.listen(os.path.join(own, ipc.CAPTURE_SOCKET))
        relay, agents_socket = _make_relay(own, listener, saved=first_process(call.folder))
        agent.say({"version": ipc.VERSION, "do": "save", "container": call.container}, agents_socket.fileno())
        agents_socket.close()
        options = [(name, value) for name, value in call.options if name not in ("--image-path", "--work-path")]
        words = [*options, *_paths(own)]
        status = _run(settings, call, "checkpoint", own, words, end_s=end_s, owner=owner, relay=relay)
        last: dict[str, object] = {}
        if status == 0:
            with open(os.path.join(own, DESCRIPTORS), encoding="utf-8") as file:
                descriptors = file.read()
            init = own_config.packed_init(annotations["bundle"])  # runc's own label
            last = {"descriptors": descriptors, "init": init, "is_tight": need.peak > need.limit}
            relay.finish(end_s)
            if owner.key:
                last["seal"] = seal(owner.key, owner.uid, SaveNotes(descriptors, relay.images, owner.image))
            with _report_failure(agent):
                layers = written_layer.layers(settings, call.container, _root_of_state(call))
                written_layer.send(agent, layers, _most(settings), end_s)
            _must_stand_still(call)
            os.makedirs(image_path, mode=0o700, exist_ok=True)
            with open(os.path.join(image_path, MARKER), "w", encoding="utf-8") as marker:
                # The text is different each time, because containerd refuses content that it is already taking in for
                # another container.
                marker.write(f"The images are with Gleaner's agent, {os.urandom(16).hex()}.\n")
        agent.say({"status": status, "log": _log_tail(f"{own}/work"), **last})
    agent.close()
    return status


def _must_stand_still(call: Call) -> None:
    """Raise `ValueError` if the container runs, even if others consider it paused."""
    if freezing.goes_on_after_all(cgroups_made_by_runc(call.folder)):
        raise ValueError(f"{call.container} is not paused: its files would be of another time than its memory")


def _restore(settings: config.Config, call: Call, annotations: dict[str, str]) -> int:
    """Restore the container from what the agent serves, in a call where runc would have created a new process."""
    end_s = _end(annotations)
    owner, agent = _connect(settings, annotations)
    agent.say({"version": ipc.VERSION, "do": "restore", "container": call.container})
    answer, stray_descriptor = agent.hear()
    if stray_descriptor is not None:
        os.close(stray_descriptor)
    notes = open_seal(owner.key, owner.uid, answer.get("seal"), owner.image) if owner.key else None
    descriptors = check_descriptors(notes.descriptors if notes else answer.get("descriptors"))
    own_config.put_init(call.option("--bundle", "-b") or ".", answer.get("init"))
    links: tar_policy.Links | None = [] if notes else None
    if answer.get("layer"):
        with _report_failure(agent):
            written_layer.receive(agent, _root_of_bundle(call), _limit(settings, owner), end_s, links=links)
    wish = answer.get("lazy")
    with own_folder(settings) as own, _serving_pages(settings, call, own, agent, owner=owner, wish=wish) as pages:
        with open(os.path.join(own, DESCRIPTORS), "w", encoding="utf-8") as file:
            json.dump(descriptors, file)
        listener = ipc.listen(os.path.join(own, ipc.SERVE_SOCKET))
        relay, agents_socket = _make_relay(own, listener, notes=notes, guard=pages or vdso.Guard())
        if pages is not None:
            relay.pump(pages.watch)
        agent.say({"listening": True}, agents_socket.fileno())
        agents_socket.close()
        option_names = ("--bundle", "-b", "--pid-file", "--console-socket", "--no-pivot")
        options = [(name, value) for name, value in call.options if name in option_names]
        words = [*options, ("--detach", None), *_paths(own)]
        bundle_folder, is_tight = call.option("--bundle", "-b") or ".", answer.get("is_tight") is True
        try:
            with (
                head_room.lent(bundle_folder, f"{settings.own}.head-room", end_s, is_wanted=is_tight) as limit,
                contextlib.nullcontext() if links is None else _without_links(settings, call, own, owner.uid, links),
                contextlib.ExitStack() as on_failure,
            ):
                on_failure.callback(_end_rest, call, own)
                status = _run(settings, call, "restore", own, words, end_s=end_s, owner=owner, relay=relay)
                if status == 0 and limit is not None:
                    head_room.lower_limit(cgroups_made_by_runc(call.folder), limit)
                if status == 0 and pages is not None:
                    pages.arm()
                if status == 0:
                    with open(os.path.join(call.folder, RESTORED), "w", encoding="utf-8"):
                        pass
                    on_failure.pop_all()
        except Broken as error:
            with contextlib.suppress(ipc.HandshakeFailed):
                agent.say({"status": 1, "log": log_line(Reason(str(error), lasts=False))})
            raise
        # An agent that has ended by now loses its container, as at any later time, and the watchdog then ends the
        # container.
        with contextlib.suppress(ipc.HandshakeFailed):
            agent.say({"status": status, "log": "" if status == 0 else _log_tail(f"{own}/work")})
    agent.close()
    return status


@contextlib.contextmanager
def _serving_pages(
    settings: config.Config, call: Call, own: str, agent: ipc.Handshake, *, owner: _Owner, wish: object
) -> Generator[page_watchdog.Pages | None]:
    """Yield a page server if the agent wants one and the node can have one. Raises `HandshakeFailed` for a user job.

    The checkpoint of a user job is sealed, and memory that is served later might not be what was saved.
    """
    if wish is not True:
        yield None
    elif owner.key or owner.uid != settings.agent_uid:
        raise ipc.HandshakeFailed("a user job asks that its memory comes later")
    elif not page_watchdog.is_possible(settings):
        agent.say({"pages": False})
        yield None
    else:
        with page_watchdog.serving(call.folder, os.path.join(own, "work")) as pages:
            agent.say({"pages": True}, pages.agents.fileno())
            pages.agents.close()
            yield pages


@contextlib.contextmanager
def _report_failure(agent: ipc.Handshake) -> Generator[None]:
    """Tell the agent why the written files cannot be saved or put back."""
    try:
        yield
    except written_layer.NotTaken as error:
        with contextlib.suppress(ipc.HandshakeFailed):
            agent.say({"status": 1, "log": log_line(Reason(str(error), error.lasts))})
        raise


def _limit(settings: config.Config, owner: _Owner) -> tar_policy.SizeLimit:
    """Return how much can be put back. For a user job, this is the rest of the limit for all containers on the node."""
    if owner.key:
        room = bundle.room(settings)
        return tar_policy.SizeLimit(room.size_bytes, room.inodes)
    return _most(settings)


def _most(settings: config.Config) -> tar_policy.SizeLimit:
    return tar_policy.SizeLimit(settings.most_container_bytes, settings.most_container_files)


def _end_rest(call: Call, own: str) -> None:
    """Remove the processes and mounts that runc and CRIU left behind after a failed restore.

    If CRIU itself was killed near its end, the container's processes continue, and no other program knows of them. If
    runc was killed, the container's files stay mounted for CRIU.
    """
    until_s = time.monotonic() + _CLEAN_UP_S
    while not _all_have_ended() and time.monotonic() < until_s:
        kill_descendants(os.getpid())  # repeated, because one pass can miss a process that is just being forked
        let_go(own)
        time.sleep(0.01)
    unmount_for_criu(call)


def record_held(own: str, cgroup_folders: dict[str, str]) -> None:
    """Note the cgroups of a container that is about to be held back.

    They are recorded because runc forgets them if it fails later.
    """
    with open(os.path.join(own, _HELD_FILE), "w", encoding="utf-8") as file:
        json.dump(cgroup_folders, file)


def let_go(own: str) -> None:
    """Let the container that is held back continue, if there is one.

    Until then its processes do not end, even if they are killed.
    """
    freezing.let_go(_cgroups_of_held(own))


def _cgroups_of_held(own: str) -> dict[str, str]:
    """Return what `record_held` has noted, or nothing if it was not called."""
    try:
        with open(os.path.join(own, _HELD_FILE), encoding="utf-8") as file:
            cgroup_folders: dict[str, str] = json.load(file)
            return cgroup_folders
    except (OSError, ValueError):
        return {}


def unmount_for_criu(call: Call) -> None:
    """Unmount the mounts that runc has made for CRIU in the container's folder. A mount that is stuck remains."""
    with contextlib.suppress(subprocess.TimeoutExpired):
        mounts.unmount_below(os.path.realpath(call.folder))


def _all_have_ended() -> bool:
    """Return True if we have no child left. Only then can a cgroup be removed."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass
        return False
    return True


@contextlib.contextmanager
def _without_links(
    settings: config.Config, call: Call, own: str, uid: int, of_layer: tar_policy.Links
) -> Generator[None]:
    """Remove symbolic links during a restore, both those in the job's folder and those among the written files.

    `criu_call` puts the links back before the processes continue. In all other cases they are put back here.
    """
    job = os.path.join(call.option("--bundle", "-b") or ".", "job")
    record = {"at": _root_of_bundle(call), "folders": [], "links": of_layer}
    symlink_guard.write_records(own, symlink_guard.freeze(job, uid, disk=settings.users_work), record)
    try:
        yield
    finally:
        symlink_guard.put_back(own)


def _make_relay(
    own: str,
    listener: socket.socket,
    *,
    notes: SaveNotes | None = None,
    guard: vdso.Guard | None = None,
    saved: int = 0,
) -> tuple[Relay, socket.socket]:
    """Return a relay for CRIU's connection at `listener`, and the socket at which the other side listens instead."""
    agents_socket = ipc.listen(os.path.join(own, "relayed.sock"))
    return Relay(listener, os.path.join(own, "relayed.sock"), notes, guard, saved), agents_socket


def check_descriptors(text: object) -> list[str]:
    """Return the checked names of the process's three standard streams. Raises `HandshakeFailed`.

    runc checks only whether they are pipes, and passes their names to CRIU. With fewer than three entries runc crashes.

    >>> check_descriptors('["/dev/null", "pipe:[7]", "pipe:[8]"]')
    ['/dev/null', 'pipe:[7]', 'pipe:[8]']
    """
    streams: list[str] = []
    if isinstance(text, str):
        with contextlib.suppress(ValueError, RecursionError):
            streams = json.loads(text)
    if type(streams) is not list or len(streams) != 3:
        raise ipc.HandshakeFailed("the agent names no three descriptors")
    for stream in streams:
        if type(stream) is not str or len(stream) > _STREAM_CHARS or not stream.isprintable():
            raise ipc.HandshakeFailed("the agent names a descriptor that is no text")
        if "pipe:" in stream and not _PIPE.match(stream):
            raise ipc.HandshakeFailed(f"the agent names a descriptor {stream[:100]!r}, which is no pipe")
    return streams


class _Owner(NamedTuple):
    """The owner of a container, and the key that seals its checkpoints, which is empty for the service account."""

    uid: int
    key: bytes
    image: str = ""


def _connect(settings: config.Config, annotations: dict[str, str]) -> tuple[_Owner, ipc.Handshake]:
    """Connect to the program that listens for this container. Raises `HandshakeFailed`, or `Misconfigured`."""
    name, uid = annotations.get(ANNOTATION_HANDSHAKE, ""), annotations.get(ANNOTATION_OWNER)
    if uid is None:
        return _Owner(settings.agent_uid, b""), ipc.connect(settings.handshakes, name, settings.agent_uid)
    if not settings.user_jobs_key:
        raise config.Misconfigured("user jobs are not served on this node: user_jobs_key is not set")
    owner = _Owner(int(uid), config.key(settings), annotations.get(ANNOTATION_IMAGE, ""))
    place = user_jobs.handshakes(settings, ipc.check_name(name))
    return owner, ipc.connect(place, name, owner.uid)


@contextlib.contextmanager
def own_folder(settings: config.Config) -> Generator[str]:
    """Yield a new folder that only root can enter. It is removed at the end, together with folders of killed calls."""
    os.makedirs(settings.own, mode=0o700, exist_ok=True)
    with openat.closing_fd(os.open(settings.own, openat.FOLDER)) as whole:
        facts = os.fstat(whole)
        if facts.st_uid != os.geteuid() or facts.st_mode & 0o077:
            raise ValueError(f"{settings.own} must be root's alone: chmod 700")
        fcntl.flock(whole, fcntl.LOCK_EX)
        for name in os.listdir(whole):
            _remove_unless_held(os.path.join(settings.own, name))
        path = os.path.join(settings.own, f"{os.getpid()}-{os.urandom(4).hex()}")
        os.mkdir(path, 0o700)
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)  # held as long as this process lives, and not inherited by children
    try:
        os.mkdir(os.path.join(path, "work"), 0o700)
        yield path
    finally:
        mounts.remove_tree(path)
        os.close(lock)


def is_held(path: str) -> bool:
    """Return True while the call that made this folder lives."""
    try:
        with openat.closing_fd(os.open(path, openat.FOLDER)) as folder:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except FileNotFoundError:  # the next call has removed it
        pass
    return False


def _remove_unless_held(path: str) -> None:
    try:
        folder = os.open(path, openat.FOLDER)
    except OSError:  # the folder no longer exists
        return
    with openat.closing_fd(folder), contextlib.suppress(BlockingIOError):
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A call that was killed in a restore might have left its container held back, and no other program knows of it.
        freezing.end(_cgroups_of_held(path))
        mounts.remove_tree(path)


def _end(annotations: dict[str, str]) -> float:
    """Return the agent's end in seconds since the epoch, or infinity if it is not known. Raises `ValueError`.

    The node helper asks Slurm again each time, so its answer takes precedence over the annotation.
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
    relay: Relay,
) -> int:
    """Run runc, which finds our `criu` first. Return its exit status.

    Raises `HandshakeFailed` when the agent's end comes first, and `Broken` when CRIU was about to receive something
    that was not saved.
    """
    words: list[str] = [settings.runc, *call.globals, command]
    for name, value in options:
        words += [name] if value is None else [name, value]
    programs = os.path.join(settings.library, "bin")
    environment = {
        **os.environ,
        "GLEANER_OWN": own,
        "GLEANER_CONTAINER": call.folder,
        "GLEANER_UID": str(owner.uid),
        "PATH": f"{programs}:{os.environ.get('PATH', os.defpath)}",
    }
    linux.become_subreaper()  # a descendant that loses its parent stays below us and can be ended
    runc = subprocess.Popen([*words, call.container], env=environment)
    end_fd = os.pidfd_open(runc.pid)
    poller = select.poll()
    poller.register(end_fd, select.POLLIN)
    poller.register(relay.failed, select.POLLIN)
    while True:
        ready = dict(poller.poll(ipc.poll_ms(end_s)))
        if relay.failed in ready and command == "restore":
            _take_down(runc, settings, call, patience_s=_CLEAN_UP_S)
            raise Broken(relay.reason)
        if end_fd in ready:
            status = runc.wait()
            if command == "restore" or _all_have_ended():
                return status
            time.sleep(0.05)  # the container must stay frozen while CRIU undoes its work
        if relay.failed in ready:  # its pipes are closed, so CRIU's save also fails
            poller.unregister(relay.failed)
        if time.time() >= end_s:
            # After a save, CRIU might have left the container in an inconsistent state, so it must not continue until
            # it is killed.
            _take_down(runc, settings, call, patience_s=_CLEAN_UP_S if command == "restore" else None)
            raise ipc.HandshakeFailed("the agent's end has come, and it was not done")


def _take_down(runc: subprocess.Popen[bytes], settings: config.Config, call: Call, *, patience_s: float | None) -> None:
    """End what runc has begun, and then the container.

    With `patience_s`, CRIU is ended first, and runc has that many seconds to remove its mounts. If it is None, all
    processes are ended at the same time.
    """
    with contextlib.suppress(subprocess.TimeoutExpired):
        if patience_s is not None:
            kill_descendants(runc.pid)
            runc.wait(patience_s)
    if runc.returncode is None:
        kill_with_descendants(runc.pid)
        runc.wait()
    kill_descendants(os.getpid())  # CRIU, if the program between it and runc was killed
    subprocess.call([settings.runc, *call.globals, "kill", call.container, "KILL"])


def _paths(own: str) -> list[tuple[str, str | None]]:
    return [("--image-path", own), ("--work-path", os.path.join(own, "work"))]


def _log_tail(folder: str) -> str:
    """Return the end of CRIU's logs, in which the agent searches for the reason."""
    tail = ""
    for name in sorted(os.listdir(folder)):
        if name.endswith(".log"):
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
                tail += file.read().decode("utf-8", "replace")
    return tail


def say_why(call: Call, why: str) -> None:
    """Write the reason where runc's callers expect it, namely to the log that they named and to standard error."""
    if call.log is not None:
        with contextlib.suppress(OSError), open(call.log, "a", encoding="utf-8") as file:
            file.write(json.dumps({"level": "error", "msg": why}) + "\n")
    sys.stderr.write(why + "\n")
