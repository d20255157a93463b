"""Settings as TOML text that can be pasted into a settings file."""

import json
from typing import cast

from gleaner.control.cli.output import Configuration


def toml(configuration: Configuration) -> str:
    """Return all settings as TOML, each with a comment that names its origin. Missing settings become comments."""
    lines = [f"# file: {configuration.file or 'none'}"]
    table = ""
    for setting in configuration.settings:
        if setting.table != table:
            table = setting.table
            lines += ["", f"[{table}]"]
        written = f"# {setting.key} is not set" if setting.value is None else f"{setting.key} = {value(setting.value)}"
        lines.append(f"{written}  # {setting.origin}")
    return "\n".join(lines)


def value(plain: object) -> str:
    r"""Return a plain value in TOML.

    >>> value(['a"b', True, 3])
    '["a\\"b", true, 3]'
    >>> value({"physics": 50.0})
    '{"physics" = 50.0}'
    >>> value({"jobs": 5, "cores": None})
    '{"jobs" = 5}'
    """
    if isinstance(plain, dict):
        pairs = cast("dict[str, object]", plain).items()
        return "{" + ", ".join(f"{value(key)} = {value(item)}" for key, item in pairs if item is not None) + "}"
    # In JSON and TOML, strings, numbers, truth values and lists of them are equal once DEL is escaped.
    return json.dumps(plain, ensure_ascii=False).replace("\x7f", "\\u007f")
