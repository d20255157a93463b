"""What is kept of compiled functions: forgotten when any source of theirs changes, and never mixed up."""

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


TYPES = """
import sys, time
from pathlib import Path
from gleaner.control.simulation.compiled import compiled

@compiled
def doubled(x):
    return x + x

Path(sys.argv[1]).touch()
while len(list(Path(sys.argv[1]).parent.glob("*.ready"))) < 2:
    time.sleep(0.01)
print(doubled(float(sys.argv[2]) if "." in sys.argv[2] else int(sys.argv[2])))
"""


def test_processes_that_compile_a_function_for_different_types_at_once_keep_their_code_apart(tmp_path: Path) -> None:
    (tmp_path / "types_of_it.py").write_text(TYPES)
    for _ in range(2):
        for ready in tmp_path.glob("*.ready"):
            ready.unlink()
        both = [
            subprocess.Popen(
                [sys.executable, tmp_path / "types_of_it.py", tmp_path / f"{said}.ready", said],
                stdout=subprocess.PIPE,
                text=True,
            )
            for said in ("21", "1.5")
        ]
        assert [process.communicate(timeout=60)[0].strip() for process in both] == ["42", "3.0"]
    assert len({path.name for path in tmp_path.rglob("*.nbc")}) == 2


def test_an_index_that_cannot_be_read_any_more_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a_loop.py").write_text(textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    (tmp_path / "a_core.py").write_text(CORE.format(1))
    run(tmp_path)
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(index.read_bytes()[:-20])
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
