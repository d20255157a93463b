"""Run a container's monitor, a small process that starts the container, logs its output, and records its exit.

The helper starts one monitor for each container, and can end and start again while the monitor runs. The monitor has
its own mount namespace, in which the container's root and the job's folder are mounted. So when the container has
ended, the node has nothing to unmount and no mount that is busy. The container's first process becomes the monitor's
child, even if CRIU has restored it, because the monitor is a subreaper. So the kernel reports the exit code only to the
monitor.
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
import select
import signal
import struct
import subprocess
import time
from typing import Any

from ...system import untrusted
from ...system.listed_folders import FolderRefused, open_listed
from ..common import config, linux, mounts
from ..common.bundle import Bundle, mount_place
from ..common.processes import cgroup_counters, cgroups_made_by_runc, kill_descendants

LONGEST_LOG_BYTES = 192 * 2**20
_NOTICE = b"[gleaner] more output than this is not kept\n"
_CHUNK_BYTES = 2**16
_HEADER = struct.Struct(">B3xL")
END = _HEADER.pack(0, 0)
"""The last frame of a log."""
_DRAIN_S = 5.0
"""The longest wait for the end of the output after the process has ended."""


class Log:
    """The output in frames, each with the stream's number (1 or 2), the length and the bytes, as in Docker Engine's
    API."""

    def __init__(self, descriptor: int, most_bytes: int = LONGEST_LOG_BYTES) -> None:
        self._descriptor = descriptor
        self._most_bytes = most_bytes
        self._bytes = 0
        self._is_full = False

    def add(self, stream: int, content: bytes) -> None:
        """Add a frame. At the log's limit, add a notice instead, and then nothing more."""
        if self._is_full:
            return
        if self._bytes + len(content) > self._most_bytes:
            self._is_full = True
            stream, content = 2, _NOTICE
        self._write(_HEADER.pack(stream, len(content)) + content)

    def end(self) -> None:
        """Write the frame that marks the end of the log."""
        self._write(END)

    def _write(self, frame: bytes) -> None:
        try:
            count = os.write(self._descriptor, frame)
        except OSError:
            count = 0
        if count == len(frame):
            self._bytes += count
        else:  # the disk is full, so remove the incomplete frame
            os.ftruncate(self._descriptor, self._bytes)


def runc_root(settings: config.Config) -> str:
    """Return the folder in which runc keeps the state of the helper's containers."""
    return f"{settings.own}-runc"


def runc_state_folder(settings: config.Config, name: str) -> str:
    """Return the folder in which runc keeps its data about one container."""
    return os.path.join(runc_root(settings), name)


def main(words: list[str]) -> None:
    """Run one monitor with `NAME ALIVE ANSWER FOLDER [INPUTS]`, where all but the name are descriptors.

    Only the folders come from an agent.
    """
    name = words[0]
    _, answer, *folders = map(int, words[1:])
    settings = config.load()
    bundle = Bundle(settings, name)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _go_on)  # not SIG_IGN, which the job would inherit
    try:
        answer_fields: dict[str, Any] = _run(settings, bundle, folders, answer)
    except FolderRefused as error:
        answer_fields = {"reason": str(error), "kind": "mount"}
    except OSError as error:
        answer_fields = {"reason": str(error)}
    if answer_fields:
        _say(answer, answer_fields)


def _go_on(_number: int, _frame: object) -> None:
    """Ignore the signal, because ending the helper, or all processes with its name, must not end the containers."""


def _run(settings: config.Config, bundle: Bundle, folders: list[int], answer: int) -> dict[str, Any]:
    """Run the container to its end. Return the reason if it did not start."""
    linux.become_subreaper()
    linux.own_mounts(sees_outside=True)
    linux.mount_overlay(
        bundle.facts()["rootfs"], bundle.inside("upper"), bundle.inside("work"), bundle.inside("rootfs")
    )
    for folder, name in zip(folders, ("job", "inputs")):  # noqa: B905 - Python 3.9 has no `strict`
        linux.bind(_same_folder(folder), bundle.inside(name))
        os.close(folder)
    for number, path in enumerate(bundle.facts().get("mounts", ())):
        _mount(settings, path, bundle.inside(mount_place(number)))
    log = Log(os.open(bundle.inside("log"), os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC))
    (out, out_end), (err, err_end) = os.pipe(), os.pipe()
    for command in ("create", "start"):
        options = ["--bundle", bundle.path, "--pid-file", bundle.inside("pid")] if command == "create" else []
        reason = _shim(settings, bundle, [command, *options, bundle.name], out_end, err_end)
        if reason is not None:
            kill_descendants(os.getpid())  # runc might still run if gleaner-runc was killed
            subprocess.call([settings.runc, "--root", runc_root(settings), "delete", "--force", bundle.name])
            return {"reason": reason}
    os.close(out_end)
    os.close(err_end)
    with open(bundle.inside("pid"), encoding="ascii") as file:
        pid = int(file.read())  # it is our child, so no other process has this number before we wait for it
    end_fd = os.pidfd_open(pid)
    _say(answer, {"reason": None})
    _log_output({out: 1, err: 2}, end_fd, log)
    _, status = os.waitpid(pid, 0)
    out_of_memory = _was_out_of_memory(cgroups_made_by_runc(runc_state_folder(settings, bundle.name)))
    log.end()
    bundle.record_exit(
        {
            "exit_code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status),
            "out_of_memory": out_of_memory,
            "at_its_limit": out_of_memory or os.path.exists(bundle.inside("too-large")),
        }
    )
    return {}


def _mount(settings: config.Config, path: str, target: str) -> None:
    """Mount a folder of the node, without the file systems that are mounted below it.

    Raises `FolderRefused` or `OSError`.
    """
    folder = open_listed(path, owners=(0,), own=settings.own_paths)
    linux.bind(folder, target)
    os.close(folder)
    linux.change_mount(target, on=linux.READ_ONLY | linux.NO_SETUID | linux.NO_DEVICES)


def _shim(settings: config.Config, bundle: Bundle, words: list[str], out: int, err: int) -> str | None:
    """Call the runtime as an engine would. Return the reason if the call fails, and None otherwise."""
    log = bundle.inside("runc.log")
    call = [settings.shim, "--root", runc_root(settings), "--log", log, "--log-format", "json", *words]
    if subprocess.call(call, stdin=subprocess.DEVNULL, stdout=out, stderr=err) == 0:
        return None
    return last_error(log) or "runc failed, and does not say why"


def last_error(log: str) -> str:
    """Return the last error in the log of runc or the shim, or "" if there is none."""
    try:
        with open(log, "rb") as file:
            lines = file.readlines()
    except OSError:
        return ""
    return next((reason for line in reversed(lines) if (reason := _error_in(line))), "")


def _error_in(line: bytes) -> str:
    """Return the error in a line of the log, or "" for any other line."""
    try:
        entry = untrusted.json_of(line, for_display=True)
        return str(entry["msg"]) if entry["level"] in ("error", "fatal") else ""
    except (ValueError, KeyError, TypeError):
        return ""


def _same_folder(folder: int) -> int:
    """Return the agent's folder as it is in this mount namespace.

    A descriptor of another namespace cannot be mounted here. Therefore its path is walked without following links and
    must lead to the same folder, so that a swapped folder is detected. Raises `OSError`.
    """
    at = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    numbers = [mounts.mount_id(at)]
    for step in os.readlink(f"/proc/self/fd/{folder}").strip("/").split("/"):
        below = os.open(step, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
        os.close(at)
        at = below
        numbers.append(mounts.mount_id(at))
    if len(numbers) > 1 and numbers[-1] != numbers[-2]:
        raise OSError("something is mounted on the job's folder: unmount it")
    if not os.path.samestat(os.fstat(at), os.fstat(folder)):
        raise OSError("the job's folder is not where the node's helper sees it: it must lie on the node's own disk")
    return at


def _log_output(sources: dict[int, int], end_fd: int, log: Log) -> None:
    """Move output into the log until the process has ended and all its output has been read."""
    ended_s: float | None = None
    while sources and (ended_s is None or time.monotonic() < ended_s + _DRAIN_S):
        descriptors = [*sources, end_fd] if ended_s is None else [*sources]
        ready, _, _ = select.select(descriptors, [], [], None if ended_s is None else _DRAIN_S)
        if end_fd in ready:
            ended_s = time.monotonic()
        for source in ready:
            if source in sources:
                content = os.read(source, _CHUNK_BYTES)
                if content:
                    log.add(sources[source], content)
                else:
                    del sources[source]
    if ended_s is None:  # the process has closed its output but still runs
        select.select([end_fd], [], [])


def _was_out_of_memory(paths: dict[str, str]) -> bool:
    counters = cgroup_counters(paths.get("memory"), "memory.oom_control") or cgroup_counters(
        paths.get(""), "memory.events"
    )
    return counters.get("oom_kill", 0) > 0


def _say(answer: int, message: dict[str, Any]) -> None:
    try:
        os.write(answer, json.dumps(message).encode())
        os.close(answer)
    except OSError:
        pass  # the helper has ended, and the container continues
