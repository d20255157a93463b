"""The places in which every gateway must behave alike."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.gateway import lab, places
from tests.gateway.lab import Laboratory
from tests.gateway.places import FakedPySlurm, Place

from gleaner.control.cluster.gateway import AGENT_PREFIX


@pytest.fixture
def faked_pyslurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakedPySlurm:
    """A Python with a faked PySlurm, and a faked scontrol on the PATH."""
    faked = FakedPySlurm(tmp_path / "pyslurm")
    faked.put_on(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return faked


@pytest.fixture(scope="session")
def laboratory() -> Iterator[Laboratory]:
    """A container with a real Slurm of three nodes, and PySlurm."""
    with lab.running() as laboratory:
        yield laboratory


@pytest.fixture
def real_pyslurm(laboratory: Laboratory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Laboratory:
    """That container's programs on the PATH, and its Python there as `pyslurm-python`."""
    laboratory.put_on(tmp_path / "bin")
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    return laboratory


@pytest.fixture(
    params=[
        "local",
        "faked_slurm",
        "faked_pyslurm",
        pytest.param("real_slurm", marks=pytest.mark.cluster),
        pytest.param("real_pyslurm", marks=pytest.mark.cluster),
    ]
)
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    """A gateway, with all nodes idle; what a test leaves is withdrawn."""
    match request.param:
        case "local":
            place = places.local(tmp_path)
        case "faked_slurm":
            request.getfixturevalue("faked")
            place = places.slurm(tmp_path, logs=tmp_path)
        case "faked_pyslurm":
            faked = request.getfixturevalue("faked_pyslurm")
            place = places.pyslurm(tmp_path, python=faked.python, logs=tmp_path)
        case "real_pyslurm":
            request.getfixturevalue("real_pyslurm")
            place = places.pyslurm(tmp_path, python=tmp_path / "bin" / lab.PYTHON, logs=Path("/tmp"))
            place.eventually(lambda view: all(node.idle for node in view.nodes))
        case _:
            places.wrap_real_programs(tmp_path / "bin")
            monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
            place = places.slurm(tmp_path, logs=Path("/tmp"), account="gleaner")
            place.eventually(lambda view: all(node.idle for node in view.nodes), within_s=180)
    yield place
    left = [agent.id for agent in place.look().agents if agent.name.startswith(f"{AGENT_PREFIX}test-")]
    place.gateway.withdraw(left)
    place.eventually(lambda view: not {agent.id for agent in view.agents} & set(left), within_s=180)
