"""A runtime for tests of the agent itself: its "processes" are threads that print numbers and can be saved.

The real runtimes have tests of their own (tests/runtime); here it is the agent's clock, reports and order that count.
"""

import itertools
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gleaner.agent.checkpoints.interface import Archive, Draft
from gleaner.agent.messages import Way
from gleaner.agent.privileged.common.disk_usage import Taken
from gleaner.agent.runtime.interface import (
    CannotCheckpoint,
    CannotRestore,
    ContainerExited,
    ContainerId,
    ContainerKilled,
    ContainerSpec,
    ImageMissing,
    ImageRefused,
    RuntimeFacts,
    RuntimeFault,
    Usage,
)


@dataclass
class _Process:
    spec: ContainerSpec
    count: int
    goal: int
    exit_code: int
    written: list[str] = field(default_factory=list)
    in_two_parts: bool = False
    paused: bool = False
    exited: int | None = None
    killed: bool = False
    counts: bool = False
    ended: threading.Event = field(default_factory=threading.Event)

    def live(self) -> None:
        while self.exited is None:
            time.sleep(0.01)
            if self.paused:
                continue
            if self.count >= self.goal:
                self.exited = self.exit_code
                break
            self.count += 1
            before, after = ("\n" if self.count > 1 else "", "") if self.in_two_parts else ("", "\n")
            self.written.append(f"{before}event {self.count}{after}")
            with (self.spec.folder / "events.csv").open("a") as file:
                file.write(f"{self.count}\n")
            self.counts = True
        self.ended.set()


class PretendedRuntime:
    """Commands are `count GOAL [EXIT_CODE]`, and `save-itself GOAL [EXIT_CODE]` for one that does so.

    The image `missing` is missing. Checkpoints can be made to fail.
    """

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._processes: dict[ContainerId, _Process] = {}
        self.checkpoints_that_fail = 0
        self.memory_bytes = 1_000_000
        self.first_lines = ["start"]
        self.lines_in_two_parts = False
        """Each line's end is written only together with the next line."""
        self.start_takes_s = 0.0
        self.checkpoint_takes_s = 0.0
        self.remove_takes_s = 0.0
        self.can_save = True
        self.signals: list[str] = []
        self.restores = 0
        self.images: dict[str, bytes] = {}
        """The container images that were loaded, by id; what begins with "no image" is refused."""
        self.loads = 0
        self.has_written = Taken()
        """Each of them, apart from its folder."""
        self.left_over: dict[ContainerId, Mapping[str, str]] = {}

    def facts(self) -> RuntimeFacts:
        return RuntimeFacts(runtime="pretended 1", criu="4.1.1", way=Way.CRIU, checkpoints=self.can_save)

    def start(self, spec: ContainerSpec) -> ContainerId:
        if spec.image == "impossible":
            raise RuntimeFault("the engine is broken")
        if spec.image == "missing":
            raise ImageMissing("no image named missing")
        time.sleep(self.start_takes_s)
        goal, exit_code = int(spec.command[1]), int(spec.command[2]) if len(spec.command) > 2 else 0
        process = _Process(spec, 0, goal, exit_code, [f"{line}\n" for line in self.first_lines])
        state = spec.folder / "state"
        if process.spec.command[0] == "save-itself" and state.exists():
            process.count, process.written = int(state.read_text()), []
        return self._run(process)

    def _run(self, process: _Process) -> ContainerId:
        process.in_two_parts = self.lines_in_two_parts
        name = ContainerId(f"c{next(self._numbers)}")
        self._processes[name] = process
        threading.Thread(target=process.live, daemon=True).start()
        return name

    def has_image(self, image_id: str) -> bool:
        return image_id in self.images

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
        process.paused = True
        time.sleep(0.03)
        if process.exited is not None:
            raise ContainerExited(container)

    def unpause(self, container: ContainerId) -> None:
        self._processes[container].paused = False

    def checkpoint(self, container: ContainerId, draft: Draft) -> None:
        if self.checkpoints_that_fail > 0:
            self.checkpoints_that_fail -= 1
            raise CannotCheckpoint("it holds a device")
        process = self._processes[container]
        assert process.paused
        time.sleep(self.checkpoint_takes_s)
        draft.add("memory.tar", [f"{process.count} {process.goal} {process.exit_code}".encode()])

    def restore(self, spec: ContainerSpec, archive: Archive) -> ContainerId:
        words = b"".join(archive.read("memory.tar")).split()
        try:
            if len(words) != 3:
                raise CannotRestore("no memory")
            count, goal, exit_code = map(int, words)
            return self._run(_Process(spec, count, goal, exit_code))
        finally:  # whoever waits for it finds the process
            self.restores += 1

    def logs(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        """Like Docker, it keeps a line to itself that has no end until the process has ended."""
        process, at, kept = self._processes[container], 0, ""
        while True:
            ended = process.ended.is_set()
            new = process.written[at:]
            at += len(new)
            whole, end, kept = (kept + "".join(new)).rpartition("\n")
            yield 1, f"{whole}{end}".encode()
            if ended:
                yield 1, kept.encode()
                return
            time.sleep(0.01)

    def live(self, container: ContainerId) -> Iterator[tuple[int, bytes]]:
        process, at = self._processes[container], 0
        while not process.ended.is_set():
            new = process.written[at:]
            at += len(new)
            if new:
                yield 1, "".join(new).encode()
            time.sleep(0.01)

    def wait(self, container: ContainerId) -> int:
        process = self._processes[container]
        process.ended.wait()
        if process.killed:
            raise ContainerKilled(container)
        assert process.exited is not None
        return process.exited

    def signal(self, container: ContainerId, name: str) -> None:
        """`save-itself` writes its state and exits with 85, `save-itself GOAL 0 deaf` does not hear it."""
        self.signals.append(name)
        process = self._processes[container]
        assert not process.paused
        if process.spec.command[0] == "save-itself" and "deaf" not in process.spec.command:
            process.paused = True
            time.sleep(0.03)
            (process.spec.folder / "state").write_text(str(process.count))
            process.exited = 85

    def kill(self, container: ContainerId) -> None:
        process = self._processes.get(container)
        if process and process.exited is None:
            process.killed, process.exited = True, 137

    def counting(self) -> int:
        """So many have counted since they were started or restored, and go on."""
        return sum(process.counts and process.exited is None for process in list(self._processes.values()))

    def kill_all(self) -> None:
        """Kill all containers from outside of the agent."""
        for container in list(self._processes):
            self.kill(container)

    def remove(self, container: ContainerId) -> None:
        time.sleep(self.remove_takes_s)
        self.left_over.pop(container, None)
        if process := self._processes.get(container):
            process.ended.wait(1)

    def usage(self, containers: Sequence[ContainerId]) -> Mapping[ContainerId, Usage]:
        return {c: Usage(self.memory_bytes, 0.0) for c in containers if self._processes[c].exited is None}

    def ours(self) -> Mapping[ContainerId, Mapping[str, str]]:
        return dict(self.left_over)

    def places(self) -> Sequence[str]:
        return ()

    def written(self, container: ContainerId, *, most_inodes: int) -> Taken:
        return self.has_written

    def prune(self, *, unused_for_s: float, enough: Callable[[], bool]) -> Sequence[str]:
        return ()
