"""Each job that a page shows runs in its real image, and leaves results."""

import re

import pytest
from tests import doc_pages
from tests.runtime.nodes_harness import Node, Work

pytestmark = [pytest.mark.nodes, pytest.mark.slow]

MEMORY_MIB = 400
FEW = {"--events": "20", "--samples": "1000"}
"""The amounts that an example computes here. All its other arguments are the page's."""


def _shown() -> list[tuple[str, tuple[str, ...]]]:
    """Return the image and the command of each job of the demo's images, for one index of a campaign."""
    found: dict[tuple[str, tuple[str, ...]], None] = {}
    for example in doc_pages.examples():
        words = list(example.command)
        for option, value in FEW.items():
            if option in words:
                words[words.index(option) + 1] = value
        if re.fullmatch(r"gleaner/\w+", example.image):
            alike = tuple(
                "1" if before == "--seed" else word for before, word in zip(["", *words], words, strict=False)
            )
            found[f"{example.image}:demo", alike] = None
    return list(found)


@pytest.mark.parametrize(("image", "command"), _shown())
def test_an_example_of_the_docs_runs_in_its_image(node: Node, work: Work, image: str, command: tuple[str, ...]) -> None:
    container = work.start(node, *command, memory_mib=MEMORY_MIB, image=image)
    assert node.runtime.wait(container) == 0, work.lines[-5:]
    work.read_to_end()
    assert list(work.folder(node).iterdir()) != []
    node.runtime.remove(container)
