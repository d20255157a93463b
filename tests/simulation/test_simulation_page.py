"""docs/simulate/reference.md says what the program takes: each key of a scenario is there, and its options exist."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import typer
from pydantic import BaseModel

from gleaner.control.cli import simulate
from gleaner.control.simulation.scenario import Scenario

PAGE = (Path(__file__).parents[2] / "docs" / "simulate" / "reference.md").read_text()


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
