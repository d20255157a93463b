"""The examples are true: those in docstrings give what they say, and commands in pages exist with their options."""

import doctest
import functools
import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import typer.main

from gleaner.agent.user_job import main as user_job
from gleaner.control.cli.app import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "deploy" / "INSTALL.md", *sorted((ROOT / "docs").glob("*.md"))]
TREES = ("agent", "control", "lab")
THE_AGENTS_OWN = "agent"
"""`glean agent` passes its words on to a program that reads no options from them."""


def _modules_with_examples() -> Iterator[str]:
    for tree in TREES:
        for file in sorted((ROOT / tree / "gleaner").rglob("*.py")):
            if ">>> " in file.read_text():
                yield ".".join(file.relative_to(ROOT / tree).with_suffix("").parts).removesuffix(".__init__")


@pytest.mark.parametrize("module", list(_modules_with_examples()))
def test_the_examples_of_a_module_give_what_they_say(module: str) -> None:
    loaded = importlib.import_module(module)
    result = doctest.testmod(loaded, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert result.attempted > 0
    assert result.failed == 0


def _commands(page: Path, program: str) -> Iterator[str]:
    """Yield what a page says is typed: in blocks of code and between backticks, lines that go on put together."""
    text = re.sub(r"\\\n\s*", " ", page.read_text())
    yield from re.findall(rf"^ *(?:\$ )?(?:exec )?({program} .*)$", text, re.MULTILINE)
    yield from (re.sub(r"\s+", " ", inline) for inline in re.findall(rf"`({program} [^`]+)`", text))


@functools.cache
def _parser(of: typer.Typer) -> Any:
    return typer.main.get_command(of)


def _complaint(command: str) -> str:
    """Return what is wrong with a `glean` command in one line, or nothing."""
    words = shlex.split(re.split(r" (?:>|\||&&|\.\.\.)(?: |$)", command)[0].replace("...", ""), comments=True)[1:]
    here: Any = _parser(app)
    while words and hasattr(here, "commands"):
        if words[0] not in here.commands:
            return f"{command}: no verb {words[0]!r}"
        here = here.commands[words.pop(0)]
    if here.name == THE_AGENTS_OWN:
        return ""
    if here.name == "run" and here.context_settings.get("ignore_unknown_options"):
        here = _parser(user_job.app)
    known = {option for parameter in here.params for option in (*parameter.opts, *parameter.secondary_opts)} | {
        "--help"
    }
    options = [word.partition("=")[0] for word in words[: words.index("--") if "--" in words else None]]
    unknown = [option for option in options if re.match(r"--?[a-z]", option) and option not in known]
    return f"{command}: no option {', '.join(unknown)}" if unknown else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_of_a_page_name_verbs_and_options_that_exist(page: Path) -> None:
    assert [wrong for command in _commands(page, "glean") if (wrong := _complaint(command))] == []


def test_a_command_that_does_not_exist_is_noticed() -> None:
    assert _complaint("glean submitt x.yaml") == "glean submitt x.yaml: no verb 'submitt'"
    assert _complaint("glean wait 3 --nosuch 4") == "glean wait 3 --nosuch 4: no option --nosuch"
    assert _complaint("glean submit --image a -- pi --samples 3") == ""
    assert _complaint("glean run --nosuch a -- pi") == "glean run --nosuch a -- pi: no option --nosuch"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_targets_of_make_that_a_page_names_exist(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert {command.split()[1] for command in _commands(page, "make")} - targets == set()
