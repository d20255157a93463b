"""Jobs near their memory limit are restored on another node, or are refused in words before anything is lost."""

import time
from collections.abc import Iterator

import pytest
from demo import cluster
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.slow, pytest.mark.timeout(900)]

SETTINGS = {"rounds": {"length_s": 30_000, "origin_s": int(time.time()) - 5, "shortest_slice_s": 10, "poll_s": 2}}
PYTHON_MIB = 5
FILL = """
import mmap, os, time
def fill(size_mib, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, file=-1):
    made = mmap.mmap(file, size_mib << 20, flags=flags)
    any(made.write(os.urandom(1 << 20)) == 0 for _ in range(size_mib))
    return made
def fork(count, act=lambda: None):
    if any(os.fork() == 0 for _ in range(count)):
        kept = act()
        time.sleep(10**6)
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
    "forks that do not": "fork(4, lambda: fill((MIB - 3) // 4)); time.sleep(2)",
}
OTHERS = [pytest.param(kind, marks=pytest.mark.extended) for kind in list(KINDS)[1:]]


@pytest.fixture(params=["docker", pytest.param("criu", marks=pytest.mark.extended)])
def image(python_image: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """An image that no job needs when it goes. Control knows each node with one runtime; bob has all but the first."""
    cluster_harness.set_runtime(request.param)
    everywhere = cluster_harness.submit_pi(3)
    cluster_harness.wait_running(everywhere)
    cluster.glean("cancel", *map(str, everywhere))
    cluster_harness.occupy(cluster.NODES[1:], user="bob")
    yield python_image
    cluster.clear()


def submit(image: str, kind: str, size_mib: int, *, grow_mib: int = 1) -> int:
    """Submit a program that holds so much memory, and more after a restore; return its number."""
    program = f"{FILL}MIB, GROW_MIB = {size_mib - PYTHON_MIB}, {grow_mib}\n{KINDS[kind]}\n{TICK}"
    words = ("--group", "physics", "--image", image, "--retries", "0", "--memory-mib", "128")
    return int(cluster.glean("submit", *words, after=(program,))["jobs"][0])


def ends(job: int) -> list[str]:
    """Return why its attempts ended."""
    return [str(attempt["detail"]) for attempt in cluster_harness.job(job)["attempts"]]


def save(jobs: list[int]) -> set[str]:
    """Have jobs that run saved and held; return their nodes."""
    nodes = set(cluster_harness.wait_running(jobs).values())
    for job in jobs:
        cluster.api("POST", f"/jobs/{job}/hold")
    cluster.until("them to be saved", lambda: set(cluster_harness.states(jobs)) == {"Saved"}, timeout_s=90)
    return nodes


def take(nodes: set[str]) -> None:
    """Give these nodes to a regular job, and let go of bob's."""
    cluster_harness.occupy(sorted(nodes))
    cluster.run("head", "scancel", "--user=bob")


def restore_elsewhere(jobs: list[int], nodes: set[str]) -> None:
    """Let jobs continue, but not on these nodes."""
    take(nodes)
    for job in jobs:
        cluster.api("POST", f"/jobs/{job}/release")
    cluster.until("them to continue", lambda: all("restored" in cluster.log_of(job) for job in jobs), timeout_s=120)
    for job in jobs:
        *_, last = (attempt for attempt in cluster_harness.job(job)["attempts"] if attempt["restored_from"])
        assert last["node"] not in nodes


@pytest.mark.parametrize("kind", ["heap", *OTHERS])
def test_they_are_restored_elsewhere_and_their_own_limit_still_counts(image: str, kind: str) -> None:
    jobs = [submit(image, kind, size_mib) for size_mib in (110, 116, 124)]
    growing = submit(image, "heap", 116, grow_mib=40)
    restore_elsewhere([*jobs, growing], save([*jobs, growing]))
    cluster.until("its limit to end it", lambda: "memory limit 128 MiB reached" in ends(growing), timeout_s=60)
    assert set(cluster_harness.states(jobs)) == {"Running"}
