"""Pydantic's complaints in our words: what was expected, what was found, and what the writer may have meant."""

import difflib
from collections.abc import Iterable, Sequence
from typing import get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

RULES = {
    "[A-Za-z0-9._-]": "must begin with a letter or digit and have at most 63 letters, digits, '.', '_' and '-'",
    "[A-Za-z_]": "must be a variable's name: letters, digits and '_'",
    "[A-Za-z0-9._:/@-]": "must be an image's name: letters, digits, '.', '_', ':', '/', '@' and '-'",
    r"[^\x00]": "must not hold NUL characters",
}
"""The meaning of the patterns in `models.jobs`, by a part of each."""


def one_line(text: str) -> str:
    """Return the text without line ends and control characters, so that a message cannot drive the terminal."""
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
    """Return one line: what must hold for the value that the writer calls `name`, and what was found.

    >>> complaint("cpus", {"type": "greater_than_equal", "loc": ("cpus",), "msg": "Input should be ...",
    ...                    "input": -3, "ctx": {"ge": 1}})
    'cpus must be at least 1, found -3'
    """
    said = _expectation(error)
    return one_line(f"{name} {said}" if said.startswith(("must ", "is ")) else f"{name}: {said}")


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
    """Return `, found VALUE` for a value that is short enough to be shown, else nothing."""
    shown = repr(value)
    return f", found {shown}" if isinstance(value, str | int | float | bool) and len(shown) <= 80 else ""


def unknown_key(key: str, allowed: Iterable[str]) -> str:
    """Return a line for an unknown key: the key that was probably meant, and all that are allowed."""
    names = sorted(allowed)
    near = difflib.get_close_matches(key, names, n=1)
    meant = f", did you mean {near[0]!r}?" if near else ";"
    return f"unknown key {key!r}{meant} Allowed here: {', '.join(names)}".replace("; Allowed", "; allowed")


def known_keys(model: type[BaseModel], path: Sequence[object]) -> Iterable[str]:
    """Return the keys that may stand in a table of the settings `model`, by the table's path.

    >>> class Machine(BaseModel):
    ...     nodes: int
    >>> class Settings(BaseModel):
    ...     machines: dict[str, Machine] | None
    >>> list(known_keys(Settings, ())), list(known_keys(Settings, ("machines", "big")))
    (['machines'], ['nodes'])
    """
    for part in path:
        field = model.model_fields.get(str(part))  # None for the key of a map, or a number: its field came before
        model = model if field is None else _model_in(field.annotation) or model
    return model.model_fields


def _model_in(annotation: object) -> type[BaseModel] | None:
    """Return the model that an annotation names, or that the annotated map or list holds."""
    if isinstance(annotation, type) and not get_args(annotation) and issubclass(annotation, BaseModel):
        return annotation
    return next(filter(None, map(_model_in, get_args(annotation))), None)
