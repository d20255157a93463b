"""Collect the facts about this node, and about the agent's part of it."""

import errno
import os
import platform
import re
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import structlog

from gleaner.agent.messages import MOST_IMAGES, NodeFacts, NodeImages
from gleaner.agent.node.compatibility import version
from gleaner.agent.privileged.common import mount_folders
from gleaner.agent.privileged.shim.head_room import HEAD_ROOM_MIB
from gleaner.agent.runtime.interface import RuntimeFacts
from gleaner.agent.system.image_names import matches
from gleaner.agent.system.listed_folders import FolderRefused

log = structlog.get_logger()

KIB_A_MIB = 1024
SOCKETS_SAVED_SINCE = "4.2"


def node_facts(
    runtime: RuntimeFacts,
    *,
    cpus: int | None,
    memory_mib: int | None,
    mounts: Sequence[str] = (),
    own: Sequence[str] = (),
    fetches: Sequence[str] = (),
    disk_mib: int | None = None,
) -> NodeFacts:
    """Return the node's facts from the settings, or else from Slurm's environment, or else from the kernel.

    Jobs can use all of the node's memory except the head room for restores. `mounts` are the folders that jobs can
    mount. Folders that do not exist, or that would show jobs one of Gleaner's own folders (`own`), are left out.
    `fetches` are the schemes of URLs from which inputs can be fetched. `disk_mib` is the maximum that a job is allowed
    to write.
    """
    memory_mib = memory_mib or _from_slurm("SLURM_MEM_PER_NODE") or _total_memory_mib()
    return NodeFacts(
        node=os.environ.get("SLURMD_NODENAME") or platform.node().split(".")[0],
        cpus=cpus or _from_slurm("SLURM_CPUS_ON_NODE") or len(os.sched_getaffinity(0)),
        memory_mib=max(1, memory_mib - HEAD_ROOM_MIB),
        runtime=runtime.runtime,
        criu=runtime.criu if runtime.checkpoints else "",
        kernel=platform.release(),
        architecture=platform.machine(),
        cpu_features=_cpu_features(),
        mounts=_mounts_here(mounts, own),
        fetches=tuple(fetches),
        disk_mib=disk_mib,
    )


def node_images(runtime: RuntimeFacts, *, allowed: Sequence[str]) -> NodeImages:
    """Return the images of this node that jobs are allowed to run. `allowed` are the patterns of their names."""
    names = [name for name in runtime.images if any(matches(name, pattern) for pattern in allowed)]
    return NodeImages(names=tuple(names[:MOST_IMAGES]), brings=tuple(allowed) if runtime.brings_images else ())


def _mounts_here(paths: Sequence[str], own: Sequence[str]) -> tuple[str, ...]:
    with ThreadPoolExecutor(mount_folders.MOST) as pool:  # in parallel, as each one that hangs takes time
        reasons = list(pool.map(partial(_why_missing, own), paths))
    for reason in filter(None, reasons):
        log.warning("a folder that jobs may mount is missing", reason=reason)
    return tuple(path for path, reason in zip(paths, reasons, strict=True) if not reason)


def _why_missing(own: Sequence[str], path: str) -> str:
    try:
        mount_folders.check(path, own)
    except FolderRefused as error:
        return str(error)
    return ""


def _from_slurm(name: str) -> int | None:
    value = os.environ.get(name, "")
    return int(value) if re.fullmatch(r"[1-9][0-9]{0,8}", value) else None


def _total_memory_mib() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemTotal:"):
            return int(line.split()[1]) // KIB_A_MIB
    raise OSError("/proc/meminfo names no MemTotal")


def _cpu_features() -> tuple[str, ...]:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("flags", "Features")):
            return tuple(sorted(set(line.partition(":")[2].split())))
    return ()


def internet_socket_warning(criu: str, kernel: str, *, cannot_ask_passcred: bool) -> str:
    """Return a line for the admin if this CRIU cannot save internet sockets, or "" if it can or if there is no CRIU.

    CRIU before 4.2 asks each socket for SO_PASSCRED, and since version 6.16 Linux answers only for sockets of a few
    families. A save then fails whenever the job has any internet socket open.

    >>> internet_socket_warning("4.1.1", "6.18.1", cannot_ask_passcred=True)
    'CRIU 4.1.1 saves no job that has an internet socket open on Linux 6.18.1: install CRIU 4.2 or newer'
    >>> internet_socket_warning("4.1.1", "6.1", cannot_ask_passcred=False)
    ''
    """
    if not criu or not cannot_ask_passcred or version(criu) >= version(SOCKETS_SAVED_SINCE):
        return ""
    return (
        f"CRIU {criu} saves no job that has an internet socket open on Linux {kernel}: "
        f"install CRIU {SOCKETS_SAVED_SINCE} or newer"
    )


def cannot_ask_passcred() -> bool:
    """Return True if this node's kernel refuses to report SO_PASSCRED for an internet socket."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
            one.getsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED)
    except OSError as error:
        return error.errno == errno.EOPNOTSUPP
    return False
