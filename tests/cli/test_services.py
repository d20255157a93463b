"""The needs of a user's installation, and the verbs that start other programs."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.cli_harness import GLEAN, CliHarness, free_port

pytestmark = pytest.mark.slow

GLEAN_AGENT = f"{GLEAN}-agent"
WITHOUT = """
import sys
for library in {missing!r}:
    sys.modules[library] = None  # importing it now fails as if it were not installed
from gleaner.{module} import main
sys.argv = ["glean", *{arguments!r}]
sys.exit(main())
"""
BYTECODE = ("PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX")
"""The place of what is compiled; without these, a process would compile all that it imports once more."""
SERVER = (
    "alembic",
    "docker",
    "fastapi",
    "prometheus_client",
    "psycopg",
    "sqlalchemy",
    "uvicorn",
    "zstandard",
)


def without(
    missing: tuple[str, ...], harness: CliHarness, *arguments: str, module: str = "control.cli.main"
) -> "subprocess.CompletedProcess[str]":
    program = WITHOUT.format(missing=missing, arguments=arguments, module=module)
    bytecode = {name: value for name, value in os.environ.items() if name in BYTECODE}
    environment = harness.environment | bytecode | {"PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["list", "--json"], ["config"], ["submit", "--image", "a"], ["doctor", "client", "--patience", "120"]],
)
def test_a_users_verbs_need_nothing_of_the_server(harness: CliHarness, arguments: list[str]) -> None:
    done = without(SERVER, harness, *arguments)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["control", "migrate"], "control"),
        (["control", "run"], "control"),
        (["token", "create", "--local", "--role", "admin", "--name", "root"], "control"),
        (["run", "image"], "agent"),
    ],
)
def test_a_service_whose_libraries_are_missing_names_what_to_install(
    harness: CliHarness, arguments: list[str], extra: str
) -> None:
    done = without(SERVER, harness, *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("glean: ")
    assert done.stderr.endswith(f" is not installed here: pip install 'gleaner-hpc[{extra}]'\n")


def test_the_agent_program_without_its_libraries_is_one_line(harness: CliHarness) -> None:
    done = without(("docker",), harness, "run", module="agent.entry")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "glean-agent: docker is not installed here: pip install 'gleaner-hpc[agent]'\n"
    installed = subprocess.run([GLEAN_AGENT, "run", "--help"], capture_output=True, text=True, timeout=60, check=False)
    assert (installed.returncode, installed.stderr) == (0, "")
    assert "--token-file" in installed.stdout


def test_the_agent_program_tells_its_version_without_a_library(harness: CliHarness) -> None:
    done = without(("docker", "typer", "structlog", "pydantic"), harness, "--version", module="agent.entry")
    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert done.stdout.startswith("glean-agent ")


def test_a_job_of_ones_own_is_for_a_slurm_job_and_its_commands_options_are_its_own(harness: CliHarness) -> None:
    process = harness.start("run", "--save-every", "60", "image", "--", "--help", "-x")
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (2, "")
    assert err == "glean run: this is not a Slurm job: write the command into a script and submit that with sbatch\n"


def test_a_new_site_needs_four_commands(admin: CliHarness, tmp_path: Path) -> None:
    port = free_port()
    site = CliHarness(admin.folder, dict(admin.environment), admin.node, admin.state)
    site.environment |= {
        "GLEANER_QUEUE__URL": f"sqlite:///{tmp_path / 'site.db'}",
        "GLEANER_STORAGE__FOLDER": str(tmp_path / "site-storage"),
        "GLEANER_QUEUE__SECRET_KEY_FILE": str(tmp_path / "site.key"),
        "GLEANER_API__PORT": str(port),
        "GLEANER_API__AGENTS_PORT": "0",
        "GLEANER_CLIENT__URL": f"http://127.0.0.1:{port}",
        "GLEANER_CLIENT__TOKEN_FILE": str(tmp_path / "site-token"),
    }
    assert "glean control migrate" in without((), site, "control", "run").stderr
    assert site.good("control", "migrate") == "the queue's schema is up to date\n"
    (tmp_path / "site-storage").mkdir(mode=0o700)
    assert "glean control prepare" in without((), site, "control", "run").stderr
    assert "is set up; the key" in site.good("control", "prepare")
    key = (tmp_path / "site.key").read_bytes()
    assert "is set up; the key is there" in site.good("control", "prepare")
    assert (tmp_path / "site.key").read_bytes() == key
    site.good("token", "create", "--local", "--role", "admin", "--name", "root", "--to", str(tmp_path / "site-token"))
    running = site.start("control", "run")
    assert running.stderr
    while "door=people" not in (line := running.stderr.readline()):
        assert line, "control has ended"
    assert site.good("submit", "--image", "a", "--group", "atlas") == "job 1\n"
    assert site.good("control", "backup", "before").startswith("before: ")
    running.terminate()
    _, err = running.communicate(timeout=30)
    assert running.returncode == 0
    assert "Traceback" not in err
    assert "1 in all have not ended" in site.good("control", "restore", "before", "--replace")
