"""Machines in order, which a test spoils."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.doctor.machine import Machine, in_order, make

from gleaner.control.doctor.finding import MachineRole


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("made")
    make(folder)
    return folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """Yield a folder that the service account can reach."""
    with tempfile.TemporaryDirectory(prefix="doctor-") as place:
        yield Path(place)


@pytest.fixture
def control(folder: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> Iterator[Machine]:
    with in_order(folder, MachineRole.CONTROL, monkeypatch, made) as one:
        yield one


@pytest.fixture
def node(folder: Path, monkeypatch: pytest.MonkeyPatch, made: Path) -> Iterator[Machine]:
    with in_order(folder, MachineRole.NODE, monkeypatch, made) as one:
        yield one
