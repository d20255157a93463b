"""Limits on what an image brings and on how much a job writes: with the real engine and the real helper."""

import dataclasses
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.nodes_harness import IMAGE, USER, Node, Work, wait_for

from gleaner.agent.privileged.common.disk_usage import DiskUse
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.images import PulledImages, prune
from gleaner.agent.runtime.interface import ContainerId, ImageRefused

MIB = 2**20
WITH_VOLUME = "gleaner/runtime-test-volume:demo"

pytestmark = pytest.mark.nodes


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def image_with_volume(node: Node) -> Iterator[str]:
    """One that keeps what it writes to /data in a volume, with a file of its own there."""
    made = node.engine.create_container(IMAGE, ["x"])["Id"]
    repository, _, tag = WITH_VOLUME.partition(":")
    node.engine.commit(made, repository=repository, tag=tag, changes=["VOLUME /data"])
    node.engine.remove_container(made)
    if node.kind == "criu":
        node.import_image(WITH_VOLUME)
    yield WITH_VOLUME
    node.remove_image(WITH_VOLUME)


def test_an_image_with_a_volume_is_refused_or_saved_with_it_but_never_computes_on_without(
    node: Node, work: Work, image_with_volume: str
) -> None:
    """The helper ignores VOLUME: there it is a folder like any other, and saved."""
    program = "open('/var/tmp/x', 'w'); import os; print(os.path.ismount('/data')); import time; time.sleep(600)"
    if node.kind == "criu":
        container = work.start(node, program, image=image_with_volume)
        work.until("False")
        work.end(node, container)
        return
    volumes = len(node.engine.volumes()["Volumes"] or [])
    with pytest.raises(ImageRefused, match=r"has a volume at /data, which cannot be saved") as refused:
        work.start(node, program, image=image_with_volume)
    assert image_with_volume in str(refused.value)
    assert "\n" not in str(refused.value)
    assert node.containers() == []
    assert len(node.engine.volumes()["Volumes"] or []) == volumes


def test_what_a_container_writes_is_counted_in_bytes_and_files(node: Node, work: Work) -> None:
    program = f"""
import os, time
os.makedirs("/var/tmp/many")
for number in range(500):
    open(f"/var/tmp/many/{{number}}", "w").close()
with open("/var/tmp/large", "wb") as file:
    file.write(os.urandom({20 * MIB}))
    os.fsync(file.fileno())
print("written")
time.sleep(600)
"""
    container = work.start(node, program)
    work.until("written")
    found = node.runtime.disk_use(container, most_inodes=10_000)
    assert 20 * MIB <= found.size_bytes < 22 * MIB
    assert 500 < found.inodes < 600
    node.runtime.pause(container)
    assert node.runtime.disk_use(container, most_inodes=100).inodes > 100
    assert node.runtime.disk_use(ContainerId("gone"), most_inodes=100) == DiskUse()
    for place in node.runtime.data_folders():
        assert subprocess.run(["stat", "-f", f"{node.root}{place}"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", ["shim"])
def test_an_engine_that_cannot_limit_what_a_container_writes_still_starts_jobs_and_is_asked_once(
    node: Node, work: Work
) -> None:
    """The kernel of the tests' machines has no quotas of XFS: what can be seen here is the engine's no."""
    with_limit = dataclasses.replace(work.spec("print(1)"), disk_mib=100)
    runtime = DockerRuntime(f"unix://{node.root}/run/docker.sock", user=USER)
    assert runtime._host_options(with_limit)["storage_opt"] == {"size": "100m"}
    assert runtime._host_options(work.spec("print(1)"))["storage_opt"] is None
    work.folder(node)
    container = runtime.start(with_limit)
    assert runtime.wait(container).exit_code == 0
    assert runtime._host_options(with_limit)["storage_opt"] is None


@pytest.mark.parametrize("kind", ["shim"])
def test_only_images_that_were_pulled_go_and_none_that_a_container_has(node: Node, work: Work, tmp_path: Path) -> None:
    """There is no registry here: which images were pulled is written down by hand."""
    names = [f"docker.io/gleaner/runtime-test-{name}:demo" for name in ("old", "in-use", "replaced", "fresh", "loaded")]
    old, in_use, replaced, fresh, loaded = names
    made = {name: node.image(name, f"/{number}") for number, name in enumerate(names)}
    record = PulledImages(tmp_path / "pulled")
    for name, age_s in ((old, 3000), (in_use, 2000), (replaced, 1000), (fresh, 1)):
        record.record_pull(name, made[name] if name != replaced else made[old], now_s=time.time() - age_s)
    runtime = DockerRuntime(f"unix://{node.root}/run/docker.sock", user=USER, pulled_images=tmp_path / "pulled")
    held = node.engine.create_container(in_use, ["x"])["Id"]
    try:
        everything = sum(image.size_bytes for image in runtime.cached_images())
        assert prune(runtime, unused_for_s=600, enough=lambda left: left <= everything, now_s=time.time()) == []
        gone = prune(runtime, unused_for_s=600, enough=lambda _: False, now_s=time.time())
        assert [image.name for image in gone] == [old]
        assert set(record.read()) == {in_use, fresh}
        for name in (in_use, replaced, fresh, loaded):
            assert node.image_id(name) == made[name]
    finally:
        node.engine.remove_container(held)
        for name in names[1:]:
            node.engine.remove_image(name, force=True)
    wait_for(lambda: node.containers() == [], "nothing is left")
