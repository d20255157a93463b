"""The event generator from a SIF file: three slices on two nodes give the same bytes as Docker's uninterrupted run."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from demo import proof, reference, sif_file
from tests.runtime.nodes_harness import Node, Work, wait_for

from gleaner.control.api.image_uploads import archive
from gleaner.control.cli import sif
from gleaner.control.models.images import ImagePush

pytestmark = [pytest.mark.nodes, pytest.mark.extended, pytest.mark.timeout(900)]

EVENTS = 600
WANTED = reference.Wanted(index=78, events=EVENTS)
MEMORY_MIB = 400


@pytest.fixture(params=["shim", "criu"])
def kind(request: pytest.FixtureRequest) -> str:
    """Docker with the shim, and the node helper."""
    return str(request.param)


@pytest.fixture
def image_id(pair: tuple[Node, Node], tmp_path: Path) -> Iterator[str]:
    """The id of the image, pushed as a SIF file. Both nodes have loaded what control stores of it."""
    with sif.opened(sif_file.of_image(reference.IMAGE, tmp_path / "pythia.sif"), architecture="amd64") as image:
        pieces = list(image.pieces())
        digests = tuple(f"sha256:{hashlib.sha256(piece).hexdigest()}" for piece in pieces)
        push = ImagePush(name="pythia", config=image.config, layers=image.layers, pieces=digests)
    for node in pair:
        node.runtime.load_image(push.image_id, (bytes(chunk) for chunk in archive(push, iter(pieces))))
        assert node.runtime.has_image(push.image_id)
    yield push.image_id
    for node in pair:
        node.clear()
        if node.kind == "criu":
            node.run("gleaner-helper", "forget", push.image_id)
        else:
            node.engine.remove_image(push.image_id)


def test_three_slices_of_a_sif_on_two_nodes_give_the_bytes_of_the_docker_run(
    pair: tuple[Node, Node], work: Work, image_id: str
) -> None:
    whole = reference.compute(WANTED, reference.folder(reference.image_id()) / "sif")
    here, there = pair
    nodes = [here.name]
    container = work.start(here, *WANTED.arguments, memory_mib=MEMORY_MIB, image=image_id)
    for turn in (1, 2):
        reached = turn * EVENTS // 3
        wait_for(lambda reached=reached: len(work.lines) > reached, f"{reached} events", timeout_s=180)  # type: ignore[misc]
        saved = work.save(here, container)
        work.end(here, container)
        here, there = there, here
        nodes.append(here.name)
        container = work.restore(here, saved, *WANTED.arguments, memory_mib=MEMORY_MIB, image=image_id)
        assert here.runtime.image_id(container) == image_id
    assert here.runtime.wait(container) == 0
    work.read_to_end()
    here.runtime.remove(container)
    files = {path.name: path.read_bytes() for path in sorted(work.folder(here).iterdir())}
    run = proof.SlicedRun(run=proof.Run(files=files, log=work.lines), nodes=nodes, restores=2)
    assert proof.doubts(run, whole, events=EVENTS, at_pace=None) == []
