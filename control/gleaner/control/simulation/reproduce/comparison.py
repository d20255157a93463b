"""What an experiment found, beside what was published."""

import tomllib
from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Row:
    """One figure. `published` and `ours` are numbers where they are ones, else words; None: there is none."""

    what: str
    published: str | float | None
    ours: str | float | None
    remark: str = ""
    """For example how far single seeds are apart, or why the two differ."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One experiment."""

    title: str
    not_published: tuple[str, ...]
    """What the source does not tell, and what stands in for it: one line each."""
    rows: tuple[Row, ...]
    explained: tuple[str, ...] = ()
    """Why ours and the published figures differ where they do: one line each."""


def settings_of(name: str) -> dict[str, object]:
    """The settings file of an experiment. `KeyError` if there is no such experiment."""
    path = files("gleaner.control.simulation.reproduce") / f"{name}.toml"
    if not path.is_file():
        raise KeyError(name)
    return tomllib.loads(path.read_text(encoding="utf-8"))
