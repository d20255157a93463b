"""The published experiments by name."""

from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.resources import files
from typing import cast

from gleaner.control.simulation.failures import BadScenario
from gleaner.control.simulation.reproduce.comparison import Comparison, settings_of

ALL = "all"


def names() -> tuple[str, ...]:
    """Every experiment, in the order of the alphabet. Each has a settings file and a module of its name."""
    folder = files("gleaner.control.simulation.reproduce")
    found = (entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))
    return tuple(sorted(found))


def chosen(name: str) -> tuple[str, ...]:
    """The experiment of that name, or all of them. Raises `BadScenario`."""
    known = names()
    if name != ALL and name not in known:
        raise BadScenario(f"there is no experiment {name!r}; there are: {', '.join((*known, ALL))}")
    return known if name == ALL else (name,)


def compared(name: str, *, quick: bool) -> Comparison:
    """What the experiment finds with the settings of its file; `quick`: with fewer repetitions."""
    module = import_module(f"gleaner.control.simulation.reproduce.{name}")
    run = cast("Callable[..., Comparison]", module.run)
    settings: Mapping[str, object] = settings_of(name)
    return run(settings, quick=quick)
