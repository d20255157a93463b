"""Scripts that use root's programs, in processes of their own."""

import sys
from pathlib import Path

from gleaner.agent.privileged.common import config

PACKAGE = str(Path(config.__file__).parents[4])


def python(script: str, *words: str) -> list[str]:
    """Return the command that runs a script in Python, where Gleaner can be imported."""
    return [sys.executable, "-c", f"import sys; sys.path.insert(0, {PACKAGE!r})\n{script}", *words]


def in_own_mounts(script: str, *words: str) -> list[str]:
    """Return the command that does so in a mount namespace of its own."""
    return ["unshare", "-m", *python(script, *words)]
