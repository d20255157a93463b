"""The answer of a verb; `render` alone turns it into text."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for programs instead of tables for people.")]
"""The option of every verb that prints a table."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A value to print on stdout (None: nothing), remarks for stderr, and the exit code."""

    value: object
    as_json: bool = False
    remarks: tuple[str, ...] = ()
    exit_code: int = 0


@dataclass(frozen=True, slots=True)
class DryRunJob:
    """A job as it would be submitted."""

    index: int | None
    parameters: Mapping[str, str] | None
    command: Sequence[str]
    environment: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class DryRun:
    """The first jobs that a submission would have, and how many they would be."""

    first: tuple[DryRunJob, ...]
    total: int


@dataclass(frozen=True, slots=True)
class Setting:
    """One effective setting. `origin` is `default`, `file` or the variable that set it. Secrets are masked."""

    table: str
    key: str
    value: object
    origin: str


@dataclass(frozen=True, slots=True)
class Configuration:
    """All effective settings, and the file from which some of them come."""

    file: str | None
    settings: tuple[Setting, ...]
