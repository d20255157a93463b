"""The settings, read with complaints that name file, line and key, and `glean config`, which prints them."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from gleaner.control.cli.output import Answer, AsJson, Configuration, Setting
from gleaner.control.input_errors import (
    InputError,
    TomlFile,
    read_toml,
    table_complaint,
    toml_line,
    unknown_key,
)
from gleaner.control.settings import Settings

PREFIX = "GLEANER_"
TABLES: dict[str, type[BaseModel]] = {
    name: cast("type[BaseModel]", field.annotation) for name, field in Settings.model_fields.items()
}


def load_settings() -> Settings:
    """Return the effective settings. Raises `InputError` that names file or variable, key and what was expected."""
    file = _read(Settings.file())
    variables = _variables(os.environ)
    for (table, _key), variable in variables.items():
        if table not in TABLES:
            raise InputError(f"environment variable {variable}: {unknown_key(table, TABLES)}")
    try:
        return Settings()
    except ValidationError as error:
        raise InputError(_complaint(error.errors(), file, variables)) from error
    except (SettingsError, RecursionError) as error:
        raise InputError(f"environment: {error}") from error


def config(as_json: AsJson = False) -> Answer:
    """Print the settings and where each comes from. Passwords are never shown."""
    settings = load_settings()
    file = _read(Settings.file())
    variables = _variables(os.environ)
    rows: list[Setting] = []
    for table in TABLES:
        for key, value in getattr(settings, table).model_dump(mode="json").items():
            origin = "default"
            if key in file.tables.get(table, {}):
                origin = "file"
            origin = variables.get((table, key), origin)
            shown = without_password(value) if isinstance(value, str) and "://" in value else value
            rows.append(Setting(table=table, key=key, value=shown, origin=origin))
    return Answer(Configuration(file=str(file.path) if file.path else None, settings=tuple(rows)), as_json)


def _read(path: Path | None) -> TomlFile:
    return read_toml(
        path,
        missing="no such settings file; GLEANER_SETTINGS names it",
        unreadable="; set GLEANER_SETTINGS to a settings file that you may read",
    )


def _variables(environment: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return our variables by the table and key that they set. The agent's variables have a prefix of their own."""
    found: dict[tuple[str, str], str] = {}
    for variable in environment:
        table, separator, key = variable.upper().removeprefix(PREFIX).partition("__")
        if variable.upper().startswith(PREFIX) and separator and not table.startswith("AGENT_"):
            found[table.lower(), key.lower()] = variable
    return found


def _complaint(errors: list[ErrorDetails], file: TomlFile, variables: Mapping[tuple[str, str], str]) -> str:
    """Return one line about the first error, which is in the variable that set the value, in the file, or in a table
    that variables alone have set."""
    path = tuple(str(part) for part in errors[0]["loc"])
    table = path[0] if path else ""
    own = sorted(variable for (known, _), variable in variables.items() if known == table)
    if path[:2] in variables:
        place = f"environment variable {variables[path[0], path[1]]}"
    elif file.path is not None and (toml_line(file.text, path) is not None or not own):
        place = file.place(path)
    else:
        place = "environment variables " + ", ".join(own)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return table_complaint(Settings, errors[0], place=place) + more


def without_password(url: str) -> str:
    """Return the URL with its password, wherever it stands, replaced by `***`.

    >>> without_password("postgresql+psycopg://gleaner:secret@db/gleaner?password=secret")
    'postgresql+psycopg://gleaner:***@db/gleaner?password=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|secret|token)=)[^&]*", r"\1***", masked)
