"""Run the system's programs, and read their output, whatever bytes it contains.

Any user can influence what a program prints. For example, Slurm shows the comments and job names of all users
unchanged.

This module uses only the standard library, because root's programs, the Slurm admin service, the agent and control all
run programs through this module.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...system.untrusted import text_of


def version_of_criu(program: str, *, within_s: float) -> str:
    """Return CRIU's version, or "" if the program cannot be run or does not print it."""
    try:
        lines = run([program, "--version"], within_s=within_s).stdout.splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")


class ProgramResult(NamedTuple):
    """The result of a program that has ended: its exit status and its output."""

    status: int
    stdout: str
    stderr: str


def run(
    words: Sequence[str],
    *,
    within_s: float | None,
    stdin: str = "",
    environment: Mapping[str, str] | None = None,
    folder: str | None = None,
    pass_fds: Sequence[int] = (),
) -> ProgramResult:
    """Run a program to its end. `stdin` is its standard input, and `pass_fds` are descriptors that it inherits.

    In its output, NUL and bytes that are not UTF-8 are replaced (`text_of`). Raises `TimeoutError` if the program takes
    longer than `within_s`, and any other `OSError` if it cannot be run, for example because an argument contains NUL.
    """
    try:
        result = subprocess.run(
            words,
            input=stdin.encode("utf-8", "replace"),
            capture_output=True,
            timeout=within_s,
            check=False,
            env=environment,
            cwd=folder,
            pass_fds=tuple(pass_fds),
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(errno.ETIMEDOUT, f"{words[0]} took more than {within_s:g} s") from error
    except ValueError as error:
        raise OSError(errno.EINVAL, f"{os.strerror(errno.EINVAL)}: {error}") from error
    return ProgramResult(result.returncode, text_of(result.stdout), text_of(result.stderr))
