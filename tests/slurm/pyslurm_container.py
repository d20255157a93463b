"""The container of images/slurm-pyslurm, for the tests of this session. Nothing of it stays."""

import shlex
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.slurm.slurm_harness import DOCKER, PROGRAMS, wrap_real_programs
from tests.suite import cleaner

from gleaner.control.slurm import pyslurm_child

IMAGE = "gleaner/slurm-pyslurm:demo"
PYTHON = "pyslurm-python"
UP_S = 60


@dataclass(frozen=True)
class PySlurmContainer:
    """A running container of that image, by its name."""

    name: str

    def put_on(self, path: Path) -> None:
        """Put its programs into the folder `path`, and its Python under a name of its own."""
        names = {name: name for name in (*PROGRAMS, "scontrol")} | {PYTHON: "python3"}
        wrap_real_programs(path, self.name, names)

    def run(self, *words: str, user: str = "root") -> str:
        """Run a program in the container and return what it prints."""
        return _docker("exec", "-u", user, self.name, *words)


@contextmanager
def running() -> Iterator[PySlurmContainer]:
    """The container, once all three nodes are idle."""
    if not _docker("image", "ls", "-q", IMAGE):
        raise RuntimeError(f"there is no image {IMAGE}: images/build.sh --only slurm-pyslurm")
    child = pyslurm_child.__file__
    container = PySlurmContainer(f"gleaner-pyslurm-{uuid.uuid4().hex[:12]}")
    options = (
        "--hostname=lab",
        "--network=none",
        "--init",
        f"--label={cleaner.of_this_run()}",
        f"--volume={child}:{child}:ro",
    )
    _docker("run", "--detach", "--rm", f"--name={container.name}", *options, IMAGE)
    try:
        until_s = time.monotonic() + UP_S
        while _states(container) != "idle idle idle":
            if time.monotonic() > until_s:
                raise RuntimeError(f"Slurm did not come up: {_docker('logs', '--tail=20', container.name)}")
            time.sleep(0.2)
        yield container
    finally:
        _docker("rm", "--force", container.name)


def _states(container: PySlurmContainer) -> str:
    try:
        return " ".join(container.run("sinfo", "--noheader", "--Node", "--format=%T").split())
    except subprocess.CalledProcessError:
        return ""


def _docker(*words: str) -> str:
    done = subprocess.run(
        [*shlex.split(DOCKER), *words], capture_output=True, text=True, timeout=60, check=True, stdin=subprocess.DEVNULL
    )
    return done.stdout
