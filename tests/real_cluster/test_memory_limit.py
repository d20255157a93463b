"""Jobs near their memory limit are restored on another node, or are refused in words before anything is lost."""

import time
from collections.abc import Iterator

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness

from gleaner.agent.privileged.shim.head_room import NEEDS_MEMORY

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {"rounds": {"length_s": 30_000, "origin_s": int(time.time()) - 5, "shortest_slice_s": 10, "poll_s": 2}}
LIMIT_MIB = 128
PYTHON_MIB = 5
FILL = """
import mmap, os, time
def fill(size_mib, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file=-1):
    made = mmap.mmap(file, size_mib << 20, flags=flags)
    block = os.urandom(1 << 20)
    for at in range(size_mib):
        made[at << 20 : at + 1 << 20] = block
    return made
def fork(count, act=lambda: None):
    for _ in range(count):
        if os.fork() == 0:
            kept = act()
            while True:
                time.sleep(1000)
"""
TICK = """
before = time.time()
while True:
    if time.time() > before + 4:
        print("restored", flush=True)
        grown = fill(GROW_MIB)
    before = time.time()
    print("goes on", flush=True)
    time.sleep(0.5)
"""
KINDS = {
    "heap": "kept = fill(MIB)",
    "file": "kept = open('/dev/shm/x', 'w+b'); kept.truncate(MIB << 20); fill(MIB, mmap.MAP_SHARED, kept.fileno())",
    "shared": "kept = fill(MIB, mmap.MAP_SHARED | mmap.MAP_ANONYMOUS)",
    "forks that share": "kept = fill(MIB - 2); fork(4)",
    "200 children": "fork(200)",
    "forks that do not": "fork(4, lambda: fill((MIB - 3) // 4)); time.sleep(2)",
}
both_runtimes = pytest.mark.parametrize("runtime", ["docker", pytest.param("criu", marks=pytest.mark.extended)])


@pytest.fixture
def image(python_image: str) -> Iterator[str]:
    """An image that no job needs when it goes."""
    yield python_image
    cluster.clear()


def submit(image: str, kind: str, size_mib: int, *, most_mib: int = LIMIT_MIB, grow_mib: int = 1) -> int:
    """Submit a program that holds so much memory, and more after a restore; return its number."""
    program = f"{FILL}MIB, GROW_MIB = {size_mib - PYTHON_MIB}, {grow_mib}\n{KINDS[kind]}\n{TICK}"
    memory = ("--retries", "0", "--memory-mib", f"{LIMIT_MIB}..{most_mib}" if most_mib > LIMIT_MIB else str(LIMIT_MIB))
    return int(cluster.glean("submit", "--group", "physics", "--image", image, *memory, after=(program,))["jobs"][0])


def save(jobs: list[int]) -> set[str]:
    """Have jobs that run saved and held; return their nodes."""
    nodes = set(cluster_harness.wait_running(jobs).values())
    for job in jobs:
        cluster.api("POST", f"/jobs/{job}/hold")
    cluster.until("them to be saved", lambda: set(cluster_harness.states(jobs)) == {"Saved"}, timeout_s=90)
    return nodes


def restore_elsewhere(jobs: list[int], nodes: set[str]) -> None:
    """Let jobs continue, but not on these nodes."""
    cluster_harness.occupy(sorted(nodes))
    for job in jobs:
        cluster.api("POST", f"/jobs/{job}/release")
    cluster.until(
        "them to continue", lambda: all("restored" in cluster.log_of(job) for job in jobs), timeout_s=120, every_s=1
    )
    for job in jobs:
        *_, first, second = cluster_harness.job(job)["attempts"]
        assert second["restored_from"]
        assert first["node"] != second["node"]


@both_runtimes
@pytest.mark.parametrize(
    "kind",
    [
        "heap",
        *(
            pytest.param(kind, marks=pytest.mark.extended)
            for kind in ("file", "shared", "forks that share", "forks that do not")
        ),
    ],
)
def test_they_are_restored_elsewhere_and_their_own_limit_still_counts(image: str, runtime: str, kind: str) -> None:
    cluster_harness.set_runtime(runtime)
    jobs = [submit(image, kind, size_mib) for size_mib in (110, 116, 124)]
    growing = submit(image, "heap", 116, grow_mib=40)
    restore_elsewhere([*jobs, growing], save([*jobs, growing]))
    cluster.until("one to end", lambda: cluster_harness.states([growing]) == ["Complete"], timeout_s=60)
    assert cluster_harness.job(growing)["failed_because"] == f"memory limit {LIMIT_MIB} MiB reached"
    assert set(cluster_harness.states(jobs)) == {"Running"}


@both_runtimes
def test_many_children_are_not_saved_and_then_get_the_next_step_of_their_range(image: str, runtime: str) -> None:
    cluster_harness.set_runtime(runtime)
    job = submit(image, "200 children", LIMIT_MIB, most_mib=4 * LIMIT_MIB)
    (node,) = cluster_harness.wait_running([job]).values()
    time.sleep(5)  # until all children are there
    cluster_harness.occupy([node])
    cluster.until(
        "it to have more", lambda: cluster_harness.job(job)["job"]["memory_mib"] == 2 * LIMIT_MIB, timeout_s=90
    )
    (refused, *_) = cluster_harness.job(job)["attempts"]
    assert refused["detail"].startswith(f"cannot be saved: {NEEDS_MEMORY} than its limit of {LIMIT_MIB} MiB allows")
    restore_elsewhere([job], save([job]))
