"""Properties of Docker's runtime alone."""

import types
from pathlib import Path
from unittest import mock

import docker.errors
import pytest
import structlog
from tests.runtime.nodes_harness import USER, Work

from gleaner.agent.runtime import factory
from gleaner.agent.runtime.criu_streams import DESCRIPTORS_PART
from gleaner.agent.runtime.docker_runtime import DockerRuntime
from gleaner.agent.runtime.interface import CannotRestore, RuntimeFault


def test_jobs_never_run_as_root() -> None:
    with pytest.raises(RuntimeFault, match="root"):
        DockerRuntime("unix:///nowhere", user=(0, 0))


def test_an_engine_that_is_not_there_gives_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match="does not answer") as fault:
        DockerRuntime(f"unix://{tmp_path}/docker.sock", user=USER).facts()
    assert "\n" not in str(fault.value)


def without_shim(driver: str = "overlay2") -> DockerRuntime:
    """An engine that could save, and has no runtime of ours."""
    made = DockerRuntime("unix:///engine", user=USER)
    told = {"Driver": driver, "DockerRootDir": "/var/lib/docker", "Runtimes": ["runc"], "NCPU": 2}
    vars(made)["_api"] = types.SimpleNamespace(
        version=lambda: {"Version": "26.1.5", "Experimental": True},
        info=lambda: told,
        images=lambda: [{"RepoTags": ["pi:1"]}],
    )
    return made


def test_an_engine_without_our_runtime_saves_nothing_and_says_so_in_one_line() -> None:
    with structlog.testing.capture_logs() as lines:
        runtime = without_shim()
        assert not runtime.facts().checkpoints
        assert not runtime.facts().checkpoints
    (line,) = lines
    assert "only jobs that save themselves" in line["event"]
    assert "no runtime 'gleaner'" in line["reason"]


def test_without_our_runtime_the_node_helper_is_used_and_without_either_jobs_that_save_themselves_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bare, helper = without_shim(), object()

    def docker_runtime(*_: object, **__: object) -> DockerRuntime:
        return bare

    def found(_: object) -> object:
        return helper

    monkeypatch.setattr(factory, "DockerRuntime", docker_runtime)
    monkeypatch.setattr(factory, "_criu", found)
    assert factory.choose_runtime("auto", docker_url="unix:///engine", images=None) is helper

    def none(_: object) -> object:
        raise RuntimeFault("there is no node helper here")

    monkeypatch.setattr(factory, "_criu", none)
    assert factory.choose_runtime("auto", docker_url="unix:///engine", images=None) is bare


def test_an_engine_that_keeps_its_images_in_containerd_is_refused_before_a_job_begins() -> None:
    """New installations of Docker 29 do. There a job whose image has lost its name could not be restored."""
    with pytest.raises(RuntimeFault, match="storage driver is overlayfs: only overlay2 is supported"):
        without_shim("overlayfs").facts()


def test_only_what_our_runtime_saved_is_restored_and_only_by_it(work: Work) -> None:
    with work.storage.draft("others") as draft:
        draft.add("memory.tar", [b"images"])
        others = draft.publish({})
    with work.storage.draft("ours") as draft:
        draft.add(DESCRIPTORS_PART, [b"[]"])
        ours = draft.publish({})
    runtime = without_shim()
    with pytest.raises(CannotRestore, match="lacks Gleaner's runtime"):
        runtime.restore(work.spec("x"), work.storage.open(ours.key, ours.digest))
    vars(runtime)["_handshakes"] = Path("/nowhere")
    with pytest.raises(CannotRestore, match="was not saved by Gleaner's runtime"):
        runtime.restore(work.spec("x"), work.storage.open(others.key, others.digest))


def test_an_image_whose_load_is_broken_off_is_in_the_record_that_removes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine may have it by then, and an agent that was killed says nothing more."""
    engine = mock.Mock()
    engine.load_image.side_effect = KeyboardInterrupt
    monkeypatch.setattr(DockerRuntime, "_connect", lambda *_: engine)
    runtime = DockerRuntime("unix:///engine", user=(1, 1), pulled_images=tmp_path / "pulled")
    image_id = f"sha256:{'0' * 64}"
    with pytest.raises(KeyboardInterrupt):
        runtime.load_image(image_id, iter([b"layers"]))
    engine.inspect_image.return_value = {"Id": image_id, "Size": 7}
    assert [(image.name, image.size_bytes) for image in runtime.cached_images()] == [(image_id, 7)]
    assert runtime.drop_image(image_id)
    engine.inspect_image.side_effect = docker.errors.NotFound("gone")
    assert list(runtime.cached_images()) == []
