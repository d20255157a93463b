"""The cache of compiled functions: another one for each version of the sources."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from gleaner.control.simulation import replay

CONTROL = Path(next(iter(replay.__path__))).parents[1]
PROGRAM = """
from gleaner.control.policy.a_core import core as plain
from gleaner.control.simulation.replay.compiler import compiled, inner

core = inner(plain)

@compiled
def loop(x):
    return core(x)

print(loop(1), sum(loop.stats.cache_hits.values()))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the sources of policies and of the simulation, with one policy more, and a program that compiles it."""
    for name in ("policy", "simulation"):
        shutil.copytree(CONTROL / name, tmp_path / "gleaner" / "control" / name)
    (tmp_path / "program.py").write_text(PROGRAM)
    write_core(tmp_path, 1)
    return tmp_path


def write_core(folder: Path, more: int) -> None:
    """Write the policy with times that tell no version from another, as packages may have them."""
    core = folder / "gleaner" / "control" / "policy" / "a_core.py"
    core.write_text(f"def core(x):\n    return x + {more}\n")
    shutil.rmtree(core.parent / "__pycache__", ignore_errors=True)
    os.utime(core, (10**9, 10**9))


def run(folder: Path, **environment: str) -> str:
    environment = {"NUMBA_CACHE_DIR": str(folder / "cache"), "PYTHONPATH": str(folder)} | environment
    command = [sys.executable, "-B", str(folder / "program.py")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=os.environ | environment)
    return done.stdout.strip()


@pytest.mark.slow
def test_a_change_of_a_core_reaches_the_loop_of_another_file_into_which_it_was_compiled(folder: Path) -> None:
    assert run(folder) == "2 0"
    assert run(folder) == "2 1"
    write_core(folder, 2)
    assert run(folder) == "3 0"


@pytest.mark.slow
def test_the_cache_is_in_the_users_cache_folder_unless_told_otherwise(folder: Path) -> None:
    home = folder / "home"
    assert run(folder, NUMBA_CACHE_DIR="", XDG_CACHE_HOME="", HOME=str(home)) == "2 0"
    assert list((home / ".cache" / "gleaner" / "compiled").rglob("program.loop-*.nbc"))
