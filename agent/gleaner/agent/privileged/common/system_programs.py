"""Run the system's programs, and read what they print, whatever bytes that is.

What a program prints may come from anybody: Slurm shows the comments and names of all users as they were given.

Standard library only: root's programs, the Slurm admin service, the agent and control all run programs through this
module.
"""

from __future__ import annotations  # the node may have Python 3.9

import errno
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...system.untrusted import text_of


def version_of_criu(program: str, *, within_s: float) -> str:
    """Return CRIU's version; "" if the program cannot be run, or does not say it."""
    try:
        lines = run([program, "--version"], within_s=within_s).stdout.splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("Version:")), "")


class ProgramResult(NamedTuple):
    """A program that has ended: its exit status, and what it has printed."""

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
    """Run a program to its end. `stdin` is its standard input; `pass_fds` are descriptors that it inherits.

    In what it prints, NUL and what is no UTF-8 are replaced (`text_of`). Raises `TimeoutError` if the program takes
    longer than `within_s`, and any other `OSError` if it cannot be run: a word with NUL is no argument of a program.
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
