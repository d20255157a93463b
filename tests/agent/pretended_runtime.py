"""A runtime for tests of the agent itself: its "processes" print numbers as the time goes on, and can be saved.

The real runtimes have tests of their own (tests/runtime); here it is the agent's clock, reports and order that count.
"""

import itertools
import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.draft import FolderDraft
from gleaner.agent.common.clock import Clock, SystemClock
from gleaner.agent.messages import ReturnReason, Way
from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.runtime.interface import (
    CachedImage,
    CannotCheckpoint,
    CannotRestore,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    End,
    ImageMissing,
    ImageRefused,
    RuntimeFacts,
    RuntimeFault,
)

STEP_S = 0.01
"""A process counts up by one in so long, and exits one step after its goal."""
FREEZES_IN_S = 0.03
LOOKS_EVERY_S = 0.07
"""Whoever reads a process's output looks for news so often: at most saves, some of it has yet to come."""


@dataclass
class _Process:
    """A function of the time: what it has done is worked out when somebody asks (`catch_up`)."""

    spec: ContainerSpec
    clock: Clock
    count: int
    goal: int
    exit_code: int
    written: list[str] = field(default_factory=list[str])
    paused: bool = False
    exited: int | None = None
    killed: bool = False
    out_of_memory: bool = False
    counts: bool = False
    ended: threading.Event = field(default_factory=threading.Event)
    moved: threading.Event = field(default_factory=threading.Event)  # it goes on, or has ended
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _since_s: float = field(init=False)  # by the monotonic clock: it has counted up to this instant

    def __post_init__(self) -> None:
        self._since_s = self.clock.monotonic_s()

    def catch_up(self) -> "_Process":
        """Do all that it has to have done by now."""
        with self._lock:
            if self.exited is None and not self.paused:
                steps = int((self.clock.monotonic_s() - self._since_s) / STEP_S + 1e-6)
                self._since_s += steps * STEP_S
                more = min(steps, self.goal - self.count)
                self._count(more)
                if steps > more:
                    self._exit(self.exit_code)
        return self

    def _count(self, more: int) -> None:
        if not more:
            return
        numbers = range(self.count + 1, self.count + more + 1)
        self.count, self.counts = self.count + more, True
        for number in numbers:
            self.written.append(f"event {number}\n")
        with (self.spec.folder / "events.csv").open("a") as file:
            file.writelines(f"{number}\n" for number in numbers)

    def _exit(self, exit_code: int) -> None:
        self.exited = exit_code
        self.ended.set()
        self.moved.set()

    def pause(self) -> None:
        self.catch_up().paused = True

    def unpause(self) -> None:
        if self.paused:
            self._since_s, self.paused = self.clock.monotonic_s(), False
            self.moved.set()

    def end(self, exit_code: int, *, killed: bool = False) -> None:
        if self.catch_up().exited is None:
            self.killed = killed
            self._exit(exit_code)

    def exits_in_s(self) -> float:
        """Return how long it takes to exit by itself, as things stand."""
        if self.paused:
            return math.inf
        return (self.goal + 1 - self.count) * STEP_S - (self.clock.monotonic_s() - self._since_s)


class PretendedRuntime:
    """Commands are `count GOAL [EXIT_CODE]`, and `save-itself GOAL [EXIT_CODE]` for one that does so.

    The image `missing` is missing. Checkpoints can be made to fail.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._numbers = itertools.count(1)
        self._processes: dict[ContainerId, _Process] = {}
        self.checkpoints_that_fail = 0
        self.unsavable = ""
        """The reason why its processes cannot be saved; empty if they can."""
        self.unsavable_after_s = 0.0
        """The time that a save takes to find that reason."""
        self.used_bytes = 1_000_000
        self.first_lines = ["start"]
        self.start_takes_s = 0.0
        self.checkpoint_takes_s = 0.0
        self.remove_takes_s = 0.0
        """Each process writes only at the instant before it is paused."""
        self.silent_from = 10**9
        """The count from which no process writes anything more."""
        self.signals: list[str] = []
        self.restores = 0
        self.images: dict[str, bytes] = {}
        """The container images that were loaded, by id; what begins with "no image" is refused."""
        self.used_s: dict[str, float] = {}
        self.held_images: set[str] = set()
        """The images that a container uses."""
        self.loads = 0
        self.has_written = DiskUse()
        """Each of them, apart from its folder."""
        self.left_over: dict[ContainerId, Mapping[str, str]] = {}

    def spec_of(self, container: ContainerId) -> ContainerSpec:
        return self._processes[container].spec

    def facts(self) -> RuntimeFacts:
        return RuntimeFacts(runtime="pretended 1", criu="4.1.1", way=Way.CRIU, checkpoints=True)

    def start(self, spec: ContainerSpec) -> ContainerId:
        if spec.image == "impossible":
            raise RuntimeFault("the engine is broken")
        if spec.image == "missing":
            raise ImageMissing("no image named missing")
        self._clock.pause(self.start_takes_s)
        goal, exit_code = int(spec.command[1]), int(spec.command[2]) if len(spec.command) > 2 else 0
        process = _Process(spec, self._clock, 0, goal, exit_code, [f"{line}\n" for line in self.first_lines])
        state = spec.folder / "state"
        if process.spec.command[0] == "save-itself" and state.exists():
            process.count, process.written = int(state.read_text()), []
        return self._run(process)

    def _run(self, process: _Process) -> ContainerId:
        name = ContainerId(f"c{next(self._numbers)}")
        self._processes[name] = process
        return name

    def has_image(self, image_id: str) -> bool:
        return image_id in self.images

    def pull_image(self, spec: ContainerSpec) -> None:
        """Nothing: every image is there, but for those that were pushed."""

    def load_image(self, image_id: str, archive: Iterator[bytes]) -> None:
        self.loads += 1
        content = b"".join(archive)
        if content.startswith(b"no image"):
            raise ImageRefused("invalid tar header")
        self.images[image_id] = content

    def image_id(self, container: ContainerId) -> str:
        return "sha256:" + "1" * 64

    def pause(self, container: ContainerId) -> None:
        process = self._processes[container]
        process.pause()
        self._clock.pause(FREEZES_IN_S)
        if process.exited is not None:
            raise ContainerExited(container)

    def unpause(self, container: ContainerId) -> None:
        self._processes[container].unpause()

    def checkpoint(self, container: ContainerId, draft: FolderDraft) -> None:
        if self.unsavable:
            self._clock.pause(self.unsavable_after_s)
            raise CannotCheckpoint(self.unsavable, ReturnReason.UNSAVABLE)
        if self.checkpoints_that_fail > 0:
            self.checkpoints_that_fail -= 1
            raise CannotCheckpoint("it holds a device")
        process = self._processes[container]
        assert process.paused
        self._clock.pause(self.checkpoint_takes_s)
        draft.add("memory.tar", [f"{process.count} {process.goal} {process.exit_code}".encode()])

    def restore(self, spec: ContainerSpec, archive: FolderArchive) -> ContainerId:
        words = b"".join(archive.read("memory.tar")).split()
        try:
            if len(words) != 3:
                raise CannotRestore("no memory")
            count, goal, exit_code = map(int, words)
            return self._run(_Process(spec, self._clock, count, goal, exit_code))
        finally:  # whoever waits for it finds the process
            self.restores += 1

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        process, at = self._processes[container], 0
        while True:
            ended = process.catch_up().ended.is_set()
            new = process.written[at:]
            at += len(new)
            yield 1, "".join(new).encode()
            if ended:
                return
            self._clock.wait(process.ended, LOOKS_EVERY_S)

    def live_output(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        process, at = self._processes[container], 0
        while not process.catch_up().ended.is_set():
            new = process.written[at:]
            at += len(new)
            if new:
                yield 1, "".join(new).encode()
            self._clock.wait(process.ended, LOOKS_EVERY_S)

    def wait(self, container: ContainerId) -> End:
        process = self._processes[container]
        while True:
            process.moved.clear()
            exit_code = process.catch_up().exited
            if process.killed:
                raise ContainerKilled(container)
            if exit_code is not None:
                return End(exit_code, out_of_memory=process.out_of_memory)
            self._clock.wait(process.moved, min(process.exits_in_s(), threading.TIMEOUT_MAX))

    def signal(self, container: ContainerId, name: str) -> None:
        """`save-itself` writes its state and exits with 85."""
        self.signals.append(name)
        process = self._processes[container]
        assert not process.paused
        if process.spec.command[0] == "save-itself":
            process.pause()
            self._clock.pause(FREEZES_IN_S)
            (process.spec.folder / "state").write_text(str(process.count))
            process.end(85)

    def written_bytes(self, container: ContainerId) -> int | None:
        """Return what it has written: it grows with the count, up to `silent_from`."""
        process = self._processes[container].catch_up()
        return min(process.count, self.silent_from)

    def kill(self, container: ContainerId) -> None:
        if container in self._processes:
            self._processes[container].end(137, killed=True)

    def counting(self) -> int:
        """So many have counted since they were started or restored, and go on."""
        processes = [process.catch_up() for process in list(self._processes.values())]
        return sum(process.counts and process.exited is None for process in processes)

    def kill_all(self) -> None:
        """Kill all containers from outside of the agent."""
        for container in list(self._processes):
            self.kill(container)

    def end_all_at_their_memory_limit(self) -> None:
        for process in self._processes.values():
            process.out_of_memory = True
            process.end(137)

    def remove(self, container: ContainerId) -> None:
        self._clock.pause(self.remove_takes_s)
        self.left_over.pop(container, None)

    def memory_s(self, container: ContainerId) -> float:
        return 0.0

    def memory_bytes(self, container: ContainerId) -> int | None:
        return self.used_bytes if self._processes[container].catch_up().exited is None else None

    def our_containers(self) -> Mapping[ContainerId, Mapping[str, str]]:
        return dict(self.left_over)

    def data_folders(self) -> Sequence[str]:
        return ()

    def disk_use(self, container: ContainerId, *, most_inodes: int) -> DiskUse:
        return self.has_written

    def cached_images(self) -> Sequence[CachedImage]:
        """The images that were loaded, in the order of their loads; `used_s` has their last uses."""
        return [CachedImage(name, len(content), self.used_s.get(name, 0)) for name, content in self.images.items()]

    def drop_image(self, name: str) -> bool:
        return name not in self.held_images and self.images.pop(name, None) is not None
