"""A job's life with a storage that nobody but the agent can see. It runs inside a node, as the service account, in a
mount namespace of its own in which alone the storage is mounted:

    hidden_storage.py STORAGE FOLDER IMAGE

Prints what it finds, one thing a line.
"""

import os
import shutil
import sys
import time
from pathlib import Path

from gleaner.agent.checkpoints.folder_storage import FolderStorage
from gleaner.agent.checkpoints.interface import ArchiveBroken, Published
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.interface import LABEL_AGENT, LABEL_END, ContainerId, ContainerSpec

COUNTER = """
import os, time
memory = os.urandom(4 << 20)
count = 0
while True:
    count += 1
    open("/job/new", "w").write(str(count))
    os.replace("/job/new", "/job/count")
    time.sleep(0.02)
"""


class Life:
    def __init__(self, place: Path, folder: Path, image: str) -> None:
        self.place, self.folder, self.image = place, folder, image
        self.storage = FolderStorage(place)
        self.storage.prepare()
        self.runtime = DockerRuntime("unix:///run/docker.sock")

    def spec(self, number: int) -> ContainerSpec:
        return ContainerSpec(
            name=f"gleaner-hidden-{number}",
            image=self.image,
            command=(COUNTER,),
            environment={},
            cpus=1,
            memory_mib=100,
            folder=self.folder,
            labels={LABEL_AGENT: "runtime-tests", LABEL_END: str(int(time.time()) + 600)},
        )

    def count(self) -> int:
        try:
            return int((self.folder / "count").read_text())
        except FileNotFoundError:
            return 0

    def wait_beyond(self, count: int) -> None:
        end_s = time.monotonic() + 30
        while self.count() <= count:
            assert time.monotonic() < end_s
            time.sleep(0.05)

    def saved(self, container: ContainerId, key: str) -> Published:
        self.runtime.pause(container)
        with self.storage.draft(key) as draft:
            self.runtime.checkpoint(container, draft)
            return draft.publish({"image_id": self.runtime.image_id(container)})

    def run(self) -> None:
        container = self.runtime.start(self.spec(1))
        self.wait_beyond(5)
        first = self.saved(container, "jobs/1/checkpoint-1")
        self.runtime.unpause(container)
        self.wait_beyond(self.count() + 5)
        second = self.saved(container, "jobs/1/checkpoint-2")
        count = self.count()
        self.runtime.kill(container)
        self.runtime.remove(container)

        # Somebody puts another whole archive, with a manifest that fits it, in the place of the last one.
        where, kept = self.place / second.key, self.place / "kept"
        where.rename(kept)
        shutil.copytree(self.place / first.key, where)
        try:
            self.storage.open(second.key, second.digest)
            print("forged: opened")
        except ArchiveBroken:
            print("forged: refused")
        shutil.rmtree(where)
        kept.rename(where)

        # A bit of the memory flips: nothing of that block is given to CRIU, and no container is left.
        pack = max(where.glob("*.pack"), key=lambda path: path.stat().st_size)
        content = bytearray(pack.read_bytes())
        content[len(content) // 2] ^= 1
        pack.chmod(0o600)
        pack.write_bytes(content)
        try:
            self.runtime.restore(self.spec(2), self.storage.open(second.key, second.digest))
            print("flipped: restored")
        except ArchiveBroken:
            print("flipped: refused")
        print("left", len(self.runtime.our_containers()))
        content[len(content) // 2] ^= 1
        pack.write_bytes(content)

        container = self.runtime.restore(self.spec(3), self.storage.open(second.key, second.digest))
        self.wait_beyond(count)
        print("went on")
        self.runtime.kill(container)
        self.runtime.remove(container)


if __name__ == "__main__":
    print("way", DockerRuntime("unix:///run/docker.sock")._handshakes is not None)
    Life(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]).run()
    print("uid", os.getuid())
