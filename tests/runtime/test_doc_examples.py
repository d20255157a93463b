"""Each job that a page shows runs in its real image, and leaves results."""

import io
import re
import tarfile
from dataclasses import replace

import pytest
from demo import cluster
from tests import doc_pages
from tests.runtime.nodes_harness import Node, Work

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

MEMORY_MIB = 400
FEW = {"--events": "20", "--samples": "1000"}
"""The amounts that an example computes here. All its other arguments are the page's."""


def _shown() -> list[doc_pages.Example]:
    """Return each job of the demo's images once, for one index of a campaign."""
    found: dict[tuple[str, tuple[str, ...]], doc_pages.Example] = {}
    for example in doc_pages.examples():
        words = list(example.command)
        for option, value in FEW.items():
            if option in words:
                words[words.index(option) + 1] = value
        if (name := doc_pages.name_of(example.image)) in doc_pages.IMAGES:
            alike = tuple(
                "1" if before == "--seed" else word for before, word in zip(["", *words], words, strict=False)
            )
            found[name, alike] = replace(example, image=f"gleaner/{name}:demo", command=alike)
    return list(found.values())


def _files(example: doc_pages.Example) -> dict[str, str]:
    """Return the content of each file: as the page shows it, with few events, or else any."""
    files = {name: doc_pages.shown_file(example.page, called) or "0123" * 2500 for name, called in example.inputs}
    return {name: re.sub("^events = .*", "events = 20", content, flags=re.MULTILINE) for name, content in files.items()}


def _build(node: Node, image: str) -> None:
    """Make an image on the node that only examples need."""
    folder = cluster.ROOT / "images" / "steered"
    steered = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    plain = {"Dockerfile": b"FROM gleaner/pi:demo\nENTRYPOINT []\n"}
    context = io.BytesIO()
    with tarfile.open(fileobj=context, mode="w") as archive:
        for name, content in {"gleaner/steered:demo": steered, "gleaner/python:demo": plain}[image].items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    context.seek(0)
    for _ in node.engine.build(fileobj=context, custom_context=True, tag=image, rm=True):
        pass


@pytest.mark.parametrize("example", _shown(), ids=lambda example: f"{example.image}-{example.command[0]}")
def test_an_example_of_the_docs_runs_in_its_image(node: Node, work: Work, example: doc_pages.Example) -> None:
    image = example.image
    if image not in {"gleaner/pythia:demo", "gleaner/pi:demo"}:
        _build(node, image)
    if example.inputs:
        work.bring(node, **_files(example))
    container = work.start(node, *example.command, memory_mib=MEMORY_MIB, image=image)
    assert node.runtime.wait(container).exit_code == 0, work.lines[-5:]
    work.read_to_end()
    assert list(work.folder(node).iterdir()) != []
    node.runtime.remove(container)
