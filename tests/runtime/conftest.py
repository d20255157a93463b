"""The engines of two node containers, and an image to run there. Nothing is brought up from here."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.runtime import nodes_harness
from tests.runtime.nodes_harness import Node, Work

from gleaner.agent.checkpoints.folder_storage import FolderStorage


@pytest.fixture(scope="session")
def _with_image() -> None:
    """A loud failure, never a skip, where the nodes are missing."""
    try:
        nodes_harness.spread_image([Node(name, "criu") for name in nodes_harness.NAMES])
    except nodes_harness.NoNodes as error:
        pytest.fail(f"the node containers do not answer; make test brings them up ({error})")


@pytest.fixture
def kind() -> str:
    """The kind of runtime; a suite for several kinds has a fixture of its own in place of this."""
    return "shim"


@pytest.fixture
def pair(_with_image: None, kind: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes; what a test leaves on them is removed after it."""
    first, second = (Node(name, kind) for name in nodes_harness.NAMES)
    with ExitStack() as afterwards:  # the second is cleared also where the first cannot be
        afterwards.callback(second.clear)
        afterwards.callback(first.clear)
        yield first, second


@pytest.fixture
def node(pair: tuple[Node, Node]) -> Node:
    return pair[0]


@pytest.fixture
def work(tmp_path: Path) -> Work:
    """A job, with a storage of its own."""
    storage = FolderStorage(tmp_path / "storage")
    storage.prepare()
    return Work(storage)
