"""Watch over a page server, and kill the container before any copy of its userfaultfds closes.

When the last copy of a userfaultfd closes, a process that waits for a page reads zeros and continues to compute with
them. So the page server and its watchdog share one table of descriptors, and no descriptor in it closes while either of
the two lives. Each kills the container if the other has ended too early, and then ends only when the container has no
process left. Only the watchdog, which needs no further memory, is exempt from being killed by the kernel when memory
runs out.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import os
import platform
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from typing import NoReturn

from ...system import ipc
from ..common import config, freezing, linux, processes
from . import vdso
from .page_server import MAP, PageServer
from .seal import Broken

CRIU_SOCKET = "lazy-pages.socket"
"""CRIU's name for the socket over which it passes userfaultfds."""
LEAST_KERNEL = (5, 15)
"""Older kernels might put a page where its memory was earlier (mmap_changing is no counter there)."""
_SERVER_BYTES = 2**30
_CHECK_S = 10.0
_AGAIN_S = 0.01
_ARM, _ARMED = b"a", b"y"


def is_possible(settings: config.Config) -> bool:
    """Return True if the kernel and CRIU here can restore a container whose memory is loaded later."""
    words, nothing = [settings.criu, "check", "--feature", "uffd-noncoop"], subprocess.DEVNULL
    try:
        is_new = tuple(map(int, platform.release().split("-")[0].split(".")[:2])) >= LEAST_KERNEL
        return is_new and subprocess.call(words, stdin=nothing, stdout=nothing, stderr=nothing, timeout=_CHECK_S) == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


class Pages(vdso.Guard):
    """The page server of one restore, from the restore's point of view. It receives the page maps before CRIU does."""

    def __init__(self, agents: socket.socket, maps: socket.socket, watchdog: socket.socket) -> None:
        super().__init__()
        self.agents = agents
        """The agent's end of its connection."""
        self._maps, self._watchdog = maps, watchdog

    def note(self, name: str, content: bytes) -> None:
        super().note(name, content)
        if match := vdso.PAGEMAP.match(name):
            try:
                self._maps.sendall(MAP.pack(int(match.group(1)), len(content)) + content)
            except OSError as error:
                raise Broken(f"the page server has gone: {error}") from error

    def watch(self) -> None:
        """Wait until the watchdog is armed, or all memory is loaded.

        Raises `Broken` if the watchdog ends before that.
        """
        with contextlib.suppress(OSError):
            if self._watchdog.recv(1, socket.MSG_PEEK):
                return
        raise Broken("the page server has ended before the processes run")

    def arm(self) -> None:
        """Tell the watchdog that the processes are about to run. Raises `Broken` if the watchdog has ended."""
        self._watchdog.settimeout(ipc.PATIENCE_S)
        with contextlib.suppress(OSError):  # it has ended if all memory is loaded by now
            self._watchdog.sendall(_ARM)
        self.watch()
        self._watchdog.recv(1)  # if it stayed unread, the end of our socket would be an error for the watchdog


@contextlib.contextmanager
def serving(state_folder: str, work: str) -> Generator[Pages]:
    """Start a page server to which CRIU connects in its folder `work`. It outlives this context if it was armed.

    `state_folder` is the folder with runc's data about the container. Call this only while this process has one thread.
    """
    with contextlib.ExitStack() as stack:
        criu = stack.enter_context(ipc.listen(os.path.join(work, CRIU_SOCKET)))
        (agents, agent), (our_maps, maps), (watchdog, caller) = (socket.socketpair() for _ in range(3))
        if os.fork() == 0:
            _become_watchdog([criu, agent, maps], caller, state_folder)
        for one in (criu, agent, maps, caller):
            one.close()
        for one in (agents, our_maps, watchdog):
            stack.enter_context(one)
        yield Pages(agents, our_maps, watchdog)


def _become_watchdog(sockets: list[socket.socket], caller: socket.socket, state_folder: str) -> NoReturn:
    """Start a child as the page server on these sockets, act as its watchdog, and exit."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # a shutdown of the node ends all, the server first
        os.setsid()
        os.chdir("/")
        _keep_open({one.fileno() for one in (*sockets, caller)})
        own = os.pidfd_open(os.getpid())
        server = linux.fork_sharing_descriptors()
        if server == 0:
            _be_server(sockets, own, state_folder)
        _set_oom_score(-1000)
        status = watch(server, caller, lambda: processes.cgroups_made_by_runc(state_folder))
    finally:
        os._exit(status)


def _be_server(sockets: list[socket.socket], own: int, state_folder: str) -> NoReturn:
    status = 1
    try:
        signal.signal(signal.SIGTERM, lambda _signal, _frame: sys.exit(1))
        _set_oom_score(0)
        resource.setrlimit(resource.RLIMIT_AS, (_SERVER_BYTES, _SERVER_BYTES))
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        PageServer(own, *sockets).serve()
        status = 0
    finally:
        if status:  # the watchdog also does this, unless it has ended
            end_container(processes.cgroups_made_by_runc(state_folder))
        os._exit(status)


def watch(server: int, caller: socket.socket, find: Callable[[], dict[str, str]]) -> int:
    """Return 0 once the page server has completed its work, or 1 once the container has no process left.

    `find` returns the container's cgroups. They are known by the time the caller arms the watchdog.
    """
    folders: dict[str, str] = {}
    ended = os.pidfd_open(server)
    poller = select.poll()
    poller.register(ended, select.POLLIN)
    poller.register(caller, select.POLLIN)
    with contextlib.suppress(Exception):  # whatever fails here, the container must not continue
        while True:
            ready = [one for one, _ in poller.poll()]
            if ended in ready:
                if os.waitstatus_to_exitcode(os.waitpid(server, 0)[1]) == 0:
                    with contextlib.suppress(OSError):
                        caller.sendall(_ARMED)
                    return 0
                break
            if caller.recv(1) == _ARM and (folders := folders or find()):
                caller.sendall(_ARMED)
            elif folders:
                poller.unregister(caller)  # the restore is done, and its program has ended
            else:
                break
    end_container(folders or find())
    return 1


def end_container(folders: dict[str, str]) -> None:
    """Kill a container's processes until none is left.

    If the cgroup cannot be read, processes are assumed to be left.
    """
    while folder := folders.get("freezer") or folders.get(""):
        with contextlib.suppress(OSError), open(os.path.join(folder, "cgroup.kill"), "w", encoding="ascii") as order:
            order.write("1")
        with contextlib.suppress(Exception):
            freezing.end(folders)
            if _is_dead(folder):
                return
        time.sleep(_AGAIN_S)


def _is_dead(folder: str) -> bool:
    """Return True for a cgroup without processes, or one that no longer exists although a cgroup above it does."""
    existing = folder
    while True:
        try:
            with open(os.path.join(existing, "cgroup.procs"), encoding="ascii") as file:
                return existing != folder or not file.read()
        except FileNotFoundError:
            if os.path.exists(existing):
                return False
            existing = os.path.dirname(existing)


def _set_oom_score(score: int) -> None:
    with contextlib.suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as file:
        file.write(str(score))  # not every container in which root works allows this


def _keep_open(kept: set[int]) -> None:
    """Close all other descriptors, so that no program waits for the end of this process's output."""
    nothing = os.open("/dev/null", os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    for number in {*map(int, os.listdir("/proc/self/fd"))} - kept - {0, 1, 2}:
        with contextlib.suppress(OSError):
            os.close(number)
