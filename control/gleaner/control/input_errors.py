"""Mistakes in users' input, each reported in one line with the place, the expected value and the actual one.

Settings, scenarios, campaign files and options use this module for all their error messages.
"""

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

RULES = {
    "[A-Za-z0-9._-]": "must begin with a letter or digit and have at most 63 letters, digits, '.', '_' and '-'",
    "[A-Za-z_]": "must be a variable's name: letters, digits and '_'",
    "100%": "must be like 5 or 10%",
    "[A-Za-z0-9._:/@-]": "must be an image's name: letters, digits, '.', '_', ':', '/', '@' and '-'",
    r"[^\x00]": "must not hold NUL characters",
    r"[^\x00-\x1f\x7f]": "must have no line ends or other control characters",
}
"""The meanings of the patterns in `models.jobs`, by a part of each pattern."""


class InputError(Exception):
    """A mistake in a file, an option or a variable. Its text is one line that names the place."""

    def __init__(self, text: str) -> None:
        super().__init__(one_line(text))


@dataclass(frozen=True, slots=True)
class TomlFile:
    """A TOML file: its values, and its text, in which the lines of keys are found. `path` is None if there is no
    file."""

    path: Path | None
    text: str
    tables: dict[str, Any]

    def place(self, key: Sequence[str]) -> str:
        """Return the file, and the line of the key or of the nearest table around it if there is one."""
        line = toml_line(self.text, key)
        return f"{self.path}" if line is None else at_line(str(self.path), line)


def read_text(path: Path, *, missing: str, unreadable: str) -> str:
    """Return the text of a file with its original line ends. Raises an `InputError` that names the file.

    The error message for a file that does not exist ends with `missing`. That for an unreadable file ends with the
    reason and `unreadable`.
    """
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise InputError(f"{path}: {missing}") from None
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}{unreadable}") from None
    except UnicodeDecodeError:
        raise InputError(f"{path}: not UTF-8 text{unreadable}") from None


def read_toml(path: Path | None, *, missing: str, unreadable: str = "") -> TomlFile:
    """Return a TOML file, or an empty one for None. Raises an `InputError` that names the file."""
    if path is None:
        return TomlFile(None, "", {})
    text = read_text(path, missing=missing, unreadable=unreadable)
    try:
        return TomlFile(path, text, tomllib.loads(text))
    except (ValueError, RecursionError) as error:  # tomllib raises Python's own error for a number of 5000 digits
        raise InputError(f"{path}: not valid TOML: {error}") from None


def at_line(name: str, line: int) -> str:
    """Return the place of a line, counted from 1, in the file that the user calls `name`."""
    return f"{name}, line {line}"


def toml_line(text: str, key: Sequence[str]) -> int | None:
    r"""Return the line of a key, or of the nearest surrounding table, or None if the text has neither.

    >>> toml_line("[rounds]\nlength_s = 5", ("rounds", "length_s")), toml_line("[rounds]", ("rounds", "length_s"))
    (2, 1)
    >>> toml_line("[[a]]\nb = 1\n[[a]]\nb = 2", ("a", "1", "b"))
    4
    """
    found: int | None = None
    depth = 0
    header: tuple[str, ...] = ()
    entries = Counter[tuple[str, ...]]()  # for arrays of tables, by the array's name
    for number, line in enumerate(text.split("\n"), start=1):
        written: tuple[str, ...] = ()
        if match := re.match(r"\s*\[{1,2}\s*([^\]]+?)\s*\]", line):
            written = header = _names(match.group(1))
            if line.lstrip().startswith("[["):
                header = (*written, str(entries[written]))
                entries[written] += 1
                written = header
        elif match := re.match(r"\s*([\w.\"' -]+?)\s*=", line):
            written = (*header, *_names(match.group(1)))
        meets = min(len(written), len(key))  # a table within the requested table counts as well
        if meets > depth and written[:meets] == tuple(key[:meets]):
            found, depth = number, meets
    return found


def _names(dotted: str) -> tuple[str, ...]:
    return tuple(name.strip().strip("\"'") for name in dotted.split("."))


def one_line(text: str) -> str:
    """Return the text without line ends and control characters, so that a message cannot control the terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def visible(text: str) -> str:
    r"""Return the text with control characters, except tabs, shown as escapes.

    >>> visible("\x1b[2Jgone")
    '\\x1b[2Jgone'
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c == "\t" else c.encode("unicode_escape").decode() for c in text)


def complaint(name: str, error: ErrorDetails) -> str:
    """Return one line with the name by which the user knows the value, the condition that it must meet, and the value.

    >>> complaint("cpus", {"type": "greater_than_equal", "loc": ("cpus",), "msg": "Input should be ...",
    ...                    "input": -3, "ctx": {"ge": 1}})
    'cpus must be at least 1, found -3'
    """
    said = _expectation(error)
    return one_line(f"{name} {said}" if said.startswith(("must ", "is ")) else f"{name}: {said}")


def table_complaint(model: type[BaseModel], error: ErrorDetails, *, place: str = "", option: str = "") -> str:
    """Return one line about a value in the tables that `model` describes.

    `place` is the file and line, or the variable, that contains the value. If an option has set the value, `option` is
    named instead of the key.
    """
    path = [str(part) for part in error["loc"] if part != "[key]"]
    if error["type"] == "extra_forbidden":
        said = unknown_key(path[-1], known_keys(model, path[:-1]))
        table = f"[{'.'.join(path[:-1])}] " if path[:-1] else ""
        said = f"{option}: {said}" if option else f"{table}{said}"
    else:
        key = f"[{path[0]}] {'.'.join(path[1:])}".rstrip() if path else ""
        said = complaint(option or key, error).removeprefix(": ")
    return one_line(f"{place}: {said}" if place else said)


def _expectation(error: ErrorDetails) -> str:
    limits = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal":
            said = f"must be at least {_plain(limits['ge'])}"
        case "greater_than":
            said = f"must be more than {_plain(limits['gt'])}"
        case "less_than_equal":
            said = f"must be at most {_plain(limits['le'])}"
        case "union_tag_invalid":
            key = limits["discriminator"].strip("'")
            return f"{key} must be one of {limits['expected_tags']}, found {limits['tag']!r}"
        case "path_type":
            said = "must be a file's name"
        case "missing":
            return "is missing"
        case "value_error":
            return error["msg"].removeprefix("Value error, ")
        case "string_pattern_mismatch":
            said = next((rule for part, rule in RULES.items() if part in limits["pattern"]), "cannot be this")
        case "string_too_short" | "string_too_long":
            return error["msg"].replace("String should", "must")
        case _ if error["msg"].startswith("Input should "):
            said = error["msg"].replace("Input should", "must", 1)
        case _:
            return error["msg"]
    return said + _found(error["input"])


def _plain(number: float) -> str:
    return str(int(number)) if float(number).is_integer() else str(number)


def _found(value: object) -> str:
    """Return `, found VALUE` for a value that is short enough to be shown, otherwise ""."""
    shown = repr(value)
    return f", found {shown}" if isinstance(value, str | int | float | bool) and len(shown) <= 80 else ""


def unknown_key(key: str, allowed: Iterable[str]) -> str:
    """Return a line for an unknown key, with the key that was probably meant and all allowed keys."""
    names = sorted(allowed)
    near = difflib.get_close_matches(key, names, n=1)
    meant = f", did you mean {near[0]!r}?" if near else ";"
    return f"unknown key {key!r}{meant} Allowed here: {', '.join(names)}".replace("; Allowed", "; allowed")


def known_keys(model: type[BaseModel], path: Sequence[object]) -> Iterable[str]:
    """Return the allowed keys in a table of the settings `model`, given the table's path.

    >>> class Machine(BaseModel):
    ...     nodes: int
    >>> class Settings(BaseModel):
    ...     machines: dict[str, Machine] | None
    >>> list(known_keys(Settings, ())), list(known_keys(Settings, ("machines", "big")))
    (['machines'], ['nodes'])
    """
    for part in path:
        field = model.model_fields.get(str(part))  # None for a map's key or a number, whose field came before
        model = model if field is None else _model_in(field.annotation) or model
    return model.model_fields


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model that an annotation names, or the one in an annotated map or list."""
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
