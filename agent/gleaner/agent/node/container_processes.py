"""The processes of containers, as the node's /proc shows them, and how much they have written."""

import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from gleaner.agent.runtime.interface import ContainerId

_SCOPE = re.compile(r"/(?:docker-)?([^/\n]+?)(?:\.scope)?$", re.MULTILINE)
_WRITTEN = re.compile(r"^wchar: (\d+)$", re.MULTILINE)


def processes_of(containers: Collection[ContainerId], processes: Path) -> list[tuple[ContainerId, Path]]:
    """Return each process of these containers, with its folder under /proc.

    They are found by their cgroup, whose last part is the container's own.
    """
    sought: Mapping[str, ContainerId] = {str(container): container for container in containers}
    pairs: list[tuple[ContainerId, Path]] = []
    for process in processes.iterdir() if sought else ():
        if process.name.isdigit():
            with suppress(OSError):
                names = set(_SCOPE.findall((process / "cgroup").read_text(errors="replace")))
                pairs += [(container, process) for name, container in sought.items() if name in names]
    return pairs


def written_bytes(containers: Collection[ContainerId], *, processes: Path = Path("/proc")) -> dict[ContainerId, int]:
    """Return the bytes that each container's processes have written: to files, pipes, sockets and terminals.

    A process counts its own writes and those of the children that it has waited for (proc(5), `wchar`). Writes to
    memory, mapped files included, are not counted. A container is left out if a process hides its count.
    """
    found: dict[ContainerId, int] = {}
    hiding: set[ContainerId] = set()
    for container, process in processes_of(containers, processes):
        try:
            match = _WRITTEN.search((process / "io").read_text())
        except (FileNotFoundError, ProcessLookupError):  # it has ended
            continue
        except OSError:
            match = None
        if match is None:
            hiding.add(container)
        else:
            found[container] = found.get(container, 0) + int(match[1])
    return {container: count for container, count in found.items() if container not in hiding}
