"""The failures of the command line itself, and their exit codes. Control's failures are `gleaner.client.ClientError`.

Every message is one line for a person, with the fault and the remedy. `main` prints it on stderr after `glean: `.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from gleaner.client import ClientError

T = TypeVar("T")


class CliError(Exception):
    """The error for a negative answer, for example because the disk is full or a required program failed."""

    exit_code = 1


class BadInput(CliError):
    """The error for a wrong option, campaign file or settings file. Nothing was done."""

    exit_code = 2


def parsed(option: str, parse: Callable[[str], T], text: str) -> T:
    """Return the parsed value of the option's text. Raises `BadInput`."""
    try:
        return parse(text)
    except ValueError as error:
        raise BadInput(f"{option} {error}") from None


def exit_code_of(error: "ClientError") -> int:
    """Return the exit code of a failure of control: 1 no, 2 wrong usage, 3 control not reached or not allowed."""
    return {"refused": 1, "conflict": 1, "invalid": 2}.get(error.kind, 3)
