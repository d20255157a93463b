"""The real cluster, shared by all tests here. `make test` has brought it up; nothing is brought up from here."""

import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from demo import cluster, nsenter, sif_file
from tests.real_cluster import cluster_harness, restoring
from tests.real_cluster.cluster_harness import ROUND_S


@pytest.fixture(scope="session")
def cluster_is_up() -> None:
    """A loud failure, never a skip, where the cluster is missing."""
    try:
        nodes = cluster.run("head", "sinfo", "--noheader", "--Node", "--format=%N", "--partition=regular").split()
    except (cluster.ClusterError, subprocess.SubprocessError, OSError) as error:
        pytest.fail(f"the cluster does not answer; `make test` or deploy/prepare.sh brings it up ({error})")
    assert sorted(set(nodes)) == sorted(cluster.NODES)


@pytest.fixture(scope="session", autouse=True)
def found_in_order(cluster_is_up: None) -> None:
    """Whatever was done with the cluster before these tests."""
    restoring.after_a_file()


@pytest.fixture(scope="module", autouse=True)
def left_in_order(found_in_order: None) -> Iterator[None]:
    """After each file, also when one of its own fixtures has failed, the cluster is as it was made."""
    yield
    restoring.after_a_file()


@pytest.fixture(autouse=True)
def left_for_the_next(left_in_order: None) -> Iterator[None]:
    """After each test the cluster has no trace of it, so that one failure stays one.

    The settings that a file's tests share are its own.
    """
    yield
    restoring.after_a_test()


@pytest.fixture
def quiet(left_for_the_next: None, request: pytest.FixtureRequest) -> Iterator[None]:
    """No job of ours or of anybody's, all nodes idle, control with the file's SETTINGS, or else the tests' own."""
    usual = {"rounds": {"length_s": ROUND_S, "shortest_slice_s": 15}}
    yield from _quiet(getattr(request.module, "SETTINGS", usual))


@pytest.fixture(scope="session")
def long_round() -> dict[str, object]:
    """One round that ends long after all tests."""
    return {"length_s": 30_000, "origin_s": int(time.time()) - 5}


@pytest.fixture
def one_round(left_for_the_next: None, long_round: dict[str, object]) -> Iterator[None]:
    """Do as `quiet` does, and let no round end during the test: its jobs are not saved and claimed anew meanwhile."""
    yield from _quiet({"rounds": {"shortest_slice_s": 15, **long_round}})


def _quiet(settings: Mapping[str, Mapping[str, object]]) -> Iterator[None]:
    cluster_harness.configure(settings)
    cluster.clear()
    cluster.set_preemption(on=True)
    yield
    cluster.set_preemption(on=True)


@pytest.fixture
def python_image(quiet: None, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An image whose command is Python, pushed by an admin for the group; as a SIF file where the parameter says so."""
    name = "python:1"
    built = subprocess.run(
        [*nsenter.OUTER, "build", "--quiet", "-"],
        input=f'FROM {cluster_harness.PI}\nENTRYPOINT ["python3", "-c"]\n',
        text=True, capture_output=True, check=True, timeout=300,
    ).stdout.strip()  # fmt: skip
    if getattr(request, "param", "archive") == "sif":
        saved = sif_file.of_image(built, tmp_path / "python.sif").read_bytes()
    else:
        saved = subprocess.run([*nsenter.OUTER, "save", built], capture_output=True, check=True, timeout=300).stdout
    words = ("exec", "-i", "-u", cluster.SERVICE_USER, "head", "sh", "-c", "cat > /tmp/python.tar")
    subprocess.run([str(cluster.SCRIPT), *words], input=saved, check=True, timeout=300)
    cluster.glean("image", "push", "--group", "physics", name, "/tmp/python.tar")
    yield name
    cluster.glean("image", "rm", "--group", "physics", name)
    subprocess.run([*nsenter.OUTER, "image", "rm", built], check=False, capture_output=True, timeout=60)
