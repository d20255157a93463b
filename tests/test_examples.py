"""The examples are true: those in docstrings give what they say, and commands in pages exist with their options."""

import doctest
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main
from tests import doc_pages

from gleaner.agent.user_job import main as user_job
from gleaner.control.cli import app

ROOT = Path(__file__).parents[1]
TREES = (
    ("agent", "agent/gleaner"),
    ("control", "control/gleaner"),
    ("client", "client/gleaner"),
    (".", "lab"),
    (".", "demo"),
)
"""Folders with modules, each with the folder in which the modules' names begin."""
TESTS = (".", "tests")
NOT_IMPORTED = {"gleaner.control.queue.migrations.env": "Alembic runs it, within a migration"}
"""Modules that cannot be imported, each with the reason."""


def _modules(*trees: tuple[str, str]) -> Iterator[tuple[str, Path]]:
    for begin, folder in trees:
        for file in sorted((ROOT / folder).rglob("*.py")):
            yield ".".join(file.relative_to(ROOT / begin).with_suffix("").parts).removesuffix(".__init__"), file


def _written_examples() -> dict[str, int]:
    """Return for each module with examples how many its file holds, wherever they stand."""
    files = dict(_modules(*TREES, TESTS))
    counts = {name: len(re.findall(r"^ *>>> ", file.read_text(), re.MULTILINE)) for name, file in files.items()}
    return {name: count for name, count in counts.items() if count}


def test_every_module_can_be_imported() -> None:
    broken: dict[str, str] = {}
    for name, _file in _modules(*TREES):
        try:
            importlib.import_module(name)
        except Exception as error:  # whatever a module raises is what this test is about
            broken[name] = repr(error)
    assert broken.keys() == NOT_IMPORTED.keys(), broken


@pytest.mark.parametrize(("module", "written"), _written_examples().items())
def test_the_examples_of_a_module_give_what_they_say(module: str, written: int) -> None:
    """`doctest` passes over an example in a function within a function, or below a field: it would never be run."""
    result = doctest.testmod(importlib.import_module(module), optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.failed == 0
    assert result.attempted == written, "some of the examples are not run"


def _complaint(command: str) -> str:
    """Return what is wrong with a `glean` command in one line, or nothing."""
    words = shlex.split(re.split(r" (?:>|\||&&|\.\.\.)(?: |$)", command)[0].replace("...", ""), comments=True)[1:]
    here: Any = app.command()
    while words and hasattr(here, "commands") and not words[0].startswith("--"):
        if words[0] not in here.commands:
            return f"{command}: no verb {words[0]!r}"
        here = here.commands[words.pop(0)]
        here = getattr(here, "whole", here)
    if here.name == "run" and here.context_settings.get("ignore_unknown_options"):
        here = typer.main.get_command(user_job.app)
    known = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    options = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    unknown = [option for option in options if re.match(r"--?[a-z]", option) and option not in known]
    return f"{command}: no option {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.NAMES)
def test_commands_of_a_page_name_verbs_and_options_that_exist(page: Path) -> None:
    assert [wrong for command in doc_pages.commands(page.read_text(), "glean") if (wrong := _complaint(command))] == []


@pytest.mark.parametrize("page", doc_pages.PAGES, ids=doc_pages.NAMES)
def test_targets_of_make_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.split()[1] for command in doc_pages.commands(page.read_text(), "make")} - targets == set()
