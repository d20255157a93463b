"""Write the man pages of `glean`, one a command, as `--help` has them: `python packaging/man_pages.py FOLDER`."""

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gleaner.control.api.health import installed_version
from gleaner.control.cli.app import command


def escaped(text: str) -> str:
    r"""Return text as roff takes it (groff(7)).

    >>> escaped(".a -b\\c")
    '\\&.a \\-b\\ec'
    """
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def page(verb: Any, context: Any, below: list[tuple[str, str]]) -> str:
    """Return the man page of one command; `below` are its own commands, with a line each."""
    name = context.command_path
    title = name.replace(" ", "-").upper()
    paragraphs = inspect.cleandoc(verb.help or "").split("\n\n")
    parts = [
        f'.TH "{escaped(title)}" "1" "" "Gleaner {escaped(installed_version())}" "User Commands"',
        ".SH NAME",
        f"{escaped(name.replace(' ', '-'))} \\- {escaped(' '.join(paragraphs[0].split()))}",
        ".SH SYNOPSIS",
        f".B {escaped(name)}",
        escaped(" ".join(verb.collect_usage_pieces(context))),
    ]
    if paragraphs[1:]:
        parts += [".SH DESCRIPTION", "\n.PP\n".join(escaped(" ".join(each.split())) for each in paragraphs[1:])]
    for heading, rows in (("OPTIONS", list(_options(verb, context))), ("COMMANDS", below)):
        if rows:
            parts.append(f".SH {heading}")
            parts += [f".TP\n.B {escaped(left)}\n{escaped(' '.join(right.split()))}" for left, right in rows]
    return "\n".join(parts) + "\n"


def _options(verb: Any, context: Any) -> Iterator[tuple[str, str]]:
    for parameter in verb.params:
        if not getattr(parameter, "hidden", False) and (record := parameter.get_help_record(context)) is not None:
            yield record


def pages(verb: Any, name: str, parent: Any = None) -> Iterator[tuple[str, str]]:
    """Yield the file name and the content of a command's page, and of those below it."""
    verb = getattr(verb, "whole", verb)
    context = verb.context_class(verb, info_name=name, parent=parent)
    inner = {each: found for each, found in getattr(verb, "commands", {}).items() if not found.hidden}
    lines = [(each, found.get_short_help_str(limit=200)) for each, found in inner.items()]
    yield f"{context.command_path.replace(' ', '-')}.1", page(verb, context, lines)
    for each, found in inner.items():
        yield from pages(found, each, context)


def main(folder: Path) -> None:
    """Write all pages into the folder."""
    for name, content in pages(command(), "glean"):
        (folder / name).write_text(content)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
