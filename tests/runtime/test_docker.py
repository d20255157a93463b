"""What is Docker's alone."""

import types
from pathlib import Path

import pytest
from tests.runtime.nodes import USER, Work

from gleaner.agent.protocol import Way
from gleaner.agent.runtime.docker import DockerRuntime
from gleaner.agent.runtime.own_way import MEMORY_PART
from gleaner.agent.runtime.protocol import CannotRestore, RuntimeFault


def test_jobs_never_run_as_root() -> None:
    with pytest.raises(RuntimeFault, match="root"):
        DockerRuntime("unix:///nowhere", user=(0, 0))


def test_an_engine_that_is_not_there_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="does not answer") as fault:
        DockerRuntime(f"unix://{tmp_path}/docker.sock", user=USER).facts()
    assert "\n" not in str(fault.value)


def without_shim(*, own_way: bool, driver: str = "overlay2") -> DockerRuntime:
    """An engine that can save, and has no runtime of ours."""
    made = DockerRuntime("unix:///engine", user=USER, own_way=own_way)
    told = {"Driver": driver, "DockerRootDir": "/var/lib/docker", "Runtimes": {"runc": {}}}
    vars(made)["_engine"] = types.SimpleNamespace(
        version=lambda: {"Version": "26.1.5", "Experimental": True}, info=lambda: told
    )
    return made


def test_an_engine_without_our_runtime_is_refused_in_one_line_unless_the_admin_allows_it() -> None:
    with pytest.raises(RuntimeFault, match=r"lacks Gleaner's runtime.*install-node.sh.*docker_own_way") as fault:
        without_shim(own_way=False).facts()
    assert "\n" not in str(fault.value)
    assert without_shim(own_way=True).facts().way is Way.DOCKER


def test_an_engine_that_keeps_its_images_in_containerd_is_refused_before_a_job_begins() -> None:
    """New installations of Docker 29 do. There a job whose image has lost its name could not be restored."""
    with pytest.raises(RuntimeFault, match="storage driver is overlayfs: only overlay2 is supported"):
        without_shim(own_way=True, driver="overlayfs").facts()


def test_what_was_saved_in_dockers_own_way_is_not_restored_by_it_unless_the_admin_allows_it(work: Work) -> None:
    with work.storage.draft("saved") as draft:
        draft.add(MEMORY_PART, [b"images"])
        saved = draft.publish({})
    runtime = without_shim(own_way=False)
    for shim in (None, object()):
        vars(runtime)["_streamed"] = shim
        with pytest.raises(CannotRestore, match="docker_own_way is off"):
            runtime.restore(work.spec("x"), work.storage.open(saved.key, saved.digest))
