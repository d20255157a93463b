"""The node helper's actions on containers. The requests have already been checked (see `request`).

Each call of runc, and of the shim for a save or a restore, uses only a container's plain name and root's own paths. An
agent's descriptors are used in only two ways. The job's folder and the folder of its inputs are mounted, and an image's
archive is read.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import select
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from ...system import untrusted
from ...system.listed_folders import FolderRefused
from ..common import (
    bundle,
    config,
    freezing,
    mount_folders,
    processes,
    request,
    system_programs,
)
from ..common.bundle import Bundle
from ..common.disk_usage import count_disk_use
from ..common.user_jobs import Owner
from ..shim import transfer
from . import image_store, monitor, oci_config

_END_WITHIN_S = 30.0
_RUNC_WITHIN_S = 60
_ANSWER_WITHIN_S = 30
_FIRST_WORD_BYTES = 2**16
_COUNT_WITHIN_S = 10.0
_LOOK_S = 30.0
"""The time between two checks that the job still runs while we wait for it."""


class Failed(Exception):
    """An action failed. The message is one line for the agent. `kind` tells the agent the kind of failure."""

    def __init__(self, kind: str, line: str) -> None:
        super().__init__(line)
        self.kind = kind


def facts(settings: config.Config) -> dict[str, Any]:
    """Return the versions of runc and CRIU on this node."""
    words = _output([settings.runc, "--version"]).split()
    if "version" not in words:
        raise Failed("fault", f"{settings.runc} does not work")
    return {
        "runc": words[words.index("version") + 1].partition("+")[0],
        "criu": system_programs.version_of_criu(settings.criu, within_s=_ANSWER_WITHIN_S),
    }


def create(settings: config.Config, spec: request.Spec, owner: Owner) -> None:
    """Make a container that does not run yet."""
    room = bundle.room(settings)
    if room.size_bytes < 0:
        raise Failed("fault", f"the containers on this node take more than {settings.most_container_bytes} bytes")
    if room.inodes < 0:
        raise Failed("fault", f"the containers on this node have more than {settings.most_container_files} files")
    if (image := image_store.find(settings, spec.image)) is None:
        raise Failed("image", f"the image {spec.image} is not on the node")
    defaults = oci_config.image(image.config)
    if not oci_config.command(spec, defaults):
        raise Failed("command", "there is no command, and the image has none")
    for path in spec.mounts:
        _check_mount(settings, path)
    container = Bundle(settings, spec.name)
    about: dict[str, Any] = {"labels": spec.labels, "image_id": image.id, "rootfs": image.rootfs}
    about |= {"made_s": int(time.time()), "uid": owner.uid, "inputs": spec.inputs, "mounts": spec.mounts}
    node = _node(settings, owner)._replace(image_id=image.id)
    rootfs = container.inside("rootfs")
    container.make(about, oci_config.configuration(spec, node, defaults, rootfs=rootfs, folder=container.path))


def _check_mount(settings: config.Config, path: str) -> None:
    """Check that the settings allow a mount, and that the folder exists. Raises `Failed`."""
    if path not in settings.mounts:
        raise Failed("mount", f"{path}: it is not among the mounts in {config.CONFIG_FILE}")
    try:
        mount_folders.check(path, settings.own_paths)
    except FolderRefused as error:
        raise Failed("mount", str(error)) from error


def run(
    settings: config.Config,
    container: Bundle,
    folder: int,
    inputs: int | None = None,
    goes_on: Callable[[], bool] = lambda: True,
) -> None:
    """Start a container, or restore it from the agent that listens under its name.

    `folder` is a descriptor of the job's folder, and `inputs` one of the folder with its inputs. We stop waiting for
    the agent when `goes_on` returns False.
    """
    folders = [folder] if inputs is None else [folder, inputs]
    for each in folders:
        about = os.fstat(each)
        if not stat.S_ISDIR(about.st_mode) or about.st_uid != container.owner_uid(settings):
            raise Failed("fault", "the job's folder, and that of its inputs, must be folders of the agent's own")
    if container.is_monitored() or container.exit() is not None:
        raise Failed("fault", f"{container.name} was started before")
    alive = os.open(container.inside("alive"), os.O_RDWR | os.O_CLOEXEC)
    hear, answer = os.pipe()
    descriptors = (alive, answer, *folders)
    try:
        process = subprocess.Popen(
            [sys.executable, "-IS", sys.argv[0], "monitor", container.name, *map(str, descriptors)],
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(alive)
        os.close(answer)
    with open(hear, "rb") as source:
        if not _has_come(hear, goes_on):
            processes.kill_with_descendants(process.pid)
            process.wait()
            _runc(settings, "delete", "--force", container.name)
            raise Failed("fault", f"the job of {container.name} has ended")
        first_word = source.read(_FIRST_WORD_BYTES)
    said = untrusted.json_of(first_word) if first_word else {"reason": "its monitor was killed"}
    if said["reason"] is not None:
        process.wait()
        raise Failed(said.get("kind", "start"), said["reason"])


def _has_come(descriptor: int, goes_on: Callable[[], bool]) -> bool:
    """Wait until there is something to read, or the other side has closed. Return False if the job ends first."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while not ready.poll(_LOOK_S * 1000):
        if not goes_on():
            return False
    return True


def pause(settings: config.Config, container: Bundle) -> None:
    """Freeze a container. If it is already frozen, do nothing."""
    container.facts()
    for is_last in freezing.tries():
        reason = _runc(settings, "pause", container.name)
        if reason is None or freezing.holds_after_all(_cgroups(settings, container)):
            return
        if (status := state(settings, container)) == "paused":
            return
        _must_run(container, status)
        if is_last:
            raise Failed("fault", f"runc cannot pause {container.name}: {reason}")


def unpause(settings: config.Config, container: Bundle) -> None:
    """Thaw a container. A container that is not frozen, or has ended, is left alone."""
    container.facts()
    reason = _runc(settings, "resume", container.name)
    if reason is not None and state(settings, container) == "paused":
        raise Failed("fault", reason)


def checkpoint(settings: config.Config, container: Bundle, *, end_s: float | None) -> None:
    """Save a container's memory and written files to the agent that listens under its name. The container stays paused.

    `end_s` is the time at which the save is given up, if the container's annotation does not contain it.
    """
    container.facts()
    if state(settings, container) != "paused":
        raise Failed("fault", f"{container.name} is not paused, or was killed")
    with bundle.temporary_folder(settings) as marker:
        words = ["checkpoint", "--leave-running", "--image-path", os.path.join(marker, "images"), container.name]
        reason = _runc(settings, *words, program=settings.shim, end_s=end_s)
    if reason is not None:
        raise Failed("checkpoint", reason)


def signal(settings: config.Config, container: Bundle, name: str) -> None:
    """Send a signal to a container's first process. It is not an error if the process has ended.

    After KILL, wait for the end.
    """
    container.facts()
    reason = _kill(settings, container) if name == "KILL" else _runc(settings, "kill", container.name, name)
    if name == "KILL" and not container.wait_for_end(None, wait_s=_END_WITHIN_S):
        raise Failed("fault", f"{container.name} cannot be killed: {reason or 'it does not end'}")


def remove(settings: config.Config, container: Bundle) -> None:
    """End a container, and remove all its files. It is not an error if the container does not exist."""
    _kill(settings, container)
    reason = _runc(settings, "delete", "--force", container.name)
    # Without a monitor, runc reports it as stopped. Without its state, runc does not know it.
    if reason is not None and state(settings, container) not in ("", "stopped"):
        raise Failed("fault", f"{container.name} cannot be removed: {reason}")
    if not container.wait_for_end(None, wait_s=_END_WITHIN_S):
        raise Failed("fault", f"{container.name} cannot be removed: it does not end")
    container.remove()


def _kill(settings: config.Config, container: Bundle) -> str | None:
    """Kill all processes of a container, and return the reason for a failure.

    A job can manipulate its container's init so that runc considers the container ended while its processes still run.
    """
    folders = _cgroups(settings, container)
    reason = None if freezing.end_frozen(folders) else _runc(settings, "kill", container.name, "KILL")
    return None if reason is not None and freezing.end(folders) else reason


def disk_use(container: Bundle) -> list[int]:
    """Return the bytes and inodes that are used outside the job's folder, and 1 if the count is complete, else 0."""
    return [int(number) for number in count_disk_use(container.inside("upper"), within_s=_COUNT_WITHIN_S)]


def state(settings: config.Config, container: Bundle) -> str:
    """Return runc's state (created, running, paused or stopped), or "" for a container that runc does not know."""
    output = _output([settings.runc, "--root", monitor.runc_root(settings), "state", container.name])
    try:
        return str(untrusted.json_of(output)["status"])
    except (ValueError, KeyError, TypeError):
        return ""


def _must_run(container: Bundle, status: str) -> None:
    """Raise `Failed` if a container has ended.

    `status` is runc's word for the state, which can be "" after a failed freeze.
    """
    if status == "running" or (not status and container.is_monitored()):
        return
    container.wait_for_end(None, wait_s=_END_WITHIN_S)
    end = container.exit()
    raise Failed("ended", f"it has ended with exit code {end['exit_code']}" if end else "it has ended")


def _runc(settings: config.Config, *words: str, program: str | None = None, end_s: float | None = None) -> str | None:
    """Run runc, or `program` instead. Return the reason for a failure, or None if it succeeded."""
    environment = os.environ if end_s is None else {**os.environ, transfer.END_VARIABLE: str(end_s)}
    with bundle.temporary_folder(settings) as folder:
        log = os.path.join(folder, "log")
        call = [program or settings.runc, "--root", monitor.runc_root(settings), "--log", log, "--log-format", "json"]
        limit_s = _RUNC_WITHIN_S if program is None else None  # a save ends with its agent (see `transfer`)
        try:
            result = system_programs.run([*call, *words], within_s=limit_s, environment=environment)
        except TimeoutError:
            return f"runc {words[0]} was not done within {limit_s} s"
        if result.status == 0:
            return None
        return monitor.last_error(log) or f"{words[0]} failed"


def _output(words: list[str]) -> str:
    try:
        return system_programs.run(words, within_s=_ANSWER_WITHIN_S).stdout
    except OSError as error:
        raise Failed("fault", f"{words[0]} does not work: {error}") from error


def _node(settings: config.Config, owner: Owner) -> oci_config.Node:
    return oci_config.Node(
        uid=owner.uid,
        gid=owner.gid,
        is_agents=owner.uid == settings.agent_uid,
        cpus=os.cpu_count() or 1,
        cgroup=settings.cgroup_parent,
        has_cgroup2=os.path.exists("/sys/fs/cgroup/cgroup.controllers"),
        counts_swap=os.path.exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
    )


def _cgroups(settings: config.Config, container: Bundle) -> dict[str, str]:
    return processes.cgroups_made_by_runc(monitor.runc_state_folder(settings, container.name))
