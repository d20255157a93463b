"""`glean config`, which prints the settings and their origins."""

import json
import os
import re
from collections.abc import Sequence
from typing import Any, cast

from gleaner.control.cli.output import Answer, AsJson
from gleaner.control.effective_settings import TABLES, load_settings, settings_file, settings_variables


def config(as_json: AsJson = False) -> Answer:
    """Print the settings and where each comes from. Passwords are never shown."""
    settings = load_settings()
    file = settings_file()
    variables = settings_variables(os.environ)
    rows: list[dict[str, Any]] = []
    for table in TABLES:
        for key, value in getattr(settings, table).model_dump(mode="json").items():
            origin = variables.get((table, key), "file" if key in file.tables.get(table, {}) else "default")
            shown = without_password(value) if isinstance(value, str) and "://" in value else value
            rows.append({"table": table, "key": key, "value": shown, "origin": origin})
    path = str(file.path) if file.path else None
    return Answer({"file": path, "settings": rows} if as_json else toml(path, rows), as_json)


def without_password(url: str) -> str:
    """Return the URL with its password, wherever it appears, replaced by `***`.

    >>> without_password("postgresql+psycopg://gleaner:secret@db/gleaner?password=secret")
    'postgresql+psycopg://gleaner:***@db/gleaner?password=***'
    """
    masked = re.sub(r"(://[^/:@]*:).*@", r"\1***@", url)
    return re.sub(r"(?i)((?:password|passwd|secret|token)=)[^&]*", r"\1***", masked)


def toml(path: str | None, rows: Sequence[dict[str, Any]]) -> str:
    """Return all settings as TOML, each with a comment that names its origin. Missing settings become comments."""
    lines, table = [f"# file: {path or 'none'}"], ""
    for row in rows:
        if row["table"] != table:
            table = row["table"]
            lines += ["", f"[{table}]"]
        key, value = row["key"], row["value"]
        lines.append(f"# {key} is not set" if value is None else f"{key} = {in_toml(value)}")
        lines[-1] += f"  # {row['origin']}"
    return "\n".join(lines)


def in_toml(plain: object) -> str:
    r"""Return a plain value in TOML.

    >>> in_toml(['a"b', True, 3])
    '["a\\"b", true, 3]'
    >>> in_toml({"physics": 50.0})
    '{"physics" = 50.0}'
    >>> in_toml({"jobs": 5, "cores": None})
    '{"jobs" = 5}'
    """
    if isinstance(plain, dict):
        pairs = cast("dict[str, object]", plain).items()
        return "{" + ", ".join(f"{in_toml(key)} = {in_toml(item)}" for key, item in pairs if item is not None) + "}"
    # In JSON and TOML, strings, numbers, truth values and lists of them are equal once DEL is escaped.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
