"""Prints the size of the code: the code lines of each room beside its limit in `budget.toml`, and what is long.

    python3 -m tests.suite.measure

A code line holds a token that is not a part of a comment or of a docstring. A string below a field is a docstring.
A room is one or more folders. A file belongs to the room with the longest of the folders that hold the file.
"""

import ast
import io
import tokenize
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache

from tests.suite.cleaner import ROOT

BUDGET = ROOT / "tests" / "suite" / "budget.toml"
FOLDERS = {
    "agent": "agent/gleaner/agent",
    "client": "client/gleaner/client",
    "simulation": "control/gleaner/control/simulation",
    "control": "control/gleaner/control",
    "lab": "lab",
    "tests": "tests",
}
"""By the first part of a room's name, the folder that it stands for."""
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
LONGEST_MODULE = 600
MOST_PARAMETERS = 8
SLACK_SHARE, SLACK_LINES = 0.03, 40
"""A room that is below its limit by more than both of these needs a lower limit."""


@dataclass(slots=True)
class Size:
    """The figures of some files."""

    code_lines: Counter[str] = field(default_factory=Counter[str])
    """By room."""
    classes: Counter[str] = field(default_factory=Counter[str])
    """By name."""
    functions: int = 0
    too_long: list[str] = field(default_factory=list[str])

    def add(self, name: str, room: str, text: str) -> None:
        """Count one file. Classes, functions and what is too long are of the product alone."""
        self.code_lines[room] += code_lines(text)
        if room == "tests":
            return
        if text.count("\n") > LONGEST_MODULE:
            self.too_long.append(f"{name}: {text.count(chr(10))} lines")
        for one in ast.walk(ast.parse(text)):
            if isinstance(one, ast.ClassDef):
                self.classes[one.name] += 1
            if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions += 1
                count = len(one.args.posonlyargs) + len(one.args.args) + len(one.args.kwonlyargs)
                if count > MOST_PARAMETERS:
                    self.too_long.append(f"{name}: {one.name} has {count} parameters")


def code_lines(text: str) -> int:
    """Return the number of code lines of a file."""
    code: set[int] = set()
    statement: list[tokenize.TokenInfo] = []
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NEWLINE:
            if any(each.type != tokenize.STRING for each in statement):  # else it is a docstring
                code.update(*(range(each.start[0], each.end[0] + 1) for each in statement))
            statement = []
        elif token.type not in LAYOUT:
            statement.append(token)
    return len(code)


def limits() -> dict[str, int]:
    """Return the limit of each room, in code lines."""
    rooms: dict[str, int] = tomllib.loads(BUDGET.read_text(encoding="utf-8"))["rooms"]
    return rooms


def faults(code_lines: Counter[str], limits: dict[str, int]) -> list[str]:
    """Return a line for each room that is above its limit, or so far below that the limit has to be lowered."""
    found = [
        f"{room}: {code_lines[room]} code lines, and its limit is {limit}: delete, merge, or use a library"
        for room, limit in limits.items()
        if code_lines[room] > limit
    ]
    return found + [
        f"{room}: {code_lines[room]} code lines: lower its limit of {limit} in {BUDGET.name} to that"
        for room, limit in limits.items()
        if limit - code_lines[room] > max(SLACK_SHARE * limit, SLACK_LINES)
    ]


@cache
def measured() -> Size:
    """Return the figures of the product and of the tests."""
    folders = {
        ROOT / FOLDERS[first] / rest: room
        for room in limits()
        for first, _, rest in (folder.partition("/") for folder in room.split(", "))
    }
    files = {file for folder in FOLDERS.values() for file in (ROOT / folder).rglob("*.py")}
    size = Size()
    for file in sorted(files):
        room = folders[next(folder for folder in file.parents if folder in folders)]
        size.add(str(file.relative_to(ROOT)), room, file.read_text(encoding="utf-8"))
    return size


def main() -> None:
    """Print a table of the rooms, then what is too long."""
    size, budget = measured(), limits()
    for room, limit in budget.items():
        print(f"{room:44}{size.code_lines[room]:>8,} of {limit:>6,} code lines")
    product = sum(lines for room, lines in size.code_lines.items() if room != "tests")
    print(f"{'product':44}{product:>8,} code lines, {size.classes.total():,} classes, {size.functions:,} functions")
    twice = sorted(name for name, count in size.classes.items() if count > 1 and not name.startswith("_"))
    print(f"public class names given twice: {', '.join(twice)}")
    print(*size.too_long, *faults(size.code_lines, budget), sep="\n")


if __name__ == "__main__":
    main()
