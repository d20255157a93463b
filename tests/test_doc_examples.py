"""Each job that a page or the API shows is one that its image's program takes."""

import contextlib
import io
import json
import runpy
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
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


GALLERY = "docs/user/gallery.md"


def _program(name: str, folder: Path) -> str:
    """Write a program that the gallery shows."""
    text = doc_pages.shown_file(GALLERY, name)
    assert text is not None
    (folder / name).write_text(text)
    return str(folder / name)


@pytest.mark.slow
def test_the_fit_of_the_gallery_finds_the_mean_that_it_generates(tmp_path: Path) -> None:
    fit = [sys.executable, _program("fit.py", tmp_path), "--seed", "1", "--toys", "20"]
    subprocess.run(fit, cwd=tmp_path, check=True, timeout=120)
    assert abs(json.loads((tmp_path / "fit.json").read_text())["mean"] - 91.2) < 0.1


@pytest.mark.slow
def test_the_monte_carlo_of_the_gallery_finds_the_volume_of_a_sphere(tmp_path: Path) -> None:
    program = str(tmp_path / "sphere")
    built = ["g++", "-O2", "-static", "-Wall", "-Werror", "-o", program, _program("sphere.cpp", tmp_path)]
    subprocess.run(built, check=True, timeout=120)
    subprocess.run([program, "1", "100000"], cwd=tmp_path, check=True, timeout=60)
    assert abs(float((tmp_path / "volume.txt").read_text()) - 4.18879) < 0.05


@pytest.mark.slow
def test_the_program_of_the_gallery_that_saves_itself_continues_with_the_same_result(tmp_path: Path) -> None:
    results: list[str] = []
    for is_ended in (False, True):
        folder = tmp_path / str(is_ended)
        folder.mkdir()
        command = [sys.executable, _program("chain.py", folder), "--seed", "1", "--samples", "1000000"]
        if is_ended:
            with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as running:
                assert running.stdout is not None
                assert running.stdout.readline() == "begins at step 0\n"
                running.terminate()
            assert running.returncode == 85
        subprocess.run(command, cwd=folder, check=True, timeout=120)
        results.append((folder / "result.txt").read_text())
    assert results[0] == results[1]
