"""The failures of the command line itself, and their exit codes. Control's failures are `gleaner.client.ClientError`.

Every message is one line for a person: what is wrong, and what to do. `main` prints it on stderr after `glean: `.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gleaner.client import ClientError


class CliError(Exception):
    """The answer is negative: the disk is full, or a program that is needed failed."""

    exit_code = 1


class BadInput(CliError):
    """A wrong option, campaign file or settings file; nothing was done."""

    exit_code = 2


def exit_code_of(error: "ClientError") -> int:
    """Return the exit code of a failure of control: 1 no, 2 wrong usage, 3 control not reached or not allowed."""
    return {"refused": 1, "conflict": 1, "invalid": 2}.get(error.kind, 3)
