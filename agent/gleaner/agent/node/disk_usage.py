"""Count the jobs' use of their node's disk, and decide which jobs must end or be saved.

A job has a limit of bytes and of files, and the node's file systems keep a reserve that is not for jobs. Where the
runtime can, it enforces a limit itself (`DockerRuntime`). The count here is for all other cases. It costs little,
because it stops at a limit, and is repeated less often the longer it takes. The reserve is checked each time.
"""

import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TypeAlias

import structlog

from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.common.quantities import memory_in_words
from gleaner.agent.privileged.common.disk_usage import BLOCK_BYTES, DiskUse, count_disk_use
from gleaner.agent.privileged.shim.unsavable import holds_sent_files
from gleaner.agent.runtime import images
from gleaner.agent.runtime.container_processes import processes_of
from gleaner.agent.runtime.interface import ContainerId, Runtime, RuntimeFault

log = structlog.get_logger()

_MIB = 2**20
_COUNT_WITHIN_S = 10.0
_EVERY_S = 10.0
_FALL_MIB = 1024
"""As soon as this much space has been used up since the last count, the next count is due."""
_REMOVED_WITHIN_S = 20.0
_SHARE = 20
"""After a count that took t seconds, wait this many times t, so that counting costs at most 5 % of the time."""
_LEAST_FREE_INODES = 0.02
_PRUNE_EVERY_S = 60.0
_WORTH_MIB = 64
"""Ending a job that uses less than this would free too little."""
_MOST_OPEN = 100_000
"""The maximum number of open files of one container that are checked."""
_IN_MEMORY = ("/dev/shm/", "/memfd:", "/dev/zero", "/SYSV")  # noqa: S108 - nothing is created there


@dataclass(frozen=True, slots=True)
class DiskLimits:
    """A node's limits, from its settings."""

    mib_per_job: int = 20_480
    inodes_per_job: int = 500_000
    reserve_mib: int = 1024

    def mib_of(self, own_mib: int | None) -> int:
        """Return the limit of a job, which is the lower of its own limit, if it has one, and the node's."""
        return self.mib_per_job if own_mib is None else min(own_mib, self.mib_per_job)


@dataclass(frozen=True, slots=True)
class Room:
    """The free space on the fullest file system to which jobs write."""

    place: str
    free_bytes: int
    is_short_of_inodes: bool = False

    def is_short(self, reserve_bytes: int) -> bool:
        """Return True if less than the reserve is free."""
        return self.free_bytes < reserve_bytes or self.is_short_of_inodes

    def __str__(self) -> str:
        """Return one phrase for messages."""
        files = ", and hardly any room for further files" if self.is_short_of_inodes else ""
        return f"{self.place} has {self.free_bytes // _MIB} MiB free{files}"


@dataclass(frozen=True, slots=True)
class TooLarge:
    """The job has passed its own limit, which counts as the job's own failure."""

    detail: str


@dataclass(frozen=True, slots=True)
class InTheWay:
    """The node's reserve is being used, and this job takes the most space.

    With `at_once`, there is no time to save it.
    """

    detail: str
    at_once: bool


Verdict: TypeAlias = TooLarge | InTheWay


def verdicts(
    uses: Mapping[ContainerId, DiskUse],
    room: Room | None,
    limits: DiskLimits,
    own_mib: Mapping[ContainerId, int] = MappingProxyType({}),
) -> dict[ContainerId, Verdict]:
    """Return the verdict on each job that must end or be saved. `own_mib` contains the limits of jobs that specify one.

    >>> verdicts({ContainerId("a"): DiskUse(3 * 2**30, 10)}, None, DiskLimits(mib_per_job=2048))
    {'a': TooLarge(detail='it takes at least 3072 MiB of the disk, and may take 2048 MiB (disk_mib_per_job)')}
    """
    found: dict[ContainerId, Verdict] = {}
    for container, one in uses.items():
        has_mib, may_mib = one.size_bytes // _MIB, limits.mib_of(own_mib.get(container))
        if one.size_bytes > may_mib * _MIB and may_mib < limits.mib_per_job:
            reached = f"disk limit {memory_in_words(may_mib)} reached"
            found[container] = TooLarge(f"{reached}: it takes at least {has_mib} MiB of the disk")
        elif one.size_bytes > limits.mib_per_job * _MIB:
            may = f"may take {limits.mib_per_job} MiB (disk_mib_per_job)"
            found[container] = TooLarge(f"it takes at least {has_mib} MiB of the disk, and {may}")
        elif one.inodes > limits.inodes_per_job:
            may = f"may have {limits.inodes_per_job} (inodes_per_job)"
            found[container] = TooLarge(f"it has at least {one.inodes} files and folders, and {may}")
    others = {container: one for container, one in uses.items() if container not in found}
    if room is None or not room.is_short(limits.reserve_mib * _MIB) or found or not others:
        return found
    # A job that could not be counted completely might use the most.
    largest = max(others, key=lambda container: (not others[container].is_whole, others[container].size_bytes))
    one = others[largest]
    if one.is_whole and one.size_bytes < _WORTH_MIB * _MIB and not (room.is_short_of_inodes and one.inodes > 1000):
        return found
    takes = f"of the jobs here this one takes most, {one.size_bytes // _MIB} MiB"
    at_once = room.is_short(limits.reserve_mib * _MIB // 2) or room.is_short_of_inodes
    found[largest] = InTheWay(f"{room}, less than disk_reserve_mib ({limits.reserve_mib}); {takes}", at_once=at_once)
    return found


def room(data_folders: Sequence[Path | str]) -> Room | None:
    """Return the space on the fullest of the folders' file systems, or None if no file system can be read."""
    rooms: list[Room] = []
    for place in data_folders:
        try:
            facts = os.statvfs(place)
        except OSError:
            continue
        is_short = facts.f_files > 0 and facts.f_favail < _LEAST_FREE_INODES * facts.f_files
        rooms.append(Room(str(place), facts.f_bavail * facts.f_frsize, is_short))
    return min(rooms, key=lambda one: (not one.is_short_of_inodes, one.free_bytes), default=None)


@dataclass(slots=True)
class DiskWatch:
    """One agent's monitor of the disk. Only one thread at a time can use it."""

    runtime: Runtime
    work: Path
    limits: DiskLimits
    images_keep_s: float
    images_limit_bytes: int = 200 * 2**30
    clock: Clock = field(default_factory=SystemClock)
    room: Room | None = None
    """The free space at the last measurement."""
    _next_s: float = 0.0
    _urgent_s: float = 0.0
    _free_bytes: int = 0
    """The free space when the jobs were last checked."""
    _leaving: ContainerId | None = None
    _removal_end_s: float = 0.0
    _last_prune_s: float | None = None
    _last_warning: str = ""

    @property
    def is_short(self) -> bool:
        """True if no new job is allowed to start here."""
        return self.room is not None and self.room.is_short(self.limits.reserve_mib * _MIB)

    def make_room(self) -> None:
        """Measure the free space on the file systems of jobs, and remove unused images if it is short.

        The call blocks.
        """
        self.room = room([self.work, *self._places()])
        if self.is_short and self._may_prune() and self._prune(images.FRESH_S, enough=lambda _: self._has_room()):
            self.room = room([self.work, *self._places()])

    def why_short(self) -> str:
        """Return one line that explains which space is short, or an empty text if none is."""
        if self.room is None or not self.is_short:
            return ""
        is_bytes = self.room.free_bytes < self.limits.reserve_mib * _MIB
        reserve = f", less than disk_reserve_mib ({self.limits.reserve_mib})" if is_bytes else ""
        return f"no room for a job: {self.room}{reserve}"

    def look(
        self, jobs: Mapping[ContainerId, Path], own_mib: Mapping[ContainerId, int] = MappingProxyType({})
    ) -> dict[ContainerId, Verdict]:
        """Return verdicts on jobs that must end or be saved. The call blocks for a limited time.

        `jobs` contains their folders, and `own_mib` the limits of those that specify one.
        """
        self.make_room()
        if self._last_prune_s is None:
            self._prune(images.FRESH_S, enough=lambda left_bytes: left_bytes <= self.images_limit_bytes)
            self._prune(self.images_keep_s, enough=lambda _: False)
        if not self._is_due():
            return {}
        began_s = self.clock.monotonic_s()
        self._free_bytes = self.room.free_bytes if self.room else 0
        hidden = deleted_open_files(jobs)
        uses = {
            container: self._job_use(container, folder).plus(hidden.get(container, DiskUse()))
            for container, folder in jobs.items()
        }
        took_s = self.clock.monotonic_s() - began_s
        self._next_s = began_s + max(_EVERY_S, _SHARE * took_s)
        self._urgent_s = self.clock.monotonic_s() + took_s
        return self._one_at_a_time(verdicts(uses, self.room, self.limits, own_mib))

    def _is_due(self) -> bool:
        """Return True if a count is due. It is due earlier if space is short or is used up fast."""
        now_s = self.clock.monotonic_s()
        free_bytes = self.room.free_bytes if self.room else 0
        is_urgent = self.is_short or free_bytes < self._free_bytes - min(_FALL_MIB * _MIB, self._free_bytes // 8)
        return now_s >= self._next_s or (is_urgent and now_s >= self._urgent_s)

    def _one_at_a_time(self, verdicts_here: dict[ContainerId, Verdict]) -> dict[ContainerId, Verdict]:
        """Leave out a job that must go because of the reserve, until there has been time to remove the previous one."""
        for container, verdict in list(verdicts_here.items()):
            if isinstance(verdict, InTheWay) and container != self._leaving:
                if self.clock.monotonic_s() < self._removal_end_s:
                    del verdicts_here[container]
                else:
                    self._leaving, self._removal_end_s = container, self.clock.monotonic_s() + _REMOVED_WITHIN_S
        return verdicts_here

    def _places(self) -> Sequence[str]:
        try:
            return self.runtime.data_folders()
        except RuntimeFault:
            return ()

    def _job_use(self, container: ContainerId, folder: Path) -> DiskUse:
        most_inodes = self.limits.inodes_per_job
        inside = count_disk_use(
            str(folder),
            within_s=_COUNT_WITHIN_S,
            most_bytes=self.limits.mib_per_job * _MIB,
            most_inodes=most_inodes,
            own=True,
        )
        try:
            return inside.plus(self.runtime.disk_use(container, most_inodes=most_inodes))
        except RuntimeFault as error:
            self._say("cannot tell what a job has written", str(error))
            return inside

    def _has_room(self) -> bool:
        fullest = room([self.work, *self._places()])
        return fullest is not None and not fullest.is_short(self.limits.reserve_mib * _MIB)

    def _may_prune(self) -> bool:
        """Return True if there was no prune in the last minute."""
        return self._last_prune_s is None or self.clock.monotonic_s() - self._last_prune_s >= _PRUNE_EVERY_S

    def _prune(self, unused_for_s: float, *, enough: Callable[[int], bool]) -> bool:
        """Remove unused images until `enough` returns True, and return True if any were removed."""
        self._last_prune_s = self.clock.monotonic_s()
        try:
            removed = images.prune(self.runtime, unused_for_s=unused_for_s, enough=enough, now_s=self.clock.now_s())
        except RuntimeFault as error:
            self._say("cannot remove unused images", str(error))
            return False
        if removed:
            log.info("removed images that nobody uses", images=[image.name for image in removed])
        return bool(removed)

    def _say(self, what: str, reason: str) -> None:
        """Log a reason, unless it is the last one that was logged."""
        if self._last_warning != reason:
            self._last_warning = reason
            log.warning(what, reason=reason)


def deleted_open_files(
    containers: Collection[ContainerId], *, processes: Path = Path("/proc")
) -> dict[ContainerId, DiskUse]:
    """Return the disk use of deleted files that each container's processes hold open, except files in memory.

    Such files take space, but no count of folders finds them. The processes are found by their cgroup, since the last
    part of its path contains the container's id. They run under the agent's account, so the kernel lets the agent see
    their open files, unless the processes forbid it.
    """
    files: dict[ContainerId, dict[tuple[int, int], int]] = {}
    hiding: set[ContainerId] = set()
    for container, process in processes_of(containers, processes):
        if not _add_deleted_files(process, files.setdefault(container, {})):
            hiding.add(container)
    return {
        container: DiskUse(sum(sizes.values()), len(sizes), container not in hiding)
        for container, sizes in files.items()
    }


def _add_deleted_files(process: Path, sizes: dict[tuple[int, int], int]) -> bool:
    """Add the sizes of a process's deleted open files. Return False if some cannot be seen. An ended process has
    none."""
    try:
        with os.scandir(process / "fd") as entries:
            for entry in entries:
                if len(sizes) >= _MOST_OPEN:
                    return False
                with suppress(OSError):
                    _add_if_deleted(entry, sizes)
                    if stat.S_ISSOCK(entry.stat().st_mode) and holds_sent_files(str(process), entry.name):
                        return False  # their sizes are not visible
    except (FileNotFoundError, ProcessLookupError):
        return True
    except OSError:
        return False
    return True


def _add_if_deleted(entry: os.DirEntry[str], sizes: dict[tuple[int, int], int]) -> None:
    facts = entry.stat()
    is_deleted = stat.S_ISREG(facts.st_mode) and facts.st_nlink == 0
    if is_deleted and not str(Path(entry.path).readlink()).startswith(_IN_MEMORY):
        sizes[facts.st_dev, facts.st_ino] = BLOCK_BYTES * facts.st_blocks
