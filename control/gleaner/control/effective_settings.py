"""The settings in force. Error messages about them name the file, the line and the key."""

import os
from collections.abc import Mapping
from typing import cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from gleaner.control.input_errors import InputError, TomlFile, read_toml, table_complaint, toml_line, unknown_key
from gleaner.control.settings import Settings

PREFIX = "GLEANER_"
TABLES: dict[str, type[BaseModel]] = {
    name: cast("type[BaseModel]", field.annotation) for name, field in Settings.model_fields.items()
}


def load_settings() -> Settings:
    """Return the effective settings. Raises an `InputError` that names the file or variable, the key and the expected
    value."""
    file = settings_file()
    variables = settings_variables(os.environ)
    for (table, _key), variable in variables.items():
        if table not in TABLES:
            raise InputError(f"environment variable {variable}: {unknown_key(table, TABLES)}")
    try:
        return Settings()
    except ValidationError as error:
        raise InputError(_complaint(error.errors(), file, variables)) from error
    except (SettingsError, RecursionError) as error:
        raise InputError(f"environment: {error}") from error


def settings_file() -> TomlFile:
    """Return the settings file, which is empty if there is none. Raises `InputError`."""
    return read_toml(
        Settings.file(),
        missing="no such settings file; GLEANER_SETTINGS names it",
        unreadable="; set GLEANER_SETTINGS to a settings file that you may read",
    )


def settings_variables(environment: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return the names of Gleaner's environment variables, by the table and key that they set. The agent's variables
    are left out."""
    found: dict[tuple[str, str], str] = {}
    for variable in environment:
        table, separator, key = variable.upper().removeprefix(PREFIX).partition("__")
        if variable.upper().startswith(PREFIX) and separator and not table.startswith("AGENT_"):
            found[table.lower(), key.lower()] = variable
    return found


def _complaint(errors: list[ErrorDetails], file: TomlFile, variables: Mapping[tuple[str, str], str]) -> str:
    """Return one line about the first error.

    The line names the variable that set the value, the place in the file, or all variables that set keys of the table.
    """
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
