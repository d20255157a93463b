"""Calculate the memory that a restore needs besides the job's own, and lend room for it above the container's limit.

CRIU, and the processes that wait for CRIU, run in the container's cgroup while CRIU restores it. CRIU's processes also
become the container's, so each of them has a copy of CRIU's memory until it continues as the job. Without room for
these copies, a container near its limit would be saved but never restored. So the limit is raised for such a restore,
and lowered before the processes continue. Each agent sets aside memory for one such restore, so only one restore on a
node has this room at a time.

Memory that processes have shared since a fork stays shared only between a child and its parent, and only where both
have it at the same addresses, because CRIU restores it in this way. All other memory is restored separately for each
process. A container is not saved if it would not fit into its limit after a restore, or if its restore would need more
room.
"""

from __future__ import annotations  # the node may have Python 3.9

import contextlib
import errno
import fcntl
import json
import math
import os
import time
from collections.abc import Generator
from typing import Any, NamedTuple

from ...system import atomic, ipc, openat, untrusted
from ..common import processes
from .seal import Broken
from .unsavable import Reason

Areas = dict[str, tuple[int, int]]
"""Private memory by its addresses, in bytes: the total, and the part that is shared with another process."""
NEEDS_MEMORY = "it needs more memory to be restored"
"""The beginning of a refusal because of memory.

Control then moves such a job up to the next size in its memory range.
"""
_MIB, _KIB = 2**20, 2**10
HEAD_ROOM_MIB = 64
_HEAD_ROOM = HEAD_ROOM_MIB * _MIB
# These values were measured with CRIU 4.1 and Linux 6.18, and rounded up.
_KERNEL, _KERNEL_OF_PROCESS, _KERNEL_OF_THREAD = 1024 * _KIB, 70 * _KIB, 30 * _KIB
_CRIU, _CRIU_OF_PROCESS, _CRIU_OF_PAIR, _CRIU_OF_THREAD = 12 * _MIB, 140 * _KIB, 2 * _KIB, 60 * _KIB
_AGAIN_S = 0.2


class Need(NamedTuple):
    """The memory that the restore of a container needs, in bytes."""

    after: int
    """The memory that the container has when its processes continue."""
    peak: int
    limit: float
    """The container's own limit, which is infinity if it has none."""

    def refusal(self) -> Reason | None:
        """Return the reason why the container must not be saved, or None if it can be restored.

        >>> Need(120 * 2**20, 132 * 2**20, 128 * 2**20).refusal() is None
        True
        >>> print(Need(120 * 2**20, 200 * 2**20, 128 * 2**20).refusal().text)
        it needs more memory to be restored than its limit of 128 MiB allows: give it at least 136 MiB (memory_mib)
        """
        least = max(self.after, self.peak - _HEAD_ROOM)
        if least <= self.limit:
            return None
        allowed = f"than its limit of {self.limit / _MIB:.0f} MiB allows"
        advice = f"give it at least {math.ceil(least / _MIB)} MiB (memory_mib)"
        return Reason(f"{NEEDS_MEMORY} {allowed}: {advice}", lasts=True)


def need(memory: int, tables: int, limit: float, *, count: int, threads: int) -> Need:
    """Return the need of `count` processes and `threads` threads with this much memory and page tables, in bytes."""
    after = memory + tables + _KERNEL + count * _KERNEL_OF_PROCESS + threads * _KERNEL_OF_THREAD
    criu = _CRIU + count * _CRIU_OF_PROCESS + count * count * _CRIU_OF_PAIR + threads * _CRIU_OF_THREAD
    return Need(after, after + criu, limit)


def private_after(areas: dict[int, Areas], parents: dict[int, int]) -> int:
    """Return the private memory of processes once they are restored.

    >>> two = {"1-3": (20, 20)}
    >>> private_after({1: two, 2: two}, {2: 1}), private_after({1: {}, 2: two, 3: two}, {2: 1, 3: 1})
    (20, 40)
    """
    total = 0
    for pid, own in areas.items():
        above = areas.get(parents.get(pid, 0), {})
        total += sum(size - min(shared, above.get(place, (0, 0))[1]) for place, (size, shared) in own.items())
    return total


def of_container(state_folder: str) -> Need:
    """Return the need of a container whose processes are stopped. Raises `OSError` or `ValueError`."""
    limit_file = _limit_file(processes.cgroups_made_by_runc(state_folder))
    counters = processes.cgroup_counters(os.path.dirname(limit_file), "memory.stat")
    pids = processes.family(processes.first_process(state_folder))
    abouts = {pid: processes.status(f"/proc/{pid}/status") for pid in pids}
    memory = counters.get("total_rss", counters.get("anon", 0))
    if len(pids) > 1:
        parents = {pid: int(about["PPid"][0]) for pid, about in abouts.items()}
        memory = private_after({pid: _areas(pid) for pid in pids}, parents)
    memory += counters.get("total_shmem", counters.get("shmem", 0))
    tables = sum(int(about["VmPTE"][0]) * _KIB for about in abouts.values() if "VmPTE" in about)
    threads = sum(int(about["Threads"][0]) for about in abouts.values())
    with open(limit_file, encoding="ascii") as file:
        limit = float(file.read().replace("max", "inf"))
    return need(memory, tables, limit, count=len(pids), threads=threads)


def _limit_file(folders: dict[str, str]) -> str:
    if "memory" in folders:
        return os.path.join(folders["memory"], "memory.limit_in_bytes")
    return os.path.join(folders.get("", ""), "memory.max")


def _areas(pid: int) -> Areas:
    found: dict[str, tuple[int, int]] = {}
    place, shared = "", 0
    with open(f"/proc/{pid}/smaps", encoding="ascii", errors="replace") as file:
        for name, *rest in map(str.split, file):
            if not name.endswith(":"):
                place = name
            elif name == "Shared_Dirty:":
                shared = int(rest[0]) * _KIB
            elif name == "Anonymous:" and rest[0] != "0":
                size = int(rest[0]) * _KIB
                found[place] = size, min(size, shared)
    return found


@contextlib.contextmanager
def lent(bundle: str, lock: str, end_s: float, *, is_wanted: bool) -> Generator[int | None]:
    """Raise the limit in the configuration of a container that is about to be made, and yield its original limit.

    Before that, wait until no other container on the node has head room. If `is_wanted` is False, change nothing and
    yield None. Raises `HandshakeFailed` when the agent's end comes first.
    """
    if not is_wanted:
        yield None
        return
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with openat.closing_fd(os.open(lock, flags, 0o600)) as held:
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            if time.time() >= end_s:
                raise ipc.HandshakeFailed("the agent's end has come, and others were being restored")
            time.sleep(_AGAIN_S)
        path = os.path.join(bundle, "config.json")
        with open(path, "rb") as file:
            config: dict[str, Any] = untrusted.json_of(file.read())
        memory: dict[str, int] = config["linux"]["resources"]["memory"]
        limit = memory["limit"]
        memory.update({name: memory[name] + _HEAD_ROOM for name in ("limit", "swap") if name in memory})
        atomic.replace(path, json.dumps(config).encode(), mode=os.stat(path).st_mode & 0o777)
        yield limit


def lower_limit(folders: dict[str, str], limit: int) -> None:
    """Lower a container's limit to its original value. Raises `Broken` if the container uses more memory than that."""
    path = _limit_file(folders)
    counters = processes.cgroup_counters(os.path.dirname(path), "memory.stat")
    try:
        if "memory" not in folders and counters.get("anon", 0) + counters.get("shmem", 0) > limit:
            raise OSError(errno.EBUSY, "version 2 of cgroups would kill its processes")
        for each in (path, path.replace("memory.limit", "memory.memsw.limit")):  # the second is never below the first
            with contextlib.suppress(FileNotFoundError), open(each, "r+", encoding="ascii") as file:
                file.write(str(limit))
    except OSError as error:
        raise Broken(f"what was restored has more memory than its limit: {error}") from error
