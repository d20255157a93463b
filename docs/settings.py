"""Draw docs/admin/settings.md from the settings' own descriptions: `make diagrams`.

`tests/test_docs.py` compares the page with the code.
"""

import ast
import inspect
import itertools
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gleaner.agent.settings import SiteAgentSettings
from gleaner.control import settings
from gleaner.control.settings import Settings

PAGE = Path(__file__).parent / "admin" / "settings.md"

_INTRODUCTION = """# Settings

- [The five that matter first](#the-five-that-matter-first)
- [Where settings come from](#where-settings-come-from)
- [Control](#control)
- [Agents](#agents)

## The five that matter first

| setting | on day one | later |
|---|---|---|
| `rounds.agents_at_most` | 4, then twice as many each week | the number of nodes |
| `rounds.length_s` | leave it at an hour | the best length from `glean simulate tune` |
| agent: `images_allowed` | the one image of your first user | your registry, `registry.site/physics/*` |
| agent: `saves_at_once` | 2 | more, or no limit, if the storage can sustain it |
| agent: `disk_mib_per_job` | as much as a job of your first user writes | larger for jobs that write more |

Set `audit.file` as well.

## Where settings come from

| program | file | variable that names another file | variable that overrides the file |
|---|---|---|---|
| control, `glean` | `/etc/gleaner/gleaner.toml` | `GLEANER_SETTINGS` | `GLEANER_ROUNDS__LENGTH_S=600` |
| agents | `/etc/gleaner/agent.toml` | `GLEANER_AGENT_SETTINGS` | `GLEANER_AGENT_MARGIN_S=20` |

`glean config` prints all settings and the source of each. If a key is unknown, or two keys
contradict each other, the program does not start, and prints one line that names the file and the
key. After a change, restart control. Agents read their settings when they start.

## Control

A row in brackets starts a table of the file. A setting without a value is unset by default.

{control}

## Agents

{agents}
"""
_TABLES_OF_USERS = ("quotas", "images", "inputs", "outputs", "secrets", "munge", "client")
_OF_QUOTAS = "quotas.default], [quotas.group.NAME"


@cache  # to read a class's source takes Python long
def descriptions(model: type[BaseModel]) -> dict[str, str]:
    """Return the text that stands below each field, also of those that the model has from another one."""
    found: dict[str, str] = {}
    for kind in reversed(model.__mro__):
        if kind is BaseModel or not issubclass(kind, BaseModel) or kind.__module__.startswith("pydantic"):
            continue
        (definition,) = ast.parse(inspect.getsource(kind)).body
        body = definition.body if isinstance(definition, ast.ClassDef) else []
        for field, below in itertools.pairwise(body):
            match field, below:
                case (
                    ast.AnnAssign(target=ast.Name(name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    found[name] = re.sub(r"\s+", " ", text).strip()
                case _:
                    pass
    return found


def _written(value: object) -> str:
    """Return a default as it follows the name in TOML, or nothing."""
    match value:
        case None:
            return ""
        case PurePath():
            return f' = "{value}"'
        case bool() | str():
            return f" = {json.dumps(value)}"
        case float() if value == int(value):
            return f" = {int(value)}"
        case tuple() | list():
            return f" = {json.dumps(list(value))}"
        case _:
            return f" = {value}"


def _rows(model: type[BaseModel]) -> Iterator[str]:
    said = descriptions(model)
    for name, field in model.model_fields.items():
        default: Any = field.default
        if isinstance(default, BaseModel) or default is PydanticUndefined:
            continue
        yield f"| `{name}{_written(default)}` | {said.get(name, '').replace('|', '/')} |"


def undescribed() -> list[str]:
    """Return the settings that have no description."""
    models = (SiteAgentSettings, *_tables().values())
    return [
        f"{model.__name__}.{name}"
        for model in models
        for name, field in model.model_fields.items()
        if name not in descriptions(model) and not isinstance(field.default, BaseModel)
    ]


def _tables() -> dict[str, type[BaseModel]]:
    found = {name: type(field.default) for name, field in Settings.model_fields.items()}
    return {name: model for name, model in found.items() if issubclass(model, BaseModel)}


def _what(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    text = re.sub(r"^`\[\[?[\w.]+\]\]?`: ", "", text)
    return text[0].upper() + text[1:]


def _table(rows: list[str]) -> str:
    return "\n".join(["| setting | what it does |", "|---|---|", *rows])


def page() -> str:
    """Return the page with the settings of control, of users and of agents."""
    tables = _tables()
    last = {name: tables.pop(name) for name in _TABLES_OF_USERS if name in tables}
    rows: list[str] = []
    for name, model in (tables | last | {_OF_QUOTAS: settings.GroupQuota}).items():
        rows += [f"| **`[{name}]`** | **{_what(model)}** |", *_rows(model)]
    return _INTRODUCTION.format(control=_table(rows), agents=_table(list(_rows(SiteAgentSettings))))


if __name__ == "__main__":
    missing = undescribed()
    if missing:
        sys.exit(f"these settings have no description: {', '.join(missing)}")
    PAGE.write_text(page())
