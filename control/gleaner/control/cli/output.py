"""The answer of a verb. Only `render` turns it into text."""

from dataclasses import dataclass
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]
"""The option of every verb that prints a table."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A value to print on stdout (None for nothing), remarks for stderr, and the exit code."""

    value: object
    as_json: bool = False
    remarks: tuple[str, ...] = ()
    exit_code: int = 0
