"""The published experiments by name, with their settings."""

import tomllib
from collections.abc import Callable
from importlib import import_module
from importlib.resources import files
from typing import cast

from gleaner.control.simulation.errors import BadScenario
from gleaner.lab.experiments.comparison import Comparison

ALL = "all"


def names() -> tuple[str, ...]:
    """Return all experiments in alphabetical order. Each has a settings file and a module of its name."""
    folder = files("gleaner.lab.experiments")
    found = (entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(sorted(found))


def chosen(name: str) -> tuple[str, ...]:
    """Return the experiment of that name, or all of them. Raise `BadScenario` if there is no such experiment."""
    known = names()
    if name != ALL and name not in known:
        raise BadScenario(f"there is no experiment {name!r}; there are: {', '.join((*known, ALL))}")
    return known if name == ALL else (name,)


def settings_of(name: str) -> dict[str, object]:
    """Return the settings file of an experiment. Raise `KeyError` if there is no such experiment."""
    path = files("gleaner.lab.experiments") / f"{name}.toml"
    if not path.is_file():
        raise KeyError(name)
    return tomllib.loads(path.read_text(encoding="utf-8"))


def compared(name: str, *, quick: bool) -> Comparison:
    """Repeat the experiment with the settings of its file, and return the comparison. `quick`: fewer repetitions."""
    module = import_module(f"gleaner.lab.experiments.{name}")
    run = cast("Callable[..., Comparison]", module.run)
    return run(settings_of(name), quick=quick)
