"""Files that a container's processes hold open without a name: they take room, and no look at folders finds them.

The processes are found by their cgroup, whose last part is the container's own. They are the agent's account's, so the
kernel lets the agent see what they hold open, unless they forbid it.
"""

import os
import re
import stat
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from gleaner.agent.privileged.common.disk_usage import Taken
from gleaner.agent.privileged.shim.deleted_files import holds_sent_files
from gleaner.agent.runtime.interface import ContainerId

_BLOCK_BYTES = 512
_MOST = 100_000
"""Open files of one container that are looked at."""
_IN_MEMORY = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV")  # noqa: S108 - where they lie, nothing is put there
_SCOPE = re.compile(r"/(?:docker-)?([^/\n]+?)(?:\.scope)?$", re.MULTILINE)


def unnamed(containers: Collection[ContainerId], *, processes: Path = Path("/proc")) -> dict[ContainerId, Taken]:
    """Return what such files of each container take; files in memory do not count."""
    found: dict[ContainerId, dict[tuple[int, int], int]] = {}
    hiding: set[ContainerId] = set()
    for container, process in _processes(containers, processes):
        if not _look(process, found.setdefault(container, {})):
            hiding.add(container)
    return {
        container: Taken(sum(sizes.values()), len(sizes), container not in hiding) for container, sizes in found.items()
    }


def _processes(containers: Collection[ContainerId], processes: Path) -> list[tuple[ContainerId, Path]]:
    sought: Mapping[str, ContainerId] = {str(container): container for container in containers}
    found: list[tuple[ContainerId, Path]] = []
    for process in processes.iterdir() if sought else ():
        if process.name.isdigit():
            with suppress(OSError):
                names = set(_SCOPE.findall((process / "cgroup").read_text(errors="replace")))
                found += [(container, process) for name, container in sought.items() if name in names]
    return found


def _look(process: Path, sizes: dict[tuple[int, int], int]) -> bool:
    """Add the sizes of a process's such files; return False if some could not be seen. An ended process has none."""
    try:
        with os.scandir(process / "fd") as entries:
            for entry in entries:
                if len(sizes) >= _MOST:
                    return False
                with suppress(OSError):
                    _one(entry, sizes)
                    if stat.S_ISSOCK(entry.stat().st_mode) and holds_sent_files(str(process), entry.name):
                        return False  # nobody sees what they take
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return True


def _one(entry: os.DirEntry[str], sizes: dict[tuple[int, int], int]) -> None:
    facts = entry.stat()
    is_unnamed = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0
    if is_unnamed and not str(Path(entry.path).readlink()).startswith(_IN_MEMORY):
        sizes[facts.st_dev, facts.st_ino] = _BLOCK_BYTES * facts.st_blocks
