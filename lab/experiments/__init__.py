"""The published experiments. Each module has a `run`, and its settings are in the TOML file with the same name."""

import tomllib
from pathlib import Path

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.stem for path in FOLDER.glob("*.toml")))


def settings_of(name: str) -> dict[str, object]:
    """Return the settings file of an experiment."""
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
