"""The places in which every backend must behave alike."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.slurm import pyslurm_container, slurm_harness
from tests.slurm.pyslurm_container import PySlurmContainer
from tests.slurm.slurm_harness import Place

from gleaner.control.slurm.interface import AGENT_PREFIX, SchedulerId


@pytest.fixture(scope="session")
def container() -> Iterator[PySlurmContainer]:
    """A container with a real Slurm of three nodes, and PySlurm."""
    with pyslurm_container.running() as container:
        yield container


@pytest.fixture
def real_pyslurm(container: PySlurmContainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PySlurmContainer:
    """That container's programs on the PATH, and its Python there as `pyslurm-python`."""
    container.put_on(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return container


@pytest.fixture(
    params=[
        "faked_slurm",
        pytest.param("real_slurm", marks=[pytest.mark.cluster, pytest.mark.extended]),
        pytest.param("real_pyslurm", marks=[pytest.mark.nodes, pytest.mark.extended]),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A backend, with all nodes idle; what a test leaves is withdrawn."""
    match request.param:
        case "faked_slurm":
            request.getfixturevalue("faked")
            place = slurm_harness.slurm(tmp_path, logs=tmp_path)
        case "real_pyslurm":
            request.getfixturevalue("real_pyslurm")
            place = slurm_harness.pyslurm(
                tmp_path, python=tmp_path / "bin" / pyslurm_container.PYTHON, logs=Path("/tmp")
            )
            place.eventually(lambda view: all(node.is_idle for node in view.nodes.values()))
        case _:
            slurm_harness.wrap_real_programs(tmp_path / "bin")
            monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
            place = slurm_harness.slurm(tmp_path, logs=Path("/tmp"), account="gleaner")
            place.eventually(lambda view: all(node.is_idle for node in view.nodes.values()), within_s=180)
    yield place
    left = [SchedulerId(agent.id) for agent in place.look().jobs if agent.name.startswith(f"{AGENT_PREFIX}test-")]
    place.cluster.withdraw(left)
    place.eventually(lambda view: not {agent.id for agent in view.jobs} & set(left), within_s=180)
