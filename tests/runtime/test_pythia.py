"""The event generator, saved and restored twenty times over between two nodes: the result is identical."""

from pathlib import Path
from statistics import median

import pytest
from demo import proof, reference
from tests.runtime.nodes_harness import Node, Work, wait_for

pytestmark = [pytest.mark.nodes, pytest.mark.extended, pytest.mark.timeout(900)]

SAVES = 20
EVENTS = 1500
WANTED = reference.Wanted(index=77, events=EVENTS)
MEMORY_MIB = 400


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    """Docker with the shim, and the node helper."""
    return str(request.param)


def test_twenty_saves_between_two_nodes_leave_the_result_identical(
    pair: tuple[Node, Node], work: Work, tmp_path: Path
) -> None:
    whole = reference.compute(WANTED, reference.folder(reference.image_id()) / "twenty-saves")
    for node in pair:
        if node.kind == "criu":
            node.import_image(reference.IMAGE)
    here, there = pair
    nodes = [here.name]
    container = work.start(here, *WANTED.arguments, memory_mib=MEMORY_MIB, image=reference.IMAGE)
    for turn in range(1, SAVES + 1):
        reached = turn * EVENTS // (SAVES + 2)
        wait_for(lambda reached=reached: len(work.lines) > reached, f"{reached} events", timeout_s=120)  # type: ignore[misc]
        saved = work.save(here, container)
        work.end(here, container)
        here, there = there, here
        nodes.append(here.name)
        container = work.restore(here, saved, *WANTED.arguments, memory_mib=MEMORY_MIB, image=reference.IMAGE)
    assert here.runtime.wait(container).exit_code == 0
    work.read_to_end()
    files = {path.name: path.read_bytes() for path in sorted(work.folder(here).iterdir())}
    run = proof.SlicedRun(run=proof.Run(files=files, log=work.lines), nodes=nodes, restores=SAVES)
    # The machine's speed changes within minutes: the uninterrupted run is made before and after, and its processor time
    # may have been either or anything between.
    afterwards = reference.compute(WANTED, tmp_path / "afterwards")
    at_pace = median([1.0, proof.pace([(run.run, whole)]), proof.pace([(afterwards, whole)])])
    assert proof.doubts(run, whole, events=EVENTS, restores_at_least=SAVES, at_pace=at_pace) == []
    here.runtime.remove(container)
