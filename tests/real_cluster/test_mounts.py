"""A job with a mount and inputs is saved on one node and goes on on another, and passes over the one without the mount.

One of the inputs comes from a URL: what was fetched first counts on the other node, too, whatever the server has by
then.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from demo import cluster, web_server
from tests.real_cluster import cluster_harness
from tests.real_cluster.test_own_image import as_user

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

CALIB = "/opt/site/calib"
SETTINGS = {
    "rounds": {"length_s": 45, "shortest_slice_s": 10},
    "inputs": {"mounts": [CALIB], "urls": [web_server.BASE]},
}
READER = f"""
import time
files = open("{CALIB}/constants"), open("/inputs/steering"), open("/inputs/table")
def read():
    print(*(file.readline().strip() for file in files), flush=True)
    try:
        open("{CALIB}/new", "w")
    except OSError as error:
        print(error.strerror, flush=True)
read()
for _ in range(400):
    time.sleep(0.1)
read()
"""


@pytest.fixture
def constants(quiet: None) -> Iterator[None]:
    """The folder on two of the three nodes."""
    for node in ("node1", "node2"):
        cluster.run(node, "sh", "-c", f"mkdir -p {CALIB} && printf 'alpha\\nbeta\\n' > {CALIB}/constants")
    yield
    for node in ("node1", "node2"):
        cluster.run(node, "rm", "-rf", CALIB)


@pytest.fixture
def server(quiet: None, tmp_path: Path) -> Iterator[web_server.WebServer]:
    (tmp_path / "table").write_text("one\ntwo\n")
    with web_server.serving(tmp_path) as made:
        yield made


@pytest.mark.extended
@pytest.mark.parametrize("python_image", ["sif", "archive"], indirect=True)
@pytest.mark.parametrize("runtime", ["docker", "criu"])
def test_a_job_with_inputs_goes_on_only_on_nodes_that_have_its_mount(
    python_image: str, constants: None, server: web_server.WebServer, tmp_path: Path, runtime: str
) -> None:
    cluster_harness.set_runtime(runtime)
    everywhere = cluster_harness.submit_pi(3)  # so that control knows each node with this runtime
    cluster_harness.wait_running(everywhere)
    cluster.glean("cancel", *map(str, everywhere))
    cluster.run("head", "sh", "-c", "printf '1\\n2\\n' > /tmp/steering", user=cluster.SERVICE_USER)
    inputs = ("--input", "/tmp/steering", "--input", f"{web_server.BASE}table")
    given = ("submit", "--image", python_image, "--memory-mib", "200", *inputs)
    with pytest.raises(cluster.ClusterError, match=f"/root is not among the folders that jobs may mount here: {CALIB}"):
        as_user(*given, "--mount", "/root", after=(READER,))
    away = cluster_harness.occupy(["node2"])
    (job,) = as_user(*given, "--mount", CALIB, after=(READER,))["jobs"]
    assert cluster_harness.wait_running([job]) == {job: "node1"}
    (tmp_path / "table").write_text("changed\nsince then\n")
    next_ = cluster_harness.occupy(["node1"], wait=False)
    cluster.run("head", "scancel", away)
    cluster.until("a slice on node2", lambda: cluster_harness.running_on([job]) == {job: "node2"}, timeout_s=140)
    cluster.until("the job to end", lambda: cluster_harness.states([job]) == ["Complete"], timeout_s=300)
    cluster.run("head", "scancel", next_)
    shown = cluster_harness.job(job)
    assert (shown["job"]["outcome"], shown["failures"], shown["spec"]["mounts"]) == ("succeeded", 0, [CALIB])
    assert [attempt["node"] for attempt in shown["attempts"] if attempt["restored_from"]]
    assert {attempt["node"] for attempt in shown["attempts"]} == {"node1", "node2"}
    assert cluster.log_of(job) == ["alpha 1 one", "Read-only file system", "beta 2 two", "Read-only file system"]
    assert server.asked == ["/table"]
