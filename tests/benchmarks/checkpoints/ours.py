"""Save and restore through Gleaner's own code, as the service account: one or more containers at once.

`ours.py RUNTIME[-lazy] IMAGE MIB KIND COUNT REPEAT PLACE` prints a JSON line with the times of each repetition, also
until all memory was back and of a second of work after the restore, the most memory that this process had during a
save, and the bytes that were stored.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import repeat as repeat_
from pathlib import Path

from gleaner.agent.checkpoints import workdir_tar
from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import Published
from gleaner.agent.runtime.core import ContainerRuntime
from gleaner.agent.runtime.factory import Kind, choose_runtime
from gleaner.agent.runtime.interface import LABEL_AGENT, LABEL_END, ContainerId, ContainerSpec

MORE_MIB = 256
KINDS: dict[str, Kind] = {"docker": "docker", "criu": "criu"}


def main() -> None:
    runtime_name, image, size_mib, kind, count, repeat, place = sys.argv[1:]
    name, _, lazily = runtime_name.partition("-")
    runtime = choose_runtime(KINDS[name], docker_url="unix:///var/run/docker.sock", images=Path("/data/images"))
    runtime.restores_lazily = bool(lazily)
    measured = MeasuredContainers(runtime, image, int(size_mib), kind, Path(place))
    try:
        print(json.dumps(measured.run(int(count), int(repeat))))
    finally:
        measured.clear()


class MeasuredContainers:
    """Containers that are saved and restored together, with the times it took."""

    def __init__(self, runtime: ContainerRuntime, image: str, size_mib: int, kind: str, place: Path) -> None:
        self.runtime, self.image, self.size_mib, self.kind, self.place = runtime, image, size_mib, kind, place
        self.storage = FolderStorage(place / "storage")
        self.clear()
        shutil.rmtree(place, ignore_errors=True)
        self.storage.prepare()

    def clear(self) -> None:
        for container in self.runtime.our_containers():
            self.runtime.remove(container)

    def run(self, count: int, repeat: int) -> dict[str, object]:
        self.runtime.facts()
        with ThreadPoolExecutor(count) as pool:
            containers = list(pool.map(self.start, range(count)))
            saves, restores, wholes, works, stored, peak_mib = [], [], [], [], 0, 0.0
            for turn in range(repeat):
                Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
                began = time.monotonic()
                published = list(pool.map(self.save, containers, range(count), repeat_(turn)))
                saves.append(time.monotonic() - began)
                peak_mib = max(peak_mib, _peak_mib())
                for container in containers:
                    self.runtime.kill(container)
                    self.runtime.remove(container)
                ticks = [self.tick(n) for n in range(count)]
                began = time.monotonic()
                containers = list(pool.map(self.restore, published, range(count), repeat_(turn)))
                restores.append(time.monotonic() - began)
                for number in range(count):
                    (self.place / f"job{number}" / "go").touch()
                while self.runtime.restores_lazily and not all(map(self.runtime.memory_s, containers)):
                    time.sleep(0.02)
                wholes.append(time.monotonic() - began)
                for number in range(count):
                    self.await_tick(number, more_than=ticks[number])
                works.append(max(map(self.take_work_s, range(count))))
                stored = sum(one.stored_bytes for one in published)
        times = {"save_s": saves, "restore_s": restores, "whole_s": wholes, "work_s": works}
        return {**times, "peak_mib": peak_mib, "stored_bytes": stored}

    def spec(self, number: int, turn: int) -> ContainerSpec:
        job = self.place / f"job{number}"
        job.mkdir(exist_ok=True)
        return ContainerSpec(
            name=f"gleaner-{number + 1}-{turn + 1}",
            image=self.image,
            command=("/hog.py", str(self.size_mib), self.kind, "/job"),
            environment={},
            cpus=1,
            memory_mib=self.size_mib + MORE_MIB,
            folder=job,
            labels={LABEL_AGENT: "bench", LABEL_END: str(int(time.time()) + 7200)},
        )

    def start(self, number: int) -> ContainerId:
        container = self.runtime.start(self.spec(number, 0))
        self.await_tick(number, more_than=0)
        return container

    def save(self, container: ContainerId, number: int, turn: int) -> Published:
        self.runtime.pause(container)
        with self.storage.draft(f"jobs/{number}/attempt-{turn}/checkpoint-1") as draft:
            self.runtime.checkpoint(container, draft)
            draft.add("folder.tar", workdir_tar.pack(self.place / f"job{number}"))
            return draft.publish({"image_id": self.runtime.image_id(container)})

    def restore(self, published: Published, number: int, turn: int) -> ContainerId:
        archive = self.storage.open(published.key, published.digest)
        workdir_tar.unpack(archive.read("folder.tar"), self.place / f"job{number}")
        return self.runtime.restore(self.spec(number, turn + 1), archive)

    def tick(self, number: int) -> int:
        path = self.place / f"job{number}" / "tick"
        return int(path.read_text()) if path.exists() else 0

    def take_work_s(self, number: int) -> float:
        took = self.place / f"job{number}" / "took"
        _wait_until(took.exists, f"container {number} has worked for a second")
        seconds = float(took.read_text())
        took.unlink()
        return seconds

    def await_tick(self, number: int, *, more_than: int) -> None:
        _wait_until(lambda: self.tick(number) > more_than, f"container {number} counts on from {more_than}")


def _wait_until(is_so: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + 300
    while not is_so():
        if time.monotonic() > until:
            raise SystemExit(f"not within five minutes: {what}")
        time.sleep(0.05)


def _peak_mib() -> float:
    """The most memory that this process has had resident, MiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


if __name__ == "__main__":
    main()
