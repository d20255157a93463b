"""Compile the init of the jobs' containers for the wheel, and beside its source for the development environment."""

import platform
import shutil
import subprocess
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

FOLDER = Path("agent", "gleaner", "agent", "privileged", "init")


class CustomBuildHook(BuildHookInterface[Any]):
    """Hatchling's hook: it runs before a wheel is built."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        folder = Path(self.root) / FOLDER
        if version == "editable" and shutil.which("cc") is None:
            return  # deploy/setup.sh installs a compiler before anything needs the init
        new = folder / "gleaner-init.new"
        subprocess.run(
            ["cc", "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-static", "-s", "-o", new, folder / "init.c"],
            check=True,
        )
        new.replace(folder / "gleaner-init")
        if version != "editable":  # a static program runs with any C library
            build_data |= {"pure_python": False, "tag": f"py3-none-manylinux_2_17_{platform.machine()}"}
