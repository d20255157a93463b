"""List the files of root's programs on a node: copies of the modules here and in `../system`, and their start scripts.

`glean setup node` writes them. They are copies, so that they do not change while an agent runs. The system's own Python
runs them.
"""

from __future__ import annotations  # the node may have Python 3.9

import os
import stat
from collections.abc import Iterator
from typing import NamedTuple

from .common import config

HELPER = "/usr/local/sbin/gleaner-helper"
PYTHON = "/usr/bin/python3"
_PACKAGES = ("privileged", "system")
_PROGRAM = """\
#!{python} -IS
# Put here by `glean setup node`, which writes it again when the settings change.
import sys

sys.path.insert(0, {library!r})
from gleaner.agent.privileged.{module} import main

main({arguments})
"""


class ProgramFile(NamedTuple):
    """A file of root's programs, with its path on the node."""

    path: str
    content: bytes
    mode: int = 0o644


def files_of_programs(settings: config.Config) -> Iterator[ProgramFile]:
    """Yield all files. Raises `Misconfigured` if accounts other than root could change code that root would run."""
    source = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    for folder, _, names in sorted(each for package in _PACKAGES for each in os.walk(os.path.join(source, package))):
        for name in sorted(names):
            if name.endswith((".py", ".sh", "gleaner-init")):
                path = os.path.join(folder, name)
                must_be_roots(path)
                with open(path, "rb") as file:
                    place = f"{settings.library}/gleaner/agent/{os.path.relpath(path, source)}"
                    yield ProgramFile(place, file.read(), 0o644 if name.endswith(".py") else 0o755)
    must_be_roots(os.path.join(source, "privileged", "init", "gleaner-init"))  # check that it exists
    # Each program has its path, the module whose `main` it calls, and the arguments.
    for path, module, arguments in (
        (settings.shim, "shim.main", repr(settings.runc)),
        (f"{settings.library}/bin/criu", "shim.criu_call", ""),
        (HELPER, "helper.main", ""),
    ):
        text = _PROGRAM.format(python=PYTHON, library=settings.library, module=module, arguments=arguments)
        yield ProgramFile(path, text.encode(), 0o755)


def must_be_roots(path: str) -> None:
    """Raise `Misconfigured` if accounts other than root can change this file, which root runs, or a folder above it."""
    at = os.path.realpath(path)
    while True:
        try:
            facts = os.stat(at)
        except OSError as error:
            raise config.Misconfigured(f"{path} cannot be used: {error.strerror}: install it again") from error
        sticky = stat.S_ISDIR(facts.st_mode) and facts.st_mode & stat.S_ISVTX
        if facts.st_uid not in (0, os.geteuid()) or (facts.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not sticky):
            wrong = f"{path} would be run by root, and {at} is not root's alone"
            raise config.Misconfigured(f"{wrong}: chown root {at}; chmod go-w {at}")
        if at == "/":
            return
        at = os.path.dirname(at)
