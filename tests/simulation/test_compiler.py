"""The cache of compiled functions: another one for each version of the sources, and never mixed up."""

import fcntl
import os
import shutil
import subprocess
import sys
import textwrap
import time
from collections.abc import Sequence
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
from gleaner.control.simulation.replay.compiler import compiled, inner

core = inner(a_core.core)

@compiled
def loop(x):
    return core(x)

print(loop(1), sum(sum(code.stats.cache_hits.values()) for code in loop.code.values()))
"""


def write(file: Path, text: str) -> None:
    """Write a file that looks an hour old."""
    file.write_text(text)
    age(file, 3600)


def age(path: Path, by_s: float) -> None:
    then_s = time.time() - by_s
    os.utime(path, (then_s, then_s))


def run(folder: Path, *, file: str = "a_loop.py", before: Sequence[str] = (), **environment: str) -> str:
    return subprocess.run(
        [*before, sys.executable, folder / file],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env=os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")} | environment,
    ).stdout.strip()


def began(folder: Path, said: str) -> subprocess.Popen[str]:
    command: list[str | Path] = [sys.executable, folder / "types_of_it.py", said]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(folder / "cache")}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def waits_for(process: subprocess.Popen[str], lock: Path) -> bool:
    assert process.poll() is None
    return any(os.path.realpath(entry) == str(lock) for entry in Path(f"/proc/{process.pid}/fd").iterdir())


@pytest.mark.slow
def test_a_change_of_a_core_reaches_the_loop_of_another_file_into_which_it_was_compiled(tmp_path: Path) -> None:
    write(tmp_path / "a_loop.py", textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    write(tmp_path / "a_core.py", CORE.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    write(tmp_path / "a_core.py", CORE.format("2  # longer, so that Python sees it too"))
    assert run(tmp_path) == "3 0"


CORE_AND_BELOW = """
from gleaner.control.simulation.replay.compiler import inner

@inner
def core(x):
    return below(x)

@inner
def below(x):
    return x + {}
"""


@pytest.mark.slow
@pytest.mark.extended
def test_a_change_of_what_stands_below_a_core_in_its_file_reaches_the_loop_too(tmp_path: Path) -> None:
    loop = textwrap.dedent(LOOP.format(folder=str(tmp_path)))
    write(tmp_path / "a_loop.py", loop.replace("inner(a_core.core)", "a_core.core"))
    write(tmp_path / "a_core.py", CORE_AND_BELOW.format(1))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"
    write(tmp_path / "a_core.py", CORE_AND_BELOW.format("2  # longer, so that Python sees it too"))
    assert run(tmp_path) == "3 0"


TYPES = """
import sys
from gleaner.control.simulation.replay.compiler import compiled

@compiled
def doubled(x):
    return x + x

said = sys.argv[1]
answer = doubled(float(said) if "." in said else int(said))
print(answer, sum(sum(code.stats.cache_hits.values()) for code in doubled.code.values()))
"""


@pytest.mark.slow
def test_the_same_types_are_compiled_once_by_processes_that_need_them_at_once(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", TYPES)
    cache = tmp_path / "cache"
    assert began(tmp_path, "7").communicate()[0].strip() == "14 0"
    (path,) = cache.rglob("doubled-*.lock")
    for file in cache.rglob("*.nb[ci]"):
        file.unlink()
    with path.open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        both = [began(tmp_path, "21"), began(tmp_path, "21")]
        while not all(waits_for(process, path) for process in both):
            time.sleep(0.05)
        assert not list(cache.rglob("*.nb[ci]"))
    assert sorted(process.communicate()[0].strip() for process in both) == ["42 0", "42 1"]


@pytest.mark.slow
@pytest.mark.extended
def test_different_types_never_share_a_folder_whose_files_are_numbered(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", TYPES)
    for said, answers in (("21", "42"), ("1.5", "3.0")):
        assert [began(tmp_path, said).communicate()[0].strip() for _ in range(2)] == [f"{answers} 0", f"{answers} 1"]
    assert len({index.parent for index in (tmp_path / "cache").rglob("*.nbi")}) == 2


WRONG = """
from gleaner.control.simulation.replay.compiler import compiled
from numba.core.errors import NumbaError

@compiled
def wrong(x):
    return x.nothing

try:
    wrong(1)
except NumbaError:
    print("failed", flush=True)
input()
"""


@pytest.mark.slow
def test_a_process_whose_compilation_has_failed_holds_up_no_other(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", WRONG)
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path / "cache")}
    command: list[str | Path] = [sys.executable, tmp_path / "types_of_it.py"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "failed\n"
        (path,) = (tmp_path / "cache").rglob("wrong-*.lock")
        with path.open("ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # BlockingIOError: that process holds it still
        process.communicate("\n")


@pytest.mark.slow
def test_the_cache_is_in_the_users_cache_folder_and_what_nobody_has_used_for_a_month_goes(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", TYPES.replace("sys.argv[1]", repr("21")))
    versions = tmp_path / "gleaner" / "compiled"
    old, others, recent = versions / ("0" * 32), versions / "others", versions / ("1" * 32)
    for folder, age_s in ((old, 40 * 24 * 3600), (others, 40 * 24 * 3600), (recent, 3600)):
        folder.mkdir(parents=True)
        age(folder, age_s)
    for hits in (0, 1):
        said = run(tmp_path, file="types_of_it.py", NUMBA_CACHE_DIR="", XDG_CACHE_HOME=str(tmp_path))
        assert said == f"42 {hits}"
    assert not old.exists()
    assert others.exists()
    assert recent.exists()


@pytest.mark.slow
@pytest.mark.extended
def test_without_a_folder_that_can_be_written_nothing_is_cached(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", TYPES.replace("sys.argv[1]", repr("21")))
    (tmp_path / "a_file").touch()
    for _ in range(2):
        assert run(tmp_path, file="types_of_it.py", NUMBA_CACHE_DIR=str(tmp_path / "a_file" / "cache")) == "42 0"
    assert not list(tmp_path.rglob("*.nb[ci]"))


@pytest.mark.slow
def test_where_the_cache_has_no_room_nothing_is_cached_and_nothing_lies_beside_the_program(tmp_path: Path) -> None:
    write(tmp_path / "types_of_it.py", TYPES.replace("sys.argv[1]", repr("21")))
    limited = ["sh", "-c", 'ulimit -f 64; exec "$@"', "sh"]  # as if the disk became full after 64 blocks
    assert run(tmp_path, before=limited, file="types_of_it.py") == "42 0"
    assert run(tmp_path, file="types_of_it.py") == "42 0"
    (place,) = {found.parent.parent for found in (tmp_path / "cache").rglob("*.nbi")}
    shutil.rmtree(place)
    place.touch()  # so that numba cannot make a folder there
    assert run(tmp_path, file="types_of_it.py") == "42 0"
    assert not list(tmp_path.rglob("__pycache__/*.nb[ci]"))


@pytest.mark.slow
def test_an_index_that_cannot_be_read_any_more_is_made_anew(tmp_path: Path) -> None:
    write(tmp_path / "a_loop.py", textwrap.dedent(LOOP.format(folder=str(tmp_path))))
    write(tmp_path / "a_core.py", CORE.format(1))
    run(tmp_path)
    for index in list(tmp_path.rglob("*.nbi")):
        index.write_bytes(index.read_bytes()[:-20])
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "2 1"


@pytest.mark.slow
@pytest.mark.extended
def test_a_file_that_changes_while_a_program_starts_spoils_nothing_for_the_next(tmp_path: Path) -> None:
    """The program has imported the core as it was, and compiles and keeps it after the file has changed."""
    loop = textwrap.dedent(LOOP.format(folder=str(tmp_path)))
    changed = CORE.format("2  # longer, so that Python sees it too")
    late = f"import a_core\nopen(a_core.__file__, 'w').write({changed!r})\n"
    write(tmp_path / "a_core.py", CORE.format(1))
    write(tmp_path / "a_loop.py", loop.replace("import a_core\n", late))
    assert run(tmp_path) == "2 0"
    assert run(tmp_path) == "3 0"
