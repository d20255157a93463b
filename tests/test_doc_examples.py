"""Each job that a page or the API shows is one that its image's program takes."""

import contextlib
import io
import runpy
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from tests import doc_pages
from tests.doc_pages import Example

from gleaner.control.api.examples import A_SUBMISSION
from gleaner.control.models.jobs import JobSpec

IMAGES = Path(__file__).parents[1] / "images"
PARSERS: dict[str, Callable[[Sequence[str]], object]] = {
    "gleaner/pythia": runpy.run_path(str(IMAGES / "pythia" / "generate.py"))["parse"],
    "gleaner/pi": runpy.run_path(str(IMAGES / "pi" / "pi.py"))["arguments"],
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
            PARSERS[example.image](list(example.command))
    except (SystemExit, ValueError) as error:
        return f"{example.page}: {' '.join(example.command)}: {said.getvalue() or error}"
    return ""


def test_the_program_of_an_examples_image_takes_its_arguments() -> None:
    shown = [example for example in doc_pages.examples() if example.image in PARSERS]
    assert {example.image for example in shown} == PARSERS.keys()
    assert [wrong for example in (*shown, *_of_the_api()) if (wrong := _complaint(example))] == []


@pytest.mark.parametrize(
    ("image", "command"),
    [("gleaner/pythia", "--seed 0 --events 9 --process zmumu --out ."), ("gleaner/pi", "pi --samples 9 --seed 1")],
)
def test_arguments_that_the_program_refuses_are_noticed(image: str, command: str) -> None:
    assert _complaint(Example("a page", image, tuple(command.split()))) != ""
