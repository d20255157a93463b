"""Draw docs/admin/settings.md and agent-settings.md from the settings' own descriptions: `make diagrams`.

`tests/test_docs.py` compares the pages with the code.
"""

import ast
import inspect
import itertools
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePath
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from gleaner.agent.settings import SiteAgentSettings
from gleaner.control import settings
from gleaner.control.settings import Settings

FOLDER = Path(__file__).parent / "admin"

_INTRODUCTION = """# Settings

`make diagrams` draws this page from the settings' own descriptions.

- [The five that matter first](#the-five-that-matter-first)
- [Where settings come from](#where-settings-come-from)
{tables}
- Quotas, images, inputs and the command line have [a page of their own](user-settings.md)
- The agents' settings, [too](agent-settings.md)

## The five that matter first

| setting | on day one | later |
|---|---|---|
| `rounds.agents_at_most` | 4, then twice as many each week | as many as there are nodes |
| `rounds.length_s` | leave it at an hour | what `glean simulate tune` says |
| agent: `images_allowed` | the one image of your first user | your registry, `registry.site/physics/*` |
| agent: `saves_at_once` | 2 | more, or none, when the storage bears it |
| agent: `disk_mib_per_job` | what a job of your first user writes | larger for jobs that write much |

Set `audit.file` as well: it costs nothing, and later you want to know who did what.

## Where settings come from

Control and `glean` read `/etc/gleaner/gleaner.toml`, or the file that `GLEANER_SETTINGS` names.
The environment wins over the file: `GLEANER_ROUNDS__LENGTH_S=600` sets `length_s` in the table
`[rounds]`. Agents read `/etc/gleaner/agent.toml`, or the file that `GLEANER_AGENT_SETTINGS` names,
and the environment as `GLEANER_AGENT_MARGIN_S=20`.

`glean config` prints all settings and where each comes from. An unknown key, or two that
contradict each other, is one line at the start that names the file and the key. After a change
restart control; agents read their settings when they start.
"""
_OF_QUOTAS = "quotas.default and quotas.group.NAME"
_OF_USERS = """# Settings for users

`make diagrams` draws this page from the settings' own descriptions. These tables are about what
groups and users may have, and about the command line; [settings.md](settings.md) has the others,
and where settings come from.

{tables}
"""
_TABLES_OF_USERS = frozenset({"quotas", "images", "inputs", "outputs", "secrets", "munge", "client", _OF_QUOTAS})
_OF_AGENTS = """# The agents' settings

`make diagrams` draws this page from the settings' own descriptions. They stand in `agent.toml` on
each node, which has no tables. [settings.md](settings.md) has the three that matter first, and
where settings come from.
"""


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
    """Return a default as it is written in TOML, or `none`."""
    match value:
        case None:
            return "none"
        case PurePath():
            return f'`"{value}"`'
        case bool() | str():
            return f"`{json.dumps(value)}`"
        case float() if value == int(value):
            return f"`{int(value)}`"
        case tuple() | list():
            return f"`{json.dumps(list(value))}`"
        case _:
            return f"`{value}`"


def _rows(model: type[BaseModel]) -> Iterator[str]:
    said = descriptions(model)
    for name, field in model.model_fields.items():
        default: Any = field.default
        if isinstance(default, BaseModel) or default is PydanticUndefined:
            continue
        yield f"| `{name}` | {_written(default)} | {said.get(name, '').replace('|', '/')} |"


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


def _table(title: str, first: str, model: type[BaseModel]) -> str:
    rows = list(_rows(model))
    if not rows:
        return ""
    return "\n".join(
        [f"## {title}\n", f"{first}\n", "| setting | default | what it does |", "|---|---|---|", *rows, ""]
    )


def _what(model: type[BaseModel]) -> str:
    text = inspect.cleandoc(model.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
    text = re.sub(r"^`\[\[?[\w.]+\]\]?`: ", "", text)
    return text[0].upper() + text[1:]


def _page(introduction: str, *, of_users: bool) -> str:
    """Return a page with the tables of users, or with the others."""
    tables = {name: model for name, model in _tables().items() if (name in _TABLES_OF_USERS) is of_users}
    if of_users:
        tables[_OF_QUOTAS] = settings.GroupQuota
    parts = {name: text for name, model in tables.items() if (text := _table(name, _what(model), model))}
    links = " · ".join(f"[{name}](#{re.sub(r'[^a-z -]', '', name.lower()).replace(' ', '-')})" for name in parts)
    contents = textwrap.fill(f"- The tables: {links}", 100, subsequent_indent="  ", break_on_hyphens=False)
    return "\n".join([introduction.format(tables=contents), *parts.values()])


def control_page() -> str:
    """Return the page of control's settings."""
    return _page(_INTRODUCTION, of_users=False)


def users_page() -> str:
    """Return the page of the settings that are about users, and of the command line."""
    return _page(_OF_USERS, of_users=True)


def agents_page() -> str:
    """Return the page of the agents' settings."""
    return f"{_OF_AGENTS}\n" + "\n".join(
        ["| setting | default | what it does |", "|---|---|---|", *_rows(SiteAgentSettings), ""]
    )


PAGES = {"settings.md": control_page, "user-settings.md": users_page, "agent-settings.md": agents_page}


if __name__ == "__main__":
    missing = undescribed()
    if missing:
        sys.exit(f"these settings have no description: {', '.join(missing)}")
    for name, draw in PAGES.items():
        (FOLDER / name).write_text(draw())
