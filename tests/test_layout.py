"""Rules of the whole repository: its layout, what an installation brings, and what no file says."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.suite.run import PARTS

ROOT = Path(__file__).parents[1]
LOCKS = ("agent", "control", "dev")
SERVER = {"alembic", "fastapi", "matplotlib", "prometheus-client", "psycopg", "sqlalchemy",
          "starlette", "uvicorn"}  # fmt: skip
REQUIREMENT = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^]]*])?==", re.MULTILINE)
MADE = {"demo-output", "dist", "bench-output", "test-output", "build", "__pycache__"}

# In pieces, so that this file does not name them itself.
INDEXES = ("pypi" + r"\.org", "python" + "hosted", "deb" + r"\.debian\.org", "snapshot" + r"\.debian",
           "--index" + "-url", "--extra-index" + "-url", "registry" + r"\.npmjs")  # fmt: skip
HOMES = ("root/", r"home/(?!gleaner/)\w", "Users/", "work/")
"""The service account's home is the same everywhere."""
FORBIDDEN = re.compile("|".join([*INDEXES, *(r"(?<![\w.$}])/" + home for home in HOMES)]))


def _files() -> Iterator[Path]:
    """All files of the project, wherever they came from; nothing that a command has made."""
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in MADE and (not name.startswith(".") or name == ".ci")]
        yield from (Path(folder) / name for name in names if name != ".git")


def _locked(name: str) -> set[str]:
    text = (ROOT / "locks" / f"{name}.lock").read_text()
    return {found.lower().replace("_", "-") for found in REQUIREMENT.findall(text)}


@pytest.mark.parametrize("folder", ["control/gleaner", "client/gleaner", "agent/gleaner"])
def test_gleaner_is_a_namespace_that_all_three_share(folder: str) -> None:
    """PEP 420: with an `__init__.py` in one, Python would find only that one."""
    assert not (ROOT / folder / "__init__.py").exists()
    assert [entry.name for entry in (ROOT / folder).iterdir() if entry.name != "__pycache__"] == [Path(folder).parts[0]]


def test_the_agent_extra_brings_no_server_libraries() -> None:
    locked = _locked("agent")
    assert "docker" in locked
    assert locked & SERVER == set()


@pytest.mark.slow
def test_the_agent_program_loads_no_server_libraries_and_nothing_of_control() -> None:
    program = "import sys, gleaner.agent.main; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    modules = set(loaded.stdout.split())
    assert "gleaner.agent.main" in modules
    assert not {name for name in modules if name.startswith("gleaner.control")}
    assert not {name.replace("-", "_") for name in SERVER} & modules


def test_the_slurm_admin_loads_no_library_and_of_gleaner_only_what_it_works_with() -> None:
    """It may do to Slurm what nobody else may, so what is loaded with it is kept small."""
    program = "import sys, gleaner.control.slurm_admin.server; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)
    modules = set(loaded.stdout.split())
    assert "gleaner.control.slurm_admin.server" in modules
    assert not {"pydantic", "structlog", "yaml", "numpy", "httpx", "rich"} & modules
    ours = {
        name for name in modules if name.startswith("gleaner.") and not name.startswith("gleaner.control.slurm_admin")
    }
    packages = {
        "gleaner.agent",
        "gleaner.agent.common",
        "gleaner.agent.privileged",
        "gleaner.agent.privileged.common",
        "gleaner.agent.system",
        "gleaner.control",
        "gleaner.control.slurm",
    }
    assert {name.rpartition(".")[2] for name in ours - packages} == {
        "atomic", "hostlist", "interface", "ipc", "listed_folders", "mount_folders", "openat", "parse",
        "request", "run", "snapshot", "system_programs", "untrusted",
    }  # fmt: skip


@pytest.mark.parametrize("name", LOCKS)
def test_everything_locked_has_its_hashes_and_names_no_index(name: str) -> None:
    text = (ROOT / "locks" / f"{name}.lock").read_text()
    for requirement in text.replace("\\\n", " ").strip().splitlines():
        assert "==" in requirement
        assert "--hash=sha256:" in requirement, requirement.split()[0]
        assert "://" not in requirement


@pytest.mark.parametrize(("name", "extras"), [("agent", ["agent"]), ("control", ["control"]),
                                              ("dev", ["agent", "control", "dev"])])  # fmt: skip
def test_the_locks_hold_all_that_the_project_asks_for(name: str, extras: list[str]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = list(project["dependencies"])
    for extra in extras:
        asked += project["optional-dependencies"][extra]
    wanted = {re.split(r"[\[<>=! ;]", line)[0].lower().replace("_", "-") for line in asked}
    assert wanted - _locked(name) == set()


def test_the_licence_is_apache_2_and_goes_along() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (project["license"], project["license-files"]) == ("Apache-2.0", ["LICENSE"])
    assert (ROOT / "LICENSE").read_text().split()[:4] == ["Apache", "License", "Version", "2.0,"]


@pytest.mark.slow
def test_no_file_names_a_package_index_or_a_folder_of_somebodys_machine() -> None:
    found: list[str] = []
    for path in _files():
        try:
            lines = path.read_text().splitlines()
        except UnicodeDecodeError:
            continue
        for number, line in enumerate(lines, 1):
            if FORBIDDEN.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert found == []


def test_ci_runs_the_very_test_command_of_the_readme() -> None:
    assert "exec make test" in (ROOT / ".ci" / "run").read_text()
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
    assert "make test" in (ROOT / "README.md").read_text()


def test_the_readme_shows_a_picture_before_what_a_user_types_and_fits_on_two_screens() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    places = [next(at for at, line in enumerate(lines) if sought in line)
              for sought in ("(docs/one-run.svg)", "$ glean submit", "`make demo`")]  # fmt: skip
    assert places == sorted(places)
    assert places[1] < 45
    assert len(lines) <= 90


def test_tests_that_need_containers_are_in_the_folders_that_their_part_reads() -> None:
    """`make test` collects each part from its own folders only (tests/suite/run.py)."""
    parts = {part.name: part.folders for part in PARTS}
    for path in (ROOT / "tests").rglob("*.py"):
        text = path.read_text()
        for mark in ("cluster", "nodes"):
            if f"mark.{mark}" in text and path != Path(__file__):
                assert str(path.relative_to(ROOT)).startswith(parts[mark]), f"{path} has tests of the part {mark}"
