"""Run CRIU with `--stream`. When the shim calls runc, runc finds this program under the name `criu`.

runc communicates with CRIU over a socket that it passes to `criu swrk` (CRIU's images/rpc.proto), and CRIU refuses to
stream in that mode. So for a dump or a restore this program does the work of CRIU's service. It translates the request
into the options of CRIU's own command line, adds `--stream`, and passes CRIU's notifications on to runc. All other
requests from runc go to CRIU unchanged. An unknown option is never ignored but makes the call fail.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import NoReturn

from ..common import config, freezing, linux, processes, symlink_guard
from . import credential_check, mount_confinement, timers, unsavable
from .criu_messages import NotUnderstood, Value, field, fields, number_in
from .page_watchdog import CRIU_SOCKET
from .transfer import is_held, let_go, record_held
from .unsavable import Reason, log_line

DUMP, RESTORE, NOTIFY = 1, 2, 6
_LONGEST_REQUEST = 2**20
_MODES = ("ignore", "none", "props", "soft", "full", "strict", "soft")
_NEW_NET = 0x40000000
_KERNEL_FACTS = "/run/criu.kdat"
_LOOK_S = 1.0
"""The time between two checks that the process that CRIU restores still exists, and that CRIU does not hang."""
STOP_WITHIN_S = 20.0
"""The time in which CRIU must have stopped a container's threads, which it does before it changes anything.

CRIU itself gives up after 10 s (its --timeout), but does not notice the timeout while the kernel keeps it waiting for a
thread. Once all threads have stopped, CRIU is not ended before the agent's end (`transfer`), because CRIU might leave
the container in an inconsistent state.
"""
_BEFORE_ALL_STAND = (b"pre-stream", b"pre-dump")
"""CRIU's notifications in a save that come before it has stopped all threads."""

# Fields of criu_opts that are switches, and their options. With None, the option is always on our command line, or it
# has no meaning here. Docker and the node helper leave the other switches of runc's requests off.
_SWITCHES: dict[int, str | None] = {
    3: "--leave-running",
    6: "--evasive-devices",
    7 + 1: "--file-locks",
    12: None,  # notifications are always on
    18: "--link-remap",
    24: None,  # an older form of field 34
    26: None,  # always, because the restored process is our child
    50: None,  # terminals: our containers have none
}
_TEXTS = {13: "--root", 44: "--freeze-cgroup", 53: "--lsm-profile", 37: "--external"}


def options(request: bytes, runc_pid: int) -> list[str]:
    """Return CRIU's options for runc's `criu_opts`. Raises `NotUnderstood`."""
    words: list[str] = []
    for number, value in fields(request):
        if number in _SWITCHES and isinstance(value, int):
            name = _SWITCHES[number]
            if value and name:
                words.append(name)
        elif number in _TEXTS and isinstance(value, bytes):
            words += [_TEXTS[number], _text(value)]
        else:
            words += _option(number, value, runc_pid)
    return words


def _option(number: int, value: Value, runc_pid: int) -> list[str]:
    if isinstance(value, int):
        if number in (1, 17):
            return ["-D" if number == 1 else "-W", f"/proc/{runc_pid}/fd/{value}"]
        if number == 2:
            return ["-t", str(value)]
        if number == 9:
            return [f"-v{value}"]
        if number == 20 and value == 0xFFFFFFFF:
            return ["--cpu-cap=all"]
        if number == 34 and value < len(_MODES):
            return [f"--manage-cgroups={_MODES[value]}"]
        if number == 38 and value == _NEW_NET:
            return ["--empty-ns", "net"]
        if not value:  # an option that is off
            return []
    else:
        inner = dict(fields(value)) if number in (23, 25, 27) else {}
        if number == 10:
            return ["-o", _text(value)]
        if number == 23:
            place = _text(inner.get(1))
            return ["--external", f"mnt[{place}]:{_of_own_cgroup(place, _text(inner.get(2)), runc_pid)}"]
        if number == 25:
            controller = f"{_text(inner.get(1))}:" if 1 in inner else ""
            return ["--cgroup-root", controller + _text(inner.get(2))]
        if number == 27:
            return ["--inherit-fd", f"fd[{number_in(inner.get(2, b''))}]:{_text(inner.get(1))}"]
        if number == 51:  # the file with further options, which ours replaces
            return []
    raise NotUnderstood(f"runc asks CRIU for option {number}, which is not known here")


def _of_own_cgroup(place: str, source: str, runc_pid: int) -> str:
    """Return the folder to mount at a place in the container, with runc's own cgroup replaced by the container's.

    In a restore, runc has already moved us into the container's cgroups. In a save, our cgroups are runc's.
    """
    folder, _, controllers = place.rpartition("/")
    if folder != "/sys/fs/cgroup":
        return source
    of_runc, own = (
        processes.cgroup_path(pid, controllers.split(",")[0]).rstrip("/") for pid in (runc_pid, os.getpid())
    )
    return source[: -len(of_runc)] + own if of_runc and source.endswith(of_runc) else source


def _text(value: Value | None) -> str:
    if not isinstance(value, bytes):
        raise NotUnderstood("a number where a text is wanted")
    if b"\0" in value:
        raise NotUnderstood("a text that no program can be given")
    return os.fsdecode(value)  # a path on the node can contain any bytes


def main() -> NoReturn:
    """Run `criu swrk FD`, or any other call that runc makes to CRIU."""
    words = sys.argv[1:]
    settings = config.load()
    if len(words) == 2 and words[0] == "swrk":
        runc = socket.socket(fileno=os.dup(int(words[1])))
        request = runc.recv(_LONGEST_REQUEST, socket.MSG_PEEK)
        request_fields = dict(fields(request))
        if request_fields.get(1) in (DUMP, RESTORE):
            runc.recv(_LONGEST_REQUEST)
            if request_fields[1] == RESTORE:  # or restored processes would inherit it, and runc would miss our end
                os.close(int(words[1]))
            # In a save, CRIU has it on purpose, so that runc waits for CRIU even if this program ends.
            try:
                sys.exit(_serve(settings, runc, request_fields))
            except NotUnderstood as error:
                # The agent reads CRIU's logs in the order of their names, so CRIU's own reasons come first, if there
                # are any.
                _log(os.environ["GLEANER_OWN"], Reason(str(error), lasts=False), "why.log")
                sys.exit(1)
    os.execv(settings.criu, [settings.criu, *words])


def _serve(settings: config.Config, runc: socket.socket, request_fields: dict[int, Value]) -> int:
    kind, criu_request = request_fields[1], request_fields.get(2, b"")
    assert isinstance(kind, int) and isinstance(criu_request, bytes)  # noqa: S101 - `fields` has checked our own call
    own = os.environ["GLEANER_OWN"]
    pid_file = os.path.join(own, "work", "pid")
    words = [settings.criu, "dump" if kind == DUMP else "restore", "--no-default-config", "--stream"]
    words += options(criu_request, os.getppid())
    uid, criu_opts = int(os.environ["GLEANER_UID"]), dict(fields(criu_request))
    saved_pid, root = number_in(criu_opts.get(2, 0)), None
    if kind == DUMP:
        freezer = words[words.index("--freeze-cgroup") + 1] if "--freeze-cgroup" in words else ""
        # Files are also checked now, because CRIU already makes hard links to some of their paths while it saves.
        why = unsavable.refused(saved_pid, freezer) or unsavable.refused_files(saved_pid)
        if why is not None:
            _log(own, why)
            return 1
        words.append("--link-remap")  # see `unsavable`
    else:
        _know_kernel(settings)
        root = _text(criu_opts.get(13, b""))
        words += ["-W", os.path.join(own, "work")]  # the last one counts, as runc's would be in another mount namespace
        words.append("-v2")  # the last one counts, and the container pays for the log, which is in memory
        if os.path.exists(os.path.join(own, "work", CRIU_SOCKET)):
            words.append("--lazy-pages")
        if symlink_guard.has_records(own):
            words.append("--skip-file-rwx-check")  # folders are closed in this phase
        words += ["--restore-detached", "--restore-sibling", "--pidfile", pid_file]
        if "--cgroup-root" not in words:  # runc names it only with cgroups of version 1
            words += ["--cgroup-root", f":{processes.cgroup_path(os.getpid(), '')}"]
    words += ["--network-lock", "skip", "--file-locks", "--ghost-limit", "1G", "--action-script", settings.notify]
    answer = _run(words, own, runc, uid, saved_pid=saved_pid, root=root)
    result, is_answered = b"", False
    with contextlib.suppress(ConnectionError, FileNotFoundError):  # runc, or gleaner-runc, has ended
        if answer == 0 and kind == RESTORE:
            with open(pid_file, encoding="ascii") as file:
                result = field(4, field(1, int(file.read())))
        runc.send(field(1, kind) + field(2, int(answer == 0)) + result)
        is_answered = is_held(own)
    if kind == RESTORE and not is_answered:
        _end_all(own)
        return 1
    return 0 if answer == 0 else 1


def _log(own: str, why: Reason, name: str = "call.log") -> None:
    """Write one of our own reasons in the format of CRIU's log. If there are several, use the first by name."""
    with open(os.path.join(own, "work", name), "w", encoding="utf-8") as log:
        log.write(log_line(why))


def _know_kernel(settings: config.Config) -> None:
    """Have CRIU write its file with facts about the kernel, because it cannot write that file where it restores."""
    if not os.path.exists(_KERNEL_FACTS):
        subprocess.run([settings.criu, "check"], stdin=subprocess.DEVNULL, capture_output=True, check=False)


def _run(
    words: list[str], own: str, runc: socket.socket, uid: int, *, saved_pid: int = 0, root: str | None = None
) -> int:
    """Run CRIU, and pass on its notifications. For each one CRIU runs its action script, which uses two named pipes.

    `saved_pid` is the pid of the first process that is saved, or 0 in a restore. `root` is the root of a container that
    is restored, or None in a save.
    """
    notifications, answers = os.path.join(own, "notifications"), os.path.join(own, "answers")
    os.mkfifo(notifications, 0o600)
    os.mkfifo(answers, 0o600)
    hearing = os.open(notifications, os.O_RDWR | os.O_CLOEXEC)
    answering = os.open(answers, os.O_RDWR | os.O_CLOEXEC)
    # CRIU inherits the descriptors that runc has opened for it, and CRIU's standard streams become those of the
    # restored process.
    criu = subprocess.Popen(words, close_fds=False, preexec_fn=lambda: _confine(root, own))  # noqa: PLW1509 - no threads
    status = 1
    try:
        status = _relay_notifications(criu, hearing, answering, own, runc=runc, uid=uid, saved_pid=saved_pid)
    finally:
        if status != 0:
            # If CRIU still runs (because runc was killed, or we have failed), it would otherwise wait indefinitely. If
            # CRIU has ended, the processes that it has restored would continue.
            _end_all(own)
            criu.wait()
        if "--freeze-cgroup" in words and not is_held(own):
            # gleaner-runc has ended, so the agent might have let the container continue while CRIU had thawed it. CRIU
            # leaves the container frozen, as it found it, and no program would notice.
            freezing.take_back(words[words.index("--freeze-cgroup") + 1])
    return status


def _end_all(own: str) -> None:
    """Kill CRIU and all processes that it has restored.

    Processes that are held back end only when they are released.
    """
    processes.kill_descendants(os.getpid())
    let_go(own)


def _confine(root: str | None, own: str) -> None:
    """Confine this process, which is about to become CRIU. Raises `OSError`. In a save (`root` is None), do nothing."""
    if root is None:
        return
    try:
        mount_confinement.enter(root, os.path.join(own, "work"))
    except OSError as error:
        why = f"the node cannot be kept from CRIU (Linux 5.14 or newer is needed): {error}"
        _log(own, Reason(why, lasts=False))
        raise


def _relay_notifications(
    criu: subprocess.Popen[bytes],
    hearing: int,
    answering: int,
    own: str,
    *,
    runc: socket.socket,
    uid: int,
    saved_pid: int,
) -> int:
    """Return CRIU's exit status after all its notifications have been passed on.

    CRIU's messages take precedence over its end, and its end over that of runc. A save is not aborted when runc ends.
    Instead, CRIU receives a refusal, and undoes what it has begun. A save is aborted if CRIU cannot stop the
    container's threads. A restore is aborted when runc ends, or when the process that CRIU restores ends, since CRIU
    would wait indefinitely. In these cases, `NotUnderstood` is raised.
    """
    end_fd = os.pidfd_open(criu.pid)
    may_go, restored, ended_before = False, 0, None
    poller = select.poll()
    for one in (hearing, end_fd):
        poller.register(one, select.POLLIN)
    poller.register(runc, 0)  # only to notice whether it has closed its end
    buffer: bytes = b""
    all_stand, until_s = not saved_pid, time.monotonic() + STOP_WITHIN_S
    while True:
        ready = dict(poller.poll(_LOOK_S * 1000))
        if end_fd in ready and hearing not in ready:
            status = criu.wait()
            if status != 0 and restored:
                os.kill(restored, signal.SIGKILL)  # without CRIU the process would continue, perhaps unchecked
            return status
        if hearing not in ready:
            if saved_pid:
                if runc.fileno() in ready:
                    poller.unregister(runc)
                if not all_stand and time.monotonic() > until_s:
                    raise NotUnderstood(f"not all processes could be stopped within {STOP_WITHIN_S:.0f} s")
                continue
            if ready:
                raise NotUnderstood("runc has gone")
            if not is_held(own):
                raise NotUnderstood("gleaner-runc has gone")
            ended_now = None if may_go else _ended_process(criu.pid)
            if ended_now is not None and ended_now == ended_before:  # CRIU might still be cleaning up at first
                raise NotUnderstood("what CRIU restores has ended (is there too little memory?)")
            ended_before = ended_now
            continue
        buffer += os.read(hearing, 4096)
        while b"\n" in buffer:
            line, _, buffer = buffer.partition(b"\n")
            action, _, number = line.partition(b" ")
            pid = int(number or b"0")
            all_stand = all_stand or action not in _BEFORE_ALL_STAND
            may_continue = _notify(runc, action, pid) and is_held(own)
            if may_continue and (why := _objection(action, pid, own, saved_pid=saved_pid, uid=uid)) is not None:
                _log(own, why)
                may_continue = False
            if action == b"post-restore":
                restored = pid
            if action == b"pre-resume":
                symlink_guard.put_back(own)
                may_go = True
            os.write(answering, b"ok\n" if may_continue else b"no\n")
            if may_go and not may_continue:
                return 1  # CRIU would wait for an init that cannot end while CRIU traces its dead children


def _objection(action: bytes, pid: int, own: str, *, saved_pid: int, uid: int) -> Reason | None:
    """Return the reason why CRIU must not continue after this notification, or None if it can."""
    if action == b"post-dump":
        return unsavable.refused_files(saved_pid)  # only now are all processes stopped
    why = None
    if action == b"post-setup-namespaces":
        why = _confine_files(pid)
    elif action == b"pre-resume":
        if (why := _must_not_go_on(pid, uid)) is not None:
            why = f"the checkpoint is not what a job of ours can have been: {why}"
        else:
            why = _hold_processes(pid, own)
    return None if why is None else Reason(why, lasts=False)


def _ended_process(criu_pid: int) -> int | None:
    """Return the number of the first process that CRIU restores, if it has ended.

    That process is our child, as runc demands. Until CRIU traces the process, the kernel does not report its end to
    CRIU, which would wait for it indefinitely. While CRIU traces it, the kernel does not report its end to us, so its
    state is looked up.
    """
    us = os.getpid()
    zombies = (one for one, state, parent in processes.all_processes() if (state, parent) == ("Z", us))
    return next((one for one in zombies if one != criu_pid), None)


def _confine_files(pid: int) -> str | None:
    """Return the reason why CRIU must not recreate the container's files, or None if it can."""
    try:
        mount_confinement.follow_no_links(pid)
    except (mount_confinement.NotConfined, OSError) as error:
        return str(error)
    return None


def _must_not_go_on(pid: int, uid: int) -> str | None:
    if pid <= 1:
        raise NotUnderstood("CRIU does not say what it has brought back")
    return credential_check.stop_if_beyond(pid, uid)


def _hold_processes(pid: int, own: str) -> str | None:
    """Correct what CRIU restores wrongly, and hold the processes back until the container is started.

    Until then no program would notice their end, and the engine cannot start a container that has ended. Return the
    reason if one of these steps fails.
    """
    try:
        timers.start_again(pid)
        linux.start_loopback(pid)  # CRIU leaves a new network namespace as the kernel makes it, with the device off
        cgroup_folders = processes.cgroups_made_by_runc(os.environ["GLEANER_CONTAINER"])
        record_held(own, cgroup_folders)
        freezing.hold(cgroup_folders, processes.family(pid), beside=os.getppid())
    except OSError as error:
        return f"the processes cannot be made ready to go on: {error}"
    return None


def _notify(runc: socket.socket, action: bytes, pid: int) -> bool:
    """Pass a notification on. Return True if runc agrees to continue, and False if it does not, or has ended."""
    notify = field(1, action) + (field(2, pid) if pid else b"")
    try:
        runc.send(field(1, NOTIFY) + field(2, 1) + field(5, notify))
        answer = dict(fields(runc.recv(_LONGEST_REQUEST)))
    except ConnectionError:
        return False
    return answer.get(1) == NOTIFY and answer.get(3) == 1
