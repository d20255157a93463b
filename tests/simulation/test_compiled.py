"""What is kept of compiled functions is forgotten when any source of theirs changes."""

import subprocess
import sys
import textwrap
from pathlib import Path

CORE = """
def core(x):
    return x + {}
"""
LOOP = """
import sys
sys.path.insert(0, {folder!r})
import a_core
from gleaner.control.simulation.compiled import compiled

core = compiled(a_core.core)

@compiled
def loop(x):
    return core(x)

print(loop(1), sum(loop.stats.cache_hits.values()))
"""


def run(folder: Path) -> str:
    return subprocess.run(
        [sys.executable, folder / "a_loop.py"], capture_output=True, text=True, check=True, cwd=folder
    ).stdout.strip()


def test_a_change_of_a_core_reaches_the_loop_of_another_file_into_which_it_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "a_loop.py").write_text(textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    (tmp_path / "a_core.py").write_text(CORE.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "a_core.py").write_text(CORE.format("2  # longer, so that Python sees it too"))
    assert run(tmp_path) == "3 0"
