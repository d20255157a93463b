"""What is kept of compiled functions: forgotten when any source of theirs changes, and never mixed up."""

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_a_change_of_a_core_reaches_the_loop_of_another_file_into_which_it_was_compiled(tmp_path: Path) -> None:
    (tmp_path / "a_loop.py").write_text(textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    (tmp_path / "a_core.py").write_text(CORE.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "a_core.py").write_text(CORE.format("2  # longer, so that Python sees it too"))
    assert run(tmp_path) == "3 0"


CORE_AND_BELOW = """
from gleaner.control.simulation.compiled import inner

@inner
def core(x):
    return below(x)

@inner
def below(x):
    return x + {}
"""


@pytest.mark.slow
def test_a_change_of_what_stands_below_a_core_in_its_file_reaches_the_loop_too(tmp_path: Path) -> None:
    loop = textwrap.dedent(LOOP.format(folder=str(tmp_path)))
    (tmp_path / "a_loop.py").write_text(loop.replace("compiled(a_core.core)", "a_core.core"))
    (tmp_path / "a_core.py").write_text(CORE_AND_BELOW.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    (tmp_path / "a_core.py").write_text(CORE_AND_BELOW.format("2  # longer, so that Python sees it too"))
    assert run(tmp_path) == "3 0"


TYPES = """
import sys
from gleaner.control.simulation.compiled import compiled

@compiled
def doubled(x):
    return x + x

print(doubled(float(sys.argv[1]) if "." in sys.argv[1] else int(sys.argv[1])))
"""


@pytest.mark.slow
def test_what_is_compiled_for_one_type_takes_no_place_of_what_another_process_compiled_meanwhile(
    tmp_path: Path,
) -> None:
    """The second process knows nothing of the first: as if both had read the index before either wrote it."""
    (tmp_path / "types_of_it.py").write_text(TYPES)
    kept: set[Path] = set()
    for said, doubled in (("21", "42"), ("1.5", "3.0")):
        for index in tmp_path.rglob("*.nbi"):
            index.unlink()
        arguments: list[str | Path] = [sys.executable, tmp_path / "types_of_it.py", said]
        assert subprocess.run(arguments, capture_output=True, text=True, check=True).stdout.strip() == doubled
        assert kept < set(tmp_path.rglob("*.nbc"))
        kept = set(tmp_path.rglob("*.nbc"))


@pytest.mark.slow
def test_an_index_that_cannot_be_read_any_more_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "a_loop.py").write_text(textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    (tmp_path / "a_core.py").write_text(CORE.format(1))
    run(tmp_path)
    for index in tmp_path.rglob("*.nbi"):
        index.write_bytes(index.read_bytes()[:-20])
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"


@pytest.mark.slow
def test_a_file_that_changes_while_a_program_starts_spoils_nothing_for_the_next(tmp_path: Path) -> None:
    """The program has imported the core as it was, and compiles and keeps it after the file has changed."""
    loop = textwrap.dedent(LOOP.format(folder=str(tmp_path)))
    changed = CORE.format("2  # longer, so that Python sees it too")
    late = f"import a_core\nopen(a_core.__file__, 'w').write({changed!r})\n"
    (tmp_path / "a_core.py").write_text(CORE.format(1))
    (tmp_path / "a_loop.py").write_text(loop.replace("import a_core\n", late))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "3 0"
