"""SIF files, Apptainer's image format, made by the format's own tools. Apptainer itself is not needed."""

import json
import shlex
import subprocess
import tarfile
from collections.abc import Mapping
from pathlib import Path

from demo import nsenter

_ARCHITECTURES = {"amd64": "2", "arm64": "4"}


def scripts(*, runscript: str, environment: str = "") -> dict[str, str]:
    """Return the files that Apptainer adds to each image."""
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
    """Make a SIF file at `made` from the file system below `root`, and return its path."""
    squashed = made.with_suffix(".squashfs")
    quickly = ("-comp", "gzip", "-Xcompression-level", "1")
    _run("mksquashfs", str(root), str(squashed), "-all-root", "-noappend", "-quiet", "-no-progress", *quickly)
    made.unlink(missing_ok=True)
    _run("siftool", "new", str(made))
    options = ("--datatype", "4", "--parttype", "2", "--partfs", "1", "--partarch", _ARCHITECTURES[architecture])
    _run("siftool", "add", str(made), str(squashed), *options)
    squashed.unlink()
    return made


def of_image(image: str, made: Path) -> Path:
    """Make a SIF file at `made` from an image in our engine, with the image's start command, and return its path."""
    (about,) = json.loads(_run(*nsenter.OUTER, "image", "inspect", image))
    container = _run(*nsenter.OUTER, "create", image).decode().strip()
    root, files = (made.with_name(f"{made.name}.{what}") for what in ("root", "tar"))
    _run("rm", "-rf", str(root))
    try:
        _run(*nsenter.OUTER, "export", "--output", str(files), container)
    finally:
        _run(*nsenter.OUTER, "rm", container)
    with tarfile.open(files) as archive:
        archive.extractall(root, filter="tar")
    files.unlink()
    start = shlex.join(about["Config"]["Entrypoint"])
    variables = (entry.partition("=") for entry in about["Config"]["Env"])
    environment = "".join(f"export {name}={shlex.quote(value)}\n" for name, _, value in variables)
    fill(root, scripts(runscript=f'exec {start} "$@"', environment=environment))
    make(root, made)
    _run("rm", "-rf", str(root))
    return made


def _run(*words: str) -> bytes:
    return subprocess.run(words, check=True, capture_output=True, timeout=600).stdout
