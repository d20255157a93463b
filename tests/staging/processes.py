"""The programs that a test has started, as others see them."""

import os
from pathlib import Path


def children() -> set[str]:
    """The processes that this one has started and that have not ended, those of tests before included."""
    tasks = Path(f"/proc/{os.getpid()}/task").iterdir()
    return {child for task in tasks for child in (task / "children").read_text().split()}


def shown_to_others(process: str) -> list[bytes]:
    """The command line and the environment of a process."""
    return [Path(f"/proc/{process}/{name}").read_bytes() for name in ("cmdline", "environ")]
