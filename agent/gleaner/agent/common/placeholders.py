"""Fill placeholders in a campaign's texts: `{mass}`, `{index:05d}` and `{mass:.1f}` stand for values of each job.

The formats are Python's for numbers and texts. Attributes, items, conversions and nested formats are refused, so a text
can use only the values. `{{` and `}}` stand for single braces.
"""

import re
from collections.abc import Mapping
from string import Formatter

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}", re.ASCII)
_FORMAT = re.compile(r"(?:[^{}]?[<>=^])?[-+ ]?#?0?\d{0,3}[,_]?(?:\.\d{1,3})?[bdeEfFgGosxX%]?", re.ASCII)
_WHOLE = re.compile(r"[-+]?\d+", re.ASCII)
_NUMBER = re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?", re.ASCII)


def parts(text: str) -> list[tuple[str, str | None, str]]:
    """Return the literal parts of a text, each with the name and the format that follow it, or None at the end.

    Raises `ValueError` with a description of the mistake.

    >>> parts("run-{index:05d}.root")
    [('run-', 'index', '05d'), ('.root', None, '')]
    """
    try:
        read = list(Formatter().parse(text))
    except ValueError:
        raise ValueError("has a single brace: write {{ or }} for a brace, or {name} for a parameter") from None
    for _, name, form, conversion in read:
        if name is None:
            continue
        if conversion or not _NAME.fullmatch(name):
            written = name + (f"!{conversion}" if conversion else "")
            raise ValueError(
                f"has {{{written[:60]}}}: only names of parameters stand in braces, as in {{mass}} or {{mass:.1f}};"
                " write {{ for a brace"
            )
        if not _FORMAT.fullmatch(form or ""):
            raise ValueError(f"has {{{name}:{(form or '')[:60]}}}: the format must be like 05d, .1f or >8")
    return [(literal, name, form or "") for literal, name, form, _ in read]


def formatted(value: str, form: str) -> str:
    """Return a value in this format or, without a format, as it was written.

    Raises `ValueError` if the value cannot have this format.

    >>> formatted("007", ""), formatted("7", "03d"), formatted("91.1876", ".1f"), formatted("monash", ">8")
    ('007', '007', '91.2', '  monash')
    """
    if not form:
        return value
    number: str | int | float = value
    if form[-1] != "s":
        number = int(value) if _WHOLE.fullmatch(value) else float(value) if _NUMBER.fullmatch(value) else value
    try:
        return format(number, form)
    except (ValueError, OverflowError):
        raise ValueError(f"{value[:60]!r} cannot be written as {form}") from None


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a checked text with its placeholders replaced.

    >>> filled("m{mass:.1f}/{index} {{}}", {"mass": "100", "index": "7"})
    'm100.0/7 {}'
    """
    if "{" not in text and "}" not in text:
        return text
    return "".join(
        literal + ("" if name is None else formatted(values[name], form)) for literal, name, form in parts(text)
    )
