"""Each kind of process does what the table promises: it goes on on another node, or it is refused with the reason."""

import re
from collections.abc import Iterator

import pytest
from tests.runtime.kinds.kind import PREAMBLE, Kind
from tests.runtime.kinds.table import KINDS
from tests.runtime.nodes_harness import Node, Work

from gleaner.agent.runtime.interface import CannotCheckpoint

pytestmark = [pytest.mark.nodes, pytest.mark.extended]
TRIED = [pytest.param(one, id=one.what) for one in KINDS]


@pytest.fixture
def crossed(pair: tuple[Node, Node]) -> Iterator[tuple[Node, Node]]:
    """A node with Docker and one with the node helper: what the one has saved, the other restores."""
    there = Node(pair[1].name, "criu")
    yield pair[0], there
    there.clear()


@pytest.mark.parametrize("tried", TRIED)
def test_each_kind_of_process_does_as_promised(crossed: tuple[Node, Node], work: Work, tried: Kind) -> None:
    here, there = crossed
    program = PREAMBLE + tried.program
    container = work.start(here, program)
    work.until("ready")
    if tried.is_refused():
        with pytest.raises(CannotCheckpoint, match=re.escape(tried.refused)):
            work.save(here, container)
        here.runtime.unpause(container)
        there = here
    else:
        saved = work.save(here, container)
        work.end(here, container)
        container = work.restore(there, saved, program)
    (work.folder(there) / "stop").touch()
    exit_code = there.runtime.wait(container)
    work.read_to_end()
    assert (exit_code, work.lines) == (0, ["ready"])
