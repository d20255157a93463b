"""Read from /proc how much containers' processes have written, and read the memory of their cgroups.

A container's processes are found by their cgroup, since the last part of its path contains the container's id. This
works in the same way for both runtimes and for both versions of cgroups.
"""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from gleaner.agent.privileged.common.processes import cgroup_counters
from gleaner.agent.runtime.interface import ContainerId

PROCESSES = Path("/proc")
_CGROUP = re.compile(r"^\d+:(.*?):(.*/(?:docker-)?([^/\n]+?)(?:\.scope)?)$", re.MULTILINE)
_WRITTEN = re.compile(r"^wchar: (\d+)$", re.MULTILINE)


def processes_of(containers: Collection[ContainerId], processes: Path) -> list[tuple[ContainerId, Path]]:
    """Return the folder under /proc of each process of these containers, with the container's id."""
    sought: Mapping[str, ContainerId] = {str(container): container for container in containers}
    pairs: list[tuple[ContainerId, Path]] = []
    for process in processes.iterdir() if sought else ():
        if process.name.isdigit():
            with suppress(OSError):
                names = {name for _, _, name in _cgroups(process)}
                pairs += [(container, process) for name, container in sought.items() if name in names]
    return pairs


def written_bytes(container: ContainerId, *, processes: Path = PROCESSES) -> int | None:
    """Return the bytes that a container's processes have written to files, pipes, sockets and terminals.

    A process counts its own writes and those of the children for which it has waited (proc(5), `wchar`). Writes to
    memory, including mapped files, are not counted. Return None if there is no process, or if a process hides its
    count.
    """
    count: int | None = None
    for _, process in processes_of([container], processes):
        try:
            match = _WRITTEN.search((process / "io").read_text())
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        except OSError:
            return None
        if match is None:
            return None
        count = (count or 0) + int(match[1])
    return count


def memory_bytes(container: ContainerId) -> int | None:
    """Return the memory that a checkpoint would write, without the file cache, or None if no process runs there."""
    for _, process in processes_of([container], PROCESSES):
        with suppress(OSError):
            places = {
                one: path for names, path, name in _cgroups(process) for one in names.split(",") if name == container
            }
            if "memory" in places:  # cgroups of version 1
                counters = cgroup_counters(f"/sys/fs/cgroup/memory{places['memory']}", "memory.stat")
                return counters.get("total_rss", 0) + counters.get("total_shmem", 0)
            counters = cgroup_counters(f"/sys/fs/cgroup{places.get('', '')}", "memory.stat")
            return counters.get("anon", 0) + counters.get("shmem", 0)
    return None


def _cgroups(process: Path) -> list[tuple[str, str, str]]:
    """Return the controllers, the path, and the container's id in the path, for each cgroup of a process
    (cgroups(7))."""
    return _CGROUP.findall((process / "cgroup").read_text(errors="replace"))
