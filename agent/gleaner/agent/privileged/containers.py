"""What the node helper does to containers. Requests have been checked; see `request`.

Each call of runc, and of the shim where something is saved or restored, is by a container's plain name and with paths
of root's own alone. An agent's descriptors are used in two ways only: its job's folder is mounted, and archives are
read from and written to its pipes.
"""

from __future__ import annotations  # the node may have Python 3.9

import json
import os
import select
import stat
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from typing import Any

from . import (
    bundle,
    cgroups,
    config,
    freezing,
    image_store,
    links,
    monitor,
    oci,
    processes,
    request,
    transfer,
    written,
)
from .bundle import Bundle
from .own_jobs import Owner
from .taken import taken
from .unpack import Hostile, Limit

_END_WITHIN_S = 30.0
_RUNC_WITHIN_S = 60
_FIRST_WORD_BYTES = 2**16
_COUNT_WITHIN_S = 10.0
_LOOK_S = 30.0
"""So often it is looked whether a job goes on that keeps us waiting."""


class Failed(Exception):
    """It did not work; one line for the agent. `kind` says what it may make of that."""

    def __init__(self, kind: str, line: str) -> None:
        super().__init__(line)
        self.kind = kind


def facts(settings: config.Config) -> dict[str, Any]:
    """Versions of what runs here."""
    said = _output([settings.runc, "--version"]).split()
    criu = [line.split()[-1] for line in _output([settings.criu, "--version"]).splitlines() if "ersion:" in line]
    if "version" not in said:
        raise Failed("fault", f"{settings.runc} does not work")
    return {"runc": said[said.index("version") + 1].partition("+")[0], "criu": criu[0] if criu else ""}


def create(settings: config.Config, spec: request.Spec, owner: Owner) -> None:
    """A container that does not run yet."""
    room = _room(settings)
    if room.bytes < 0:
        raise Failed("fault", f"the containers on this node take more than {settings.most_container_bytes} bytes")
    if room.files < 0:
        raise Failed("fault", f"the containers on this node have more than {settings.most_container_files} files")
    image = image_store.find(settings, spec.image)
    if image is None:
        raise Failed("image", f"the image {spec.image} is not on the node")
    said = oci.image(image.config)
    if not oci.command(spec, said):
        raise Failed("start", "there is no command, and the image has none")
    made = Bundle(settings, spec.name)
    about = {"labels": spec.labels, "image_id": image.id, "rootfs": image.rootfs, "made_s": int(time.time())}
    about.update({"uid": owner.uid, "restore": spec.restore})
    node = _node(settings, owner)._replace(image_id=image.id)
    made.make(about, oci.configuration(spec, node, said, rootfs=made.inside("rootfs"), own=made.path))


def _room(settings: config.Config) -> bundle.Taken:
    """So much may still be written."""
    try:
        found = [one.taken() for one in bundle.all_bundles(settings)]
    except bundle.Uncounted as error:
        raise Failed("fault", str(error)) from error
    return bundle.Taken(
        settings.most_container_bytes - sum(one.bytes for one in found),
        settings.most_container_files - sum(one.files for one in found),
    )


def run(settings: config.Config, made: Bundle, folder: int, goes_on: Callable[[], bool] = lambda: True) -> None:
    """Start it, or restore it from the agent that waits under its name. The descriptor is the job's folder.

    Whoever waits there may keep us waiting for no longer than its job `goes_on`.
    """
    uid = made.owner_uid(settings)
    about = os.fstat(folder)
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != uid:
        raise Failed("fault", "the job's folder must be a folder of the agent's own")
    if made.is_monitored() or made.exit() is not None:
        raise Failed("fault", f"{made.name} was started before")
    alive = os.open(made.inside("alive"), os.O_RDWR | os.O_CLOEXEC)
    hear, answer = os.pipe()
    passed = (alive, answer, folder)
    try:
        watched = subprocess.Popen(
            [sys.executable, "-IS", sys.argv[0], "monitor", made.name, *map(str, passed)],
            pass_fds=passed,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            cwd="/",
        )
    finally:
        os.close(alive)
        os.close(answer)
    with open(hear, "rb") as source:
        if not _has_come(hear, goes_on):
            processes.kill_with_descendants(watched.pid)
            watched.wait()
            _runc(settings, "delete", "--force", made.name)
            raise Failed("fault", f"the job of {made.name} has ended")
        said = source.read(_FIRST_WORD_BYTES)
    reason = json.loads(said)["reason"] if said else "its monitor was killed"
    if reason is not None:
        watched.wait()
        raise Failed("start", reason)


def _has_come(descriptor: int, goes_on: Callable[[], bool]) -> bool:
    """Wait for something to be read, or for the other side to go; False if it does not go on meanwhile."""
    ready = select.poll()
    ready.register(descriptor, select.POLLIN)
    while not ready.poll(_LOOK_S * 1000):
        if not goes_on():
            return False
    return True


def pause(settings: config.Config, made: Bundle) -> None:
    """Freeze it; one that is frozen stays so."""
    made.facts()
    for is_last in freezing.tries():
        reason = _runc(settings, "pause", made.name)
        if reason is None or freezing.holds_after_all(cgroups.made_by_runc(monitor.kept_by_runc(settings, made.name))):
            return
        if (found := state(settings, made)) == "paused":
            return
        _must_run(made, found)
        if is_last:
            raise Failed("fault", f"runc cannot pause {made.name}: {reason}")


def unpause(settings: config.Config, made: Bundle) -> None:
    """Let it go on; one that is not frozen, or has ended, is left alone."""
    made.facts()
    reason = _runc(settings, "resume", made.name)
    if reason is not None and state(settings, made) == "paused":
        raise Failed("fault", reason)


def checkpoint(settings: config.Config, made: Bundle, *, end_s: float | None) -> None:
    """Save its memory to the agent that waits under its name; it stays paused. `end_s`: when that is given up, if its
    annotation does not say it."""
    made.facts()
    if state(settings, made) != "paused":
        raise Failed("fault", f"{made.name} is not paused, or was killed")
    with bundle.short_lived(settings) as marker:
        words = ["checkpoint", "--leave-running", "--image-path", os.path.join(marker, "images"), made.name]
        reason = _runc(settings, *words, program=settings.shim, end_s=end_s)
    if reason is not None:
        raise Failed("checkpoint", reason)


def layer_out(made: Bundle, pipe: int) -> None:
    """What it has written, as an archive, into the agent's pipe."""
    _must_be_pipe(pipe)
    chunks = written.pack(made.inside("upper"), made.facts()["rootfs"])
    try:
        with open(pipe, "wb", closefd=False) as sink:
            for chunk in chunks:
                sink.write(chunk)
    except Hostile as error:  # better now than when it is to be put back
        raise Failed("checkpoint", f"its written files cannot be saved: {error}") from error


def layer_in(settings: config.Config, made: Bundle, pipe: int) -> None:
    """Put such an archive back, before it begins. Of a user's the links are kept apart; see `links`."""
    about = made.facts()
    is_agents = made.owner_uid(settings) == settings.agent_uid
    if not (is_agents or about.get("restore")):
        raise Failed("fault", f"{made.name} is not restored, so it has no written files to be put back")
    _must_be_pipe(pipe)
    if made.is_monitored() or made.exit() is not None:
        raise Failed("fault", f"{made.name} was started before")
    try:
        aside: list[list[Any]] = []
        most = bundle.Taken(settings.most_container_bytes, settings.most_container_files)
        limit = Limit(*(most if is_agents else _room(settings)))
        written.put_back(pipe, made.inside("upper"), limit, None if is_agents else aside)
        if not is_agents:
            links.keep(made.path, {"at": made.inside("rootfs"), "folders": [], "links": aside})
    except (tarfile.TarError, EOFError, OverflowError, ValueError, OSError, Hostile) as error:
        raise Failed("restore", f"its written files cannot be put back: {error}") from error


def signal(settings: config.Config, made: Bundle, name: str) -> None:
    """Send a signal to its first process; that it has ended is no error. After KILL it has ended."""
    made.facts()
    reason = _runc(settings, "kill", made.name, name)
    if name == "KILL" and not made.until_ended(None, wait_s=_END_WITHIN_S):
        raise Failed("fault", f"{made.name} cannot be killed: {reason or 'it does not end'}")


def remove(settings: config.Config, made: Bundle) -> None:
    """End it, and remove all that is kept of it. One that is not there is no error."""
    _runc(settings, "kill", made.name, "KILL")
    reason = _runc(settings, "delete", "--force", made.name)
    if reason is not None and state(settings, made) not in ("", "stopped"):  # as without a monitor, and in the kernel
        raise Failed("fault", f"{made.name} cannot be removed: {reason}")
    if not made.until_ended(None, wait_s=_END_WITHIN_S):
        raise Failed("fault", f"{made.name} cannot be removed: it does not end")
    made.remove()


def usage(settings: config.Config, made: Bundle) -> dict[str, Any] | None:
    """Memory that would be saved (file cache is not) and CPU time; None for one that does not run."""
    paths = cgroups.made_by_runc(monitor.kept_by_runc(settings, made.name))
    memory = cgroups.counters(paths.get("memory", paths.get("")), "memory.stat")
    if not memory or not made.is_monitored():
        return None
    if "anon" in memory:  # cgroups of version 2
        saved = memory["anon"] + memory.get("shmem", 0)
        cpu_s = cgroups.counters(paths.get(""), "cpu.stat").get("usage_usec", 0) / 1e6
    else:
        saved = memory.get("total_rss", 0) + memory.get("total_shmem", 0)
        cpu_s = _number(os.path.join(paths.get("cpuacct", ""), "cpuacct.usage")) / 1e9
    return {"memory_bytes": saved, "cpu_s": cpu_s}


def has_taken(made: Bundle) -> list[int]:
    """What it has written apart from its job's folder: bytes, files and folders, and whether all was counted."""
    return [int(number) for number in taken(made.inside("upper"), within_s=_COUNT_WITHIN_S)]


def state(settings: config.Config, made: Bundle) -> str:
    """What runc calls it: created, running, paused or stopped; empty for one that runc does not know."""
    said = _output([settings.runc, "--root", monitor.runc_root(settings), "state", made.name])
    try:
        return str(json.loads(said)["status"])
    except (ValueError, KeyError):
        return ""


def _must_run(made: Bundle, found: str) -> None:
    """Raise `Failed` if it has ended. `found` is what runc calls it: nothing, perhaps, after a freeze that failed."""
    if found == "running" or (not found and made.is_monitored()):
        return
    made.until_ended(None, wait_s=_END_WITHIN_S)
    end = made.exit()
    raise Failed("ended", f"it has ended with exit code {end['exit_code']}" if end else "it has ended")


def _runc(settings: config.Config, *words: str, program: str | None = None, end_s: float | None = None) -> str | None:
    """The reason of a failure, or none."""
    environment = os.environ if end_s is None else {**os.environ, transfer.END_VARIABLE: str(end_s)}
    with bundle.short_lived(settings) as folder:
        log = os.path.join(folder, "log")
        call = [program or settings.runc, "--root", monitor.runc_root(settings), "--log", log, "--log-format", "json"]
        limit_s = _RUNC_WITHIN_S if program is None else None  # a save ends with its agent; see `transfer`
        try:
            done = subprocess.run(
                [*call, *words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                check=False,
                timeout=limit_s,
                env=environment,
            )
        except subprocess.TimeoutExpired:
            return f"runc {words[0]} was not done within {limit_s} s"
        if done.returncode == 0:
            return None
        return monitor.last_error(log) or f"{words[0]} failed"


def _output(words: list[str]) -> str:
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=30)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Failed("fault", f"{words[0]} does not work: {error}") from error
    return done.stdout.decode("utf-8", "replace")


def _node(settings: config.Config, owner: Owner) -> oci.Node:
    unified = os.path.exists("/sys/fs/cgroup/cgroup.controllers")
    return oci.Node(
        uid=owner.uid,
        gid=owner.gid,
        is_agents=owner.uid == settings.agent_uid,
        cpus=os.cpu_count() or 1,
        cgroup=settings.cgroup_parent,
        unified=unified,
        counts_swap=os.path.exists("/sys/fs/cgroup/memory/memory.memsw.limit_in_bytes"),
    )


def _must_be_pipe(descriptor: int) -> None:
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        raise Failed("fault", "files pass through a pipe only")


def _number(path: str) -> int:
    try:
        with open(path, encoding="ascii") as file:
            return int(file.read())
    except (OSError, ValueError):
        return 0
