"""A user pushes an image of his own on the real cluster, and needs no admin: his jobs run, and move between nodes."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from demo import cluster, nsenter, sif_file
from tests.real_cluster import cluster_harness

pytestmark = [pytest.mark.cluster, pytest.mark.extended, pytest.mark.timeout(1200)]

NAME = "my-pi:1"
SAMPLES = "20000000"
"""So many that a job, with its rests, outlives a round of 45 s."""


def as_user(*words: str, after: tuple[str, ...] = ()) -> Any:
    """The answer of `glean` to a user of group physics, who is no admin."""
    return cluster.glean(*words, after=after, as_user=True, timeout_s=300)


@pytest.fixture
def own_image(quiet: None, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[dict[str, Any]]:
    """The image of pi under another name, as an archive or a SIF file, so that no node has it."""
    is_sif = request.param == "sif"
    built = docker("build", "--quiet", "--label", "own=1", "-", given=f"FROM {cluster_harness.PI}\n".encode())
    image = built.decode().strip()
    made = sif_file.of_image(image, tmp_path / "my-pi.sif").read_bytes() if is_sif else docker("save", image)
    send = [str(cluster.SCRIPT), "exec", "-i", "-u", cluster.SERVICE_USER, "head", "sh", "-c", "cat > /tmp/my-pi"]
    subprocess.run(send, input=made, check=True, timeout=300)
    yield as_user("image", "push", NAME, "/tmp/my-pi")
    as_user("image", "rm", NAME)
    subprocess.run([*nsenter.OUTER, "image", "rm", image], check=False, capture_output=True, timeout=60)


def docker(*words: str, given: bytes | None = None) -> bytes:
    """Return what Docker prints."""
    return subprocess.run([*nsenter.OUTER, *words], input=given, capture_output=True, check=True, timeout=300).stdout


def submit(image: str) -> tuple[int, list[int]]:
    """A campaign of two jobs that estimate pi from the same seeds, whatever the image is called."""
    answer = as_user(
        "submit", "--image", image, "--name", "pi", "--memory-mib", "200", "--array", "1-2",
        after=("--samples", SAMPLES, "--seed", "{index}", "--out", ".", *cluster_harness.RESTING),
    )  # fmt: skip
    return answer["campaign"], list(answer["jobs"])


@pytest.mark.parametrize("own_image", ["archive", "sif"], indirect=True)
def test_a_pushed_image_runs_is_saved_and_goes_on_on_another_node(own_image: dict[str, Any], tmp_path: Path) -> None:
    cluster.configure({"rounds": {"length_s": 45, "shortest_slice_s": 10}})
    elsewhere = cluster_harness.occupy(["node2", "node3"])
    campaign, jobs = submit(NAME)
    assert set(cluster_harness.wait_running(jobs).values()) == {"node1"}
    with pytest.raises(cluster.ClusterError, match="2 unended jobs need it"):
        as_user("image", "rm", NAME)
    next_ = cluster_harness.occupy(["node1", "node2"], wait=False)
    cluster.run("head", "scancel", elsewhere)
    cluster.until(
        "a second slice on node3", lambda: "node3" in cluster_harness.running_on(jobs).values(), timeout_s=140
    )
    cluster.run("head", "scancel", next_)
    _until_ended(jobs)
    shown = [cluster_harness.job(job) for job in jobs]
    assert {row["image_id"] for row in shown} == {own_image["image_id"]}
    assert any(attempt["restored_from"] for row in shown for attempt in row["attempts"])
    left = _left_by(campaign, tmp_path / "own")
    campaign, jobs = submit(cluster_harness.PI)
    _until_ended(jobs)
    assert left == _left_by(campaign, tmp_path / "site")


def _until_ended(jobs: list[int]) -> None:
    cluster.until("the jobs to end", lambda: set(cluster_harness.states(jobs)) == {"Complete"}, timeout_s=600)
    assert {cluster_harness.job(job)["job"]["outcome"] for job in jobs} == {"succeeded"}


def _left_by(campaign: int, folder: Path) -> list[str]:
    results = cluster.fetch_results(campaign, folder)
    return [(results / f"pi-{index}" / "pi.txt").read_text() for index in (1, 2)]
