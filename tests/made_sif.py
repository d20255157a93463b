"""SIF files of Apptainer's format, made by the format's own tools."""

import subprocess
from collections.abc import Mapping
from pathlib import Path

_ARCHITECTURES = {"amd64": "2", "arm64": "4"}


def scripts(*, runscript: str, environment: str = "") -> dict[str, str]:
    """Return the files of Apptainer's own that each image has."""
    return {
        ".singularity.d/runscript": f"#!/bin/sh\n{runscript}\n",
        ".singularity.d/env/90-environment.sh": environment,
    }


def fill(root: Path, files: Mapping[str, str]) -> None:
    """Write executable files below `root`."""
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
        path.chmod(0o755)


def make(root: Path, made: Path, *, architecture: str = "amd64") -> Path:
    """Make a SIF file at `made` of the file system below `root`, and return its path."""
    squashed = made.with_suffix(".squashfs")
    _run("mksquashfs", str(root), str(squashed), "-all-root", "-noappend", "-quiet", "-no-progress")
    _run("siftool", "new", str(made))
    options = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch", _ARCHITECTURES[architecture])
    _run("siftool", "add", str(made), str(squashed), *options)
    squashed.unlink()
    return made


def _run(*words: str) -> None:
    subprocess.run(words, check=True, capture_output=True, timeout=600)
