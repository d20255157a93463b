"""Each kind of process does what the table promises: it goes on on another node, or it is refused with the reason."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.runtime.kinds.kind import PREAMBLE, Kind
from tests.runtime.kinds.table import KINDS
from tests.runtime.nodes_harness import Node, Work

from gleaner.agent.runtime.interface import CannotCheckpoint

pytestmark = pytest.mark.nodes
TRIED = [
    pytest.param(one, *ways, id=f"{one.what}, {ways[0]}", marks=() if one.brief and is_first else pytest.mark.extended)
    for one in KINDS
    for is_first, ways in ((True, ("shim", "criu")), (False, ("criu", "shim")))
    if is_first or one.both_ways
]


@pytest.fixture(autouse=True, scope="module")
def _huge_pages() -> Iterator[None]:
    """The machine, and with it each node, has some."""
    setting = Path("/proc/sys/vm/nr_hugepages")
    before = setting.read_text()
    setting.write_text(str(max(8, int(before))))
    yield
    setting.write_text(before)


@pytest.fixture
def crossed(pair: tuple[Node, Node], saving: str, restoring: str) -> Iterator[tuple[Node, Node]]:
    """Two nodes with other runtimes: what the one has saved, the other restores."""
    found = Node(pair[0].name, saving), Node(pair[1].name, restoring)
    yield found
    for one in found:
        one.clear()


@pytest.mark.parametrize(("tried", "saving", "restoring"), TRIED)
def test_each_kind_of_process_does_as_promised(crossed: tuple[Node, Node], work: Work, tried: Kind) -> None:
    here, there = crossed
    program = PREAMBLE + tried.program
    container = work.start(here, program)
    work.until("ready")
    if tried.is_refused(here.versions):
        with pytest.raises(CannotCheckpoint, match=re.escape(tried.refused)):
            work.save(here, container)
        here.runtime.unpause(container)
        there = here
    else:
        if tried.saved_twice:
            work.save(here, container)
            here.runtime.unpause(container)
        saved = work.save(here, container)
        work.end(here, container)
        container = work.restore(there, saved, program)
    (work.folder(there) / "stop").touch()
    exit_code = there.runtime.wait(container).exit_code
    work.read_to_end()
    assert (exit_code, work.lines) == (tried.exit_code, ["ready"])
