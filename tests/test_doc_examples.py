"""Each job that a page or the API shows is one that its image's program takes."""

import contextlib
import io
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

from tests import doc_pages
from tests.doc_pages import Example

from gleaner.agent.job_spec import JobSpec
from gleaner.control.api.examples import A_SUBMISSION

IMAGES = Path(__file__).parents[1] / "images"
PARSERS: dict[str, Callable[[Sequence[str]], object]] = {
    "pythia": runpy.run_path(str(IMAGES / "pythia" / "generate.py"))["parse"],
    "pi": runpy.run_path(str(IMAGES / "pi" / "pi.py"))["arguments"],
}
"""For each image, the function of its program that reads the arguments."""


def _of_the_api() -> list[Example]:
    submitted = A_SUBMISSION.examples[0]
    shown = [JobSpec.model_config["json_schema_extra"]["examples"][0], submitted["job"]]  # type: ignore[index]
    return [
        Example("the API", job["image"], tuple(word.replace("{index}", str(index)) for word in job["command"]))
        for job in shown
        for index in submitted["indices"]
    ]


def _complaint(example: Example) -> str:
    """Return why the image's program does not take the command, or nothing."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            PARSERS[doc_pages.name_of(example.image)](list(example.command))
    except (SystemExit, ValueError) as error:
        return f"{example.page}: {' '.join(example.command)}: {said.getvalue() or error}"
    return ""


def test_the_program_of_an_examples_image_takes_its_arguments() -> None:
    shown = [example for example in doc_pages.examples() if doc_pages.name_of(example.image) in PARSERS]
    assert {doc_pages.name_of(example.image) for example in shown} == PARSERS.keys()
    assert [wrong for example in (*shown, *_of_the_api()) if (wrong := _complaint(example))] == []


def test_the_quick_start_shows_the_dockerfile_that_it_builds() -> None:
    page = (doc_pages.ROOT / "docs" / "quickstart.md").read_text()
    assert doc_pages.blocks(page, "dockerfile") == [(IMAGES / "pythia" / "Dockerfile").read_text()]
