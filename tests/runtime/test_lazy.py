"""Jobs that run before their memory is there, on real nodes with real CRIU: every byte that they read is right."""

import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import pytest
from tests.effort import a_few
from tests.runtime.nodes_harness import Node, Work, wait_for

from gleaner.agent.checkpoints.archive import FolderArchive
from gleaner.agent.checkpoints.interface import Published
from gleaner.agent.runtime.interface import CannotRestore, ContainerId, ContainerKilled, RuntimeFault

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(600)]

RUNS_FROM = 60
"""The number of a block from which on all is killed when the job runs; before it, also while CRIU restores."""
PROBE = """
import hashlib, mmap, os, random, sys, threading
PAGES = int(sys.argv[1]) * 256
private = mmap.mmap(-1, PAGES * 4096, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
shared = mmap.mmap(-1, 65536)
changes, lock, rounds = {}, threading.Lock(), 0
def content(number):
    return hashlib.sha256(b"%d %d" % (number, changes.get(number, 0))).digest() * 128
def check(number):
    if private[number * 4096 : (number + 1) * 4096] != content(number):
        os.write(1, b"wrong\\n")
def look(seed):
    chosen = random.Random(seed)
    for _ in range(60):
        number = chosen.randrange(PAGES)
        with lock:
            check(number)
            changes[number] = changes.get(number, 0) + 1
            private[number * 4096 : (number + 1) * 4096] = content(number)
for number in range(PAGES):
    private[number * 4096 : (number + 1) * 4096] = content(number)
shared[:] = b"shared!!" * 8192
print("ready")
while not os.path.exists("/job/stop"):
    threads = [threading.Thread(target=look, args=(f"{rounds} {each}",)) for each in range(3)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
    if sys.argv[2] == "forks":
        if (pid := os.fork()) == 0:
            look(rounds)
            os._exit(0)
        os.waitpid(pid, 0)
    if shared[:] != b"shared!!" * 8192:
        print("wrong")
    rounds += 1
    print(rounds)
for number in range(PAGES):
    check(number)
print("right")
"""


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Slowly:
    """An archive that waits before it gives a block of pages with this number, in the order of reading."""

    def __init__(self, archive: FolderArchive, number: int) -> None:
        self._archive, self._left = archive, iter([False] * number + [True])
        self.reached, self.opened = threading.Event(), threading.Event()

    def read(self, name: str, numbers: Iterable[int] | None = None) -> Iterator[bytes]:
        for content in self._archive.read(name, numbers):
            if "pages-" in name and next(self._left, False):
                self.reached.set()
                assert self.opened.wait(120)
            yield content

    def __getattr__(self, name: str) -> Any:
        return getattr(self._archive, name)


def saved_probe(node: Node, work: Work, mib: int, does: str) -> Published:
    container = work.start(node, PROBE, str(mib), does, memory_mib=mib + 100)
    work.until("3")
    saved = work.save(node, container)
    work.end(node, container)
    return saved


def goes_right_to_its_end(node: Node, work: Work, container: ContainerId) -> None:
    count = len(work.lines) + 3
    wait_for(lambda: len(work.lines) > count, "it computes")
    (work.folder(node) / "stop").touch()
    assert node.runtime.wait(container).exit_code == 0
    work.read_to_end()
    assert work.lines[-1] == "right"
    assert "wrong" not in work.lines


@pytest.mark.parametrize("does", ["computes", "forks"])
def test_a_job_that_is_saved_and_restored_in_turn_computes_rightly(
    pair: tuple[Node, Node], work: Work, does: str
) -> None:
    here, there = pair
    saved = saved_probe(here, work, 64, does)
    for _ in range(3):
        here, there = there, here
        container = work.restore(here, saved, PROBE, "64", does, memory_mib=164)
        work.until(str(int(work.lines[-1]) + 2))
        saved = work.save(here, container)
        assert does == "forks" or here.runtime.memory_s(container) > 0
        work.end(here, container)
    container = work.restore(there, saved, PROBE, "64", does, memory_mib=164)
    goes_right_to_its_end(there, work, container)


def kill(node: Node, name: str) -> None:
    """Kill the page server, its watchdog, or the agent's end of their connection."""
    lines = [line.split(None, 2) for line in node.run("ps", "-eo", "pid,ppid,args", "-ww").splitlines()]
    ours = {pid: parent for pid, parent, words in lines if "gleaner-runc" in words and " create " in words}
    server = next((pid for pid, parent in ours.items() if parent in ours and pid not in ours.values()), "")
    if name == "agent":
        inner = node.runtime._inner
        for memory in list(getattr(inner, "_runtime", inner)._memory.values()):
            memory.end()
    else:
        node.run("kill", "-KILL", server if name == "server" else ours.get(server, ""), check=False)


def lines_of_killed(node: Node, work: Work, saved: Published, number: int, name: str) -> list[str]:
    """Restore, and kill something before the block of this number is sent; what the job has printed."""
    archive: Any = Slowly(work.storage.open(saved.key, saved.digest), number)
    work.lines.clear()
    place = work.folder(node)
    with ThreadPoolExecutor(1) as one:
        restoring = one.submit(node.runtime.restore, work.spec(PROBE, "64", "computes", memory_mib=164), archive)
        wait_for(lambda: archive.reached.is_set() or restoring.done(), "the block is reached")
        if number > RUNS_FROM:
            wait([restoring], 120)
        kill(node, name)
        archive.opened.set()
        try:
            container = restoring.result()
        except (CannotRestore, RuntimeFault):
            return []
    (place / "stop").touch()
    work._read(node, container)
    with suppress(ContainerKilled):
        assert node.runtime.wait(container).exit_code == 0, f"{number}: it broke, for example on zeros in its memory"
    work.end(node, container)
    (place / "stop").unlink()
    return work.lines


@pytest.mark.parametrize("first", a_few(range(2, 22, 4), 1))
def test_whatever_is_killed_while_memory_comes_no_byte_is_wrong(
    pair: tuple[Node, Node], work: Work, first: int
) -> None:
    """Thirty kills in all, six at a time."""
    here, there = pair
    saved = saved_probe(here, work, 64, "computes")
    for number in range(first, 122, 20):
        lines = lines_of_killed(there, work, saved, number, ("server", "watchdog", "agent")[number // 4 % 3])
        assert "wrong" not in lines, number
        assert number <= RUNS_FROM or "right" not in lines, number
    goes_right_to_its_end(there, work, work.restore(there, saved, PROBE, "64", "computes", memory_mib=164))
