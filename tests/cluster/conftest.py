"""The real cluster, shared by all tests here. `make test` has brought it up; nothing is brought up from here."""

import subprocess
from collections.abc import Iterator

import pytest
from demo import cluster

ROUND_S = 60


@pytest.fixture(scope="session")
def cluster_is_up() -> None:
    """A loud failure, never a skip, where the cluster is missing."""
    try:
        nodes = cluster.run("head", "sinfo", "--noheader", "--Node", "--format=%N", "--partition=regular").split()
    except (cluster.ClusterError, subprocess.SubprocessError, OSError) as error:
        pytest.fail(f"the cluster does not answer; deploy/prepare.sh brings it up ({error})")
    assert sorted(set(nodes)) == sorted(cluster.NODES)


@pytest.fixture
def quiet(cluster_is_up: None) -> Iterator[None]:
    """No job of ours or of anybody's, all nodes idle, control with the tests' settings; tidied up afterwards."""
    cluster.configure({"rounds": {"length_s": ROUND_S, "shortest_slice_s": 15}})
    cluster.clear()
    cluster.set_preemption(on=True)
    yield
    cluster.set_preemption(on=True)
    cluster.clear()
