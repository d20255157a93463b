"""The settings, read with complaints that name file, line and key, and `glean config`, which prints them."""

import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import SettingsError

from gleaner.control.cli.failures import BadInput
from gleaner.control.cli.output import Answer, AsJson, Configuration, Setting
from gleaner.control.settings import Settings
from gleaner.control.validation_messages import complaint, known_keys, one_line, unknown_key

PREFIX = "GLEANER_"
TABLES: dict[str, type[BaseModel]] = {
    name: cast("type[BaseModel]", field.annotation) for name, field in Settings.model_fields.items()
}


def load_settings() -> Settings:
    """Return the effective settings. Raises `BadInput` that names file or variable, key and what was expected."""
    path = Settings.file()
    text, _ = _read(path)
    variables = _variables(os.environ)
    for (table, _key), variable in variables.items():
        if table not in TABLES:
            raise BadInput(f"environment variable {variable}: {unknown_key(table, TABLES)}")
    try:
        return Settings()
    except ValidationError as error:
        raise BadInput(_complaint(error.errors(), path, text, variables)) from error
    except (SettingsError, RecursionError) as error:
        raise BadInput(f"environment: {one_line(str(error))}") from error


def config(as_json: AsJson = False) -> Answer:
    """Print the settings and where each comes from. Passwords are never shown."""
    settings = load_settings()
    path = Settings.file()
    _, written = _read(path)
    variables = _variables(os.environ)
    rows: list[Setting] = []
    for table in TABLES:
        for key, value in getattr(settings, table).model_dump(mode="json").items():
            origin = "default"
            if key in written.get(table, {}):
                origin = "file"
            origin = variables.get((table, key), origin)
            shown = without_password(value) if isinstance(value, str) and "://" in value else value
            rows.append(Setting(table=table, key=key, value=shown, origin=origin))
    return Answer(Configuration(file=str(path) if path else None, settings=tuple(rows)), as_json)


def without_password(url: str) -> str:
    """Return the URL with its password, wherever it stands, replaced by `***`.

    >>> without_password("postgresql+psycopg://gleaner:secret@db/gleaner?password=secret")
    'postgresql+psycopg://gleaner:***@db/gleaner?password=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|secret|token)=)[^&]*", r"\1***", masked)


def _read(path: Path | None) -> tuple[str, Mapping[str, Any]]:
    if path is None:
        return "", {}
    try:
        text = path.read_bytes().decode("utf-8")  # line ends as they are, as the settings read them
        return text, tomllib.loads(text)
    except FileNotFoundError:
        raise BadInput(f"{path}: no such settings file; GLEANER_SETTINGS names it") from None
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise BadInput(f"{path}: {said}; set GLEANER_SETTINGS to a settings file that you may read") from None
    except (ValueError, RecursionError) as error:  # tomllib raises Python's own for a number of 5000 digits
        raise BadInput(f"{path}: not valid TOML: {one_line(str(error))}") from None


def _variables(environment: Mapping[str, str]) -> dict[tuple[str, str], str]:
    """Return our variables by the table and key that they set. The agent's variables have a prefix of their own."""
    found: dict[tuple[str, str], str] = {}
    for variable in environment:
        table, separator, key = variable.upper().removeprefix(PREFIX).partition("__")
        if variable.upper().startswith(PREFIX) and separator and not table.startswith("AGENT_"):
            found[table.lower(), key.lower()] = variable
    return found


def _complaint(
    errors: list[ErrorDetails], path: Path | None, text: str, variables: Mapping[tuple[str, str], str]
) -> str:
    error = errors[0]
    table, key = (str(part) for part in (*error["loc"], "", "")[:2])
    variable = variables.get((table, key))
    line = _line(text, table, key)
    if variable is not None:
        where = f"environment variable {variable}"
    elif path is not None and (line is not None or not any(known == table for known, _ in variables)):
        where = f"{path}, line {line}" if line is not None else str(path)
    else:
        where = "environment variables " + ", ".join(sorted(v for (t, _), v in variables.items() if t == table))
    *inner, last = [str(part) for part in error["loc"][1:] if part != "[key]"] or [""]
    if error["type"] == "extra_forbidden":
        said = unknown_key(last or table, known_keys(Settings, error["loc"][:-1]))
        said = f"[{'.'.join((table, *inner))}] {said}" if last else said
    else:
        said = complaint(f"[{table}] {'.'.join((*inner, last))}".rstrip(), error)
    more = f" (and {len(errors) - 1} more)" if len(errors) > 1 else ""
    return one_line(f"{where}: {said}{more}")


def _line(text: str, table: str, key: str) -> int | None:
    """Return the line of a key, or of its table's head if the whole table is wrong; None if neither line is found."""
    inside = ""
    head: int | None = None
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[\s*([\w-]+)\s*\]", line):
            inside = header.group(1)
            if inside == table:
                head = number
            continue
        here = key if inside == table else table if not inside else ""
        if here and re.match(rf"\s*[\"']?{re.escape(here)}[\"']?\s*=", line):
            return number
    return None if key else head
