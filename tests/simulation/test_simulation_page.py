"""The pages of the simulator: each key of a scenario and no other option is there, and their commands answer."""

import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import typer
from pydantic import BaseModel
from tests import doc_pages
from tests.simulation import shipped

from gleaner.control.cli import app, simulate
from gleaner.control.simulation.scenario import Scenario

DOCS = doc_pages.ROOT / "docs"
PAGE = (DOCS / "simulate" / "reference.md").read_text()
START = (DOCS / "simulate" / "start.md").read_text()
EVALUATE = (DOCS / "admin" / "evaluate.md").read_text()


def example(*, with_alternatives: bool = False) -> dict[str, Any]:
    """The scenario on the page; also with the keys that stand as comments, since others exclude them."""
    found = re.search(r"<!-- every key -->\n```toml\n(.*?)```", PAGE, re.DOTALL)
    assert found is not None
    text = found.group(1)
    return tomllib.loads(re.sub(r"(?m)^# (?=\w+ =)", "", text) if with_alternatives else text)


def keys(model: type[BaseModel], table: dict[str, Any], path: str) -> Iterator[str]:
    """Yield what the page and the model do not have in common, down to the keys that are no tables."""
    yield from (f"{path}{name}: only one of both" for name in set(model.model_fields) ^ set(table))
    for name, value in table.items():
        field = model.model_fields[name]
        kinds = (field.annotation, *getattr(field.annotation, "__args__", ()))
        below = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        inner: object = cast("list[object]", value)[0] if isinstance(value, list) else value
        if len(below) == 1 and isinstance(inner, dict):  # of several the table says by its kind which it is
            yield from keys(below[0], cast("dict[str, Any]", inner), f"{path}{name}.")


def test_the_page_has_every_key_of_a_scenario_and_no_other() -> None:
    assert list(keys(Scenario, example(with_alternatives=True), "")) == []


def test_every_option_that_the_page_names_exists() -> None:
    group = cast("Any", typer.main.get_command(simulate.app))
    known = {option for name in ("run", "compare") for each in group.commands[name].params
             for option in (*each.opts, *each.secondary_opts)}  # fmt: skip
    section = PAGE[PAGE.index("## The command") : PAGE.index("## Scenario files")]
    named = set(re.findall(r"--[a-z][a-z-]+", section))
    assert len(named) > 10
    assert named - known == set()


@pytest.mark.slow
def test_the_commands_of_the_pages_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our own log stands for each log that they name. Its jobs are few, so a limit of the wait is given."""
    monkeypatch.chdir(tmp_path)
    pages = (
        PAGE,
        START,
        EVALUATE,
        *((doc_pages.ROOT / name).read_text() for name in ("README.md", "docs/measurements.md")),
    )
    commands = [command for page in pages for command in doc_pages.commands(page, "glean simulate") if ".gz" in command]
    for command in commands:
        words = shlex.split(command, comments=True)[1:]
        shutil.copy(shipped.PATH, words[2])
        limit = ("--wait-limit", "1h", "--seeds", "2") if words[1] == "tune" else ()
        assert app.run([*words, *limit]) == 0, command
    assert len(commands) == 8
    subprocess.run(["bash", "-ec", doc_pages.blocks(START, "sh")[-1]], check=True, timeout=60)
    assert app.run(["simulate", "run", "part.swf.gz"]) == 0


@pytest.mark.slow
@pytest.mark.extended
@pytest.mark.timeout(600)
def test_the_simulator_is_installed_as_the_page_for_admins_shows_it(tmp_path: Path) -> None:
    install = doc_pages.blocks(EVALUATE, "sh")[0].partition("\n")[0]
    install = install.replace("python3.11", sys.executable).replace(".[", f"{doc_pages.ROOT}[")
    script = f"{install}\nglean simulate run {shipped.PATH}"
    subprocess.run(["bash", "-ec", script], cwd=tmp_path, capture_output=True, check=True, timeout=600)
