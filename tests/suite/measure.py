"""Prints the size of the code: lines, files, names that mean two things, and what is too long to read at once.

    python3 -m tests.suite.measure

Lines are those of the files, with docstrings, comments and blank lines. A class or a function is public if no part of
its name begins with an underscore.
"""

import ast
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.suite.cleaner import ROOT

AREAS = {
    "agent": ("agent",),
    "control": ("control/gleaner/control", "-control/gleaner/control/simulation"),
    "simulation": ("control/gleaner/control/simulation",),
    "lab": ("lab",),
    "tests": ("tests",),
}
"""The folders of each column; without those after a minus sign."""
BODIES = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
QUESTION_WORDS = ("What", "Whether", "How", "Which", "Where")
LONGEST_MODULE = 600
MOST_PARAMETERS = 8


@dataclass(slots=True)
class Size:
    """The figures of one column."""

    files: int = 0
    lines: int = 0
    functions: int = 0
    docstrings: int = 0
    classes: Counter[str] = field(default_factory=Counter[str])
    question_docstrings: list[str] = field(default_factory=list[str])
    long_modules: list[str] = field(default_factory=list[str])
    wide_functions: list[str] = field(default_factory=list[str])

    def add(self, name: str, text: str) -> None:
        """Count one file."""
        tree = ast.parse(text)
        lines = text.count("\n")
        self.files += 1
        self.lines += lines
        if lines > LONGEST_MODULE:
            self.long_modules.append(f"{name} ({lines})")
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                self.classes[node.name] += 1
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                self.functions += 1
                count = len(node.args.posonlyargs) + len(node.args.args) + len(node.args.kwonlyargs)
                if count > MOST_PARAMETERS:
                    self.wide_functions.append(f"{name}: {node.name} ({count})")
        for docstring in docstrings(tree):
            self.docstrings += 1
            if docstring.split(maxsplit=1)[:1] and docstring.split(maxsplit=1)[0] in QUESTION_WORDS:
                self.question_docstrings.append(f"{name}: {docstring.splitlines()[0]}")

    @property
    def ambiguous(self) -> list[str]:
        """Return the public class names that are given more than once."""
        return sorted(name for name, count in self.classes.items() if count > 1)


def docstrings(tree: ast.Module) -> Iterator[str]:
    """Yield all docstrings of a file, those below a field among them."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, BODIES)]
    for value in (statement.value for body in bodies for statement in body if isinstance(statement, ast.Expr)):
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.value.strip()


def python_files(folders: Iterable[str]) -> list[Path]:
    """Return the files of these folders; a folder that begins with a minus sign is left out."""
    left_out = [ROOT / folder[1:] for folder in folders if folder.startswith("-")]
    files = {file for folder in folders if not folder.startswith("-") for file in (ROOT / folder).rglob("*.py")}
    return sorted(file for file in files if not any(file.is_relative_to(folder) for folder in left_out))


def measured(folders: Iterable[str]) -> Size:
    """Return the figures of these folders."""
    size = Size()
    for file in python_files(folders):
        size.add(str(file.relative_to(ROOT)), file.read_text(encoding="utf-8"))
    return size


def main() -> None:
    """Print the table, then the names behind its smaller figures."""
    sizes = {name: measured(folders) for name, folders in AREAS.items()}
    rows: dict[str, list[object]] = {
        "lines": [size.lines for size in sizes.values()],
        "files": [size.files for size in sizes.values()],
        "classes": [size.classes.total() for size in sizes.values()],
        "functions": [size.functions for size in sizes.values()],
        f"modules over {LONGEST_MODULE} lines": [len(size.long_modules) for size in sizes.values()],
        f"functions with more than {MOST_PARAMETERS} parameters": [len(one.wide_functions) for one in sizes.values()],
        "class names given twice": [len(size.ambiguous) for size in sizes.values()],
        "docstrings that open with a question word": [len(size.question_docstrings) for size in sizes.values()],
    }
    print(f"{'':44}" + "".join(f"{name:>12}" for name in sizes))
    for title, figures in rows.items():
        print(f"{title:44}" + "".join(f"{figure:>12,}" for figure in figures))
    for name, size in sizes.items():
        if name == "tests":
            continue
        for one in (*size.long_modules, *size.wide_functions, *size.question_docstrings):
            print(f"{name}: {one}")
        if size.ambiguous:
            print(f"{name}: given twice: {', '.join(size.ambiguous)}")


if __name__ == "__main__":
    main()
