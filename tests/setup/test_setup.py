"""`glean setup` below a folder: shown, done, done again, broken off, refused in one line, and taken back."""

import json
import os
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from tests.privileged.root import only_root

from gleaner.control.cli import app
from gleaner.control.setup import shipped
from gleaner.control.setup.answers import ControlAnswers, NodeAnswers, read_join
from gleaner.control.setup.certificates import CERTIFICATE, KEY
from gleaner.control.setup.own_files import LIST, TargetMachine
from gleaner.control.setup.roles import SETTINGS, control, node

pytestmark = only_root
CLIENT = ("client", "--url", "https://head:8642")
CONTROL = ("control", "--host", "head.site", "--storage", "/data/gleaner", "--account", "us", "--yes")
NODE = ("node", "--url", "https://head.site:8642", "--yes")
Tree = dict[str, tuple[int, int, bytes]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A node that does not run, with what its distribution gives."""
    for name in ("runc", "criu"):
        program = tmp_path / "root/usr/sbin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    (tmp_path / "root/etc").mkdir()
    return tmp_path / "root"


def tree(root: Path) -> Tree:
    """Return all that is there, but for compiled programs: mode, owner and content."""
    return {
        str(path.relative_to(root)): (
            path.lstat().st_mode, path.lstat().st_uid, path.read_bytes() if path.is_file() else b"",
        )
        for path in root.rglob("*") if "__pycache__" not in path.parts
    }  # fmt: skip


def setup(root: Path, *arguments: str) -> int:
    return app.run(["setup", *arguments, "--root", str(root)])


def refusal(capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that was printed."""
    said = capsys.readouterr().err
    assert said.startswith("glean: ")
    assert said.count("\n") == 1
    return said


@pytest.mark.parametrize("words", [(*CLIENT, "--yes"), CONTROL, NODE], ids=lambda words: words[0])
def test_a_role_is_shown_made_left_alone_the_second_time_and_taken_back(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    before = tree(root)
    assert setup(root, *words, "--dry-run") == 0
    assert "nothing was changed" in capsys.readouterr().out
    assert tree(root) == before
    assert setup(root, *words) == 0
    made = tree(root)
    capsys.readouterr()
    assert setup(root, words[0], "--yes") == 0  # the answers are known
    assert capsys.readouterr().out == f"{words[0]}: all is as it should be\n"
    assert tree(root) == made
    assert setup(root, words[0], "--remove", "--purge", "--dry-run") == 0
    assert tree(root) == made
    assert setup(root, words[0], "--remove", "--purge", "--yes") == 0
    assert tree(root) == before


def test_control_gets_settings_that_it_reads_a_unit_and_a_key_of_its_own(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from gleaner.control.settings import Settings

    assert setup(root, *CONTROL, "--port", "9000") == 0
    monkeypatch.setenv("GLEANER_SETTINGS", f"{root}{SETTINGS}")
    found = Settings()
    assert (str(found.storage.folder), found.api.port, found.client.url, str(found.api.certificate)) == (
        "/data/gleaner", 9000, ("https://head.site:9000",), CERTIFICATE,
    )  # fmt: skip
    unit = (root / "etc/systemd/system/gleaner-control.service").read_text().splitlines()
    assert {"User=us", "Group=us", "ReadWritePaths=/data/gleaner", "StateDirectory=gleaner"} <= {*unit}
    facts = (root / KEY.lstrip("/")).stat()
    assert (facts.st_mode & 0o777, facts.st_uid) == (0o600, 4200)
    assert (root / "etc/gleaner/tls/ca.key").stat().st_mode & 0o777 == 0o600
    assert (root / "data/gleaner").stat().st_mode & 0o777 == 0o700


def test_what_is_in_the_storage_stays_without_purge(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(root)
    assert setup(root, *CONTROL) == 0
    (root / "data/gleaner/checkpoint").touch()
    assert setup(root, "control", "--remove", "--yes") == 0
    assert "/data/gleaner stays with all that is in it" in capsys.readouterr().err
    left = tree(root).keys() - before.keys()
    assert left == {"data", "data/gleaner", "data/gleaner/checkpoint", "var", "var/lib", "var/lib/gleaner"}


def test_the_certificate_is_of_each_host_and_made_again_for_another(root: Path) -> None:
    tls = root / "etc/gleaner/tls"

    def verifies(option: str, host: str) -> bool:
        words = ["openssl", "verify", "-x509_strict", "-CAfile", "ca.pem", option, host, "cert.pem"]
        return subprocess.run(words, cwd=tls, capture_output=True, check=False).returncode == 0

    assert setup(root, *CONTROL, "--host", "10.1.2.3") == 0
    assert verifies("-verify_hostname", "head.site")
    assert verifies("-verify_ip", "10.1.2.3")
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls / "cert.pem", tls / "key.pem")
    authority = (tls / "ca.pem").read_bytes()
    assert setup(root, "control", "--host", "10.1.2.4", "--yes") == 0
    assert verifies("-verify_ip", "10.1.2.4")
    assert not verifies("-verify_ip", "10.1.2.3")
    join = read_join("it", (root / "etc/gleaner/join.json").read_text())
    assert (join.url, join.ca.encode()) == ("https://10.1.2.4:8642", authority)
    (tls / "ca.key").unlink()  # an admin may keep it elsewhere
    made = tree(root)
    assert setup(root, "control", "--yes") == 0
    assert tree(root) == made


@pytest.mark.parametrize("role", ["node", "client"])
def test_a_machine_joins_with_the_file_of_controls_machine_from_stdin(root: Path, role: str) -> None:
    assert setup(root, *CONTROL) == 0
    words = (Path(sys.executable).with_name("glean"), "setup", role, "--from", "/dev/stdin", "--yes", "--root", root)
    subprocess.run(words, input=(root / "etc/gleaner/join.json").read_bytes(), check=True, timeout=60)
    assert "https://head.site:8642" in (root / "etc/gleaner/setup.json").read_text()


def test_settings_follow_the_answers_unless_an_admin_has_changed_them(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = root / "etc/gleaner/gleaner.toml"
    for address in ("https://head:8642", "https://other:8642"):
        assert setup(root, "client", "--url", address, "--yes") == 0
        assert f'url = "{address}"' in file.read_text()
    file.write_text(f"{file.read_text()}timeout_s = 5\n")
    capsys.readouterr()
    assert setup(root, *CLIENT, "--yes") == 0
    assert "gleaner.toml stays as you have changed it" in capsys.readouterr().err
    assert "other" in file.read_text()
    assert setup(root, "client", "--remove", "--yes") == 0
    assert "gleaner.toml stays: it was changed by hand" in capsys.readouterr().err
    assert "timeout_s" in file.read_text()


def test_a_node_has_root_s_programs_which_need_nothing_else_of_gleaner(root: Path) -> None:
    assert setup(root, *NODE) == 0
    library = root / "usr/local/lib/gleaner"
    for path in (root / "usr/local/sbin/gleaner-runc", library, *library.rglob("*")):
        assert path.stat().st_mode & 0o022 == 0, path
        assert path.stat().st_mode & 0o044 == 0o044, path
    assert (library / "gleaner/agent/privileged/shim/__pycache__").is_dir()
    assert (library / "gleaner/agent/privileged/shim/notify.sh").stat().st_mode & 0o111
    program = (root / "usr/local/sbin/gleaner-runc").read_text()
    assert program.startswith("#!/usr/bin/python3 -IS\n")
    assert program.endswith("main('/usr/sbin/runc')\n")
    assert json.loads((root / "etc/gleaner/privileged.json").read_text()) == {
        "agent_uid": 4200, "runc": "/usr/sbin/runc", "criu": "/usr/sbin/criu",
    }  # fmt: skip
    assert {f"{root}{path}" for path in (shipped.EPILOG, shipped.WATCHDOG)} <= {
        str(path) for path in (root / "usr/local/libexec/gleaner").iterdir() if path.stat().st_mode & 0o111
    }
    assert 'runtime = "criu"' in (root / "etc/gleaner/agent.toml").read_text()
    words = [sys.executable, "-IS", "-c", ALL_MODULES, str(library)]
    loaded = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()
    assert {"gleaner.agent.privileged.shim.transfer", "gleaner.agent.system.openat"} <= {*loaded}
    assert {name.split(".")[2] for name in loaded} == {"privileged", "system"}


ALL_MODULES = """
import importlib, pathlib, sys
sys.path.insert(0, sys.argv[1])
for path in sorted(pathlib.Path(sys.argv[1]).rglob("*.py")):
    name = ".".join(path.relative_to(sys.argv[1]).with_suffix("").parts).removesuffix(".__init__")
    importlib.import_module(name)
    print(name)
"""


def test_with_docker_a_daemon_json_of_the_sites_own_stays(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = root / "etc/docker/daemon.json"
    assert setup(root, *NODE, "--runtime", "docker") == 0
    assert json.loads(file.read_text())["runtimes"] == {"gleaner": {"path": "/usr/local/sbin/gleaner-runc"}}
    assert setup(root, "node", "--remove", "--purge", "--yes") == 0
    assert not file.exists()
    file.parent.mkdir()
    file.write_text('{"debug": true}\n')
    capsys.readouterr()
    assert setup(root, *NODE, "--runtime", "docker") == 0
    assert "/etc/docker/daemon.json stays as you have changed it" in capsys.readouterr().err
    assert file.read_text() == '{"debug": true}\n'


def test_every_shipped_file_is_written_by_a_role(root: Path) -> None:
    machine = TargetMachine(str(root))
    wanted = (
        *control(machine, ControlAnswers(hosts=("head",)), "/opt/gleaner").files,
        *node(machine, NodeAnswers(url="https://head:8642")).files,
        *node(machine, NodeAnswers(url="https://head:8642", runtime="docker")).files,
    )
    there = {f"/{path.relative_to(shipped.FOLDER)}" for path in shipped.FOLDER.rglob("*") if path.is_file()}
    assert there <= {file.path for file in wanted}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("client", "--yes"), "--url is missing"),
        (("client", "--url", "head:8642", "--yes"), "must be an address like https://HOST:8642"),
        ((*CLIENT, "--ca-file", "/dev/null", "--from", "/etc/hostname", "--yes"), "is no join file"),
        ((*CLIENT, "--ca-file", "/etc/hostname", "--yes"), "must be a certificate in PEM"),
        (CLIENT, "there is no terminal on which to agree"),
        ((*CONTROL, "--storage", "data"), "must be an absolute path"),
        ((*CONTROL, "--host", "head site"), "must be a name or an address"),
        ((*CONTROL, "--host", "fe80::1%eth0"), "must be a name or an address"),
        ((*CONTROL, "--uid", "0"), "must be a number above 0"),
        ((*CONTROL, "--certificate", "/c.pem"), "go together"),
    ],
)
def test_a_wrong_answer_is_one_line_and_changes_nothing(
    root: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str
) -> None:
    before = tree(root)
    assert setup(root, *words) in (1, 2)
    assert said in refusal(capsys)
    assert tree(root) == before


FOREIGN = {
    shipped.EPILOG: (NODE, "is foreign, or was changed by hand: move it,"),
    "/etc/gleaner/tls/ca.pem": (CONTROL, "is foreign: move it and its key away"),
    "/data/gleaner/notes": (CONTROL, "/data/gleaner is not empty, and has mode"),
    "/etc/gleaner/privileged.json": (NODE, "cannot read"),
    LIST: (NODE, "is broken: move it and what it names away"),
}


@pytest.mark.parametrize("path", FOREIGN)
def test_a_foreign_file_in_the_way_is_named_and_kept_and_setup_completes_without_it(
    root: Path, capsys: pytest.CaptureFixture[str], path: str
) -> None:
    words, said = FOREIGN[path]
    place = root / path.lstrip("/")
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_text("theirs")
    before = tree(root)
    assert setup(root, *words) == 1
    assert tree(root) == before
    assert said in capsys.readouterr().err.splitlines()[-1]
    place.rename(root / "moved")
    assert setup(root, *words) == 0
    assert (root / "moved").read_text() == "theirs"


def test_what_others_could_change_is_not_made_roots_program(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "usr/sbin/criu").chmod(0o757)
    assert setup(root, *NODE) == 1
    assert "is not root's alone" in refusal(capsys)
    (root / "usr/sbin/criu").unlink()
    assert setup(root, *NODE) == 1
    assert "there is no criu on this node" in refusal(capsys)


def test_a_user_and_a_machine_without_slurm_are_refused_in_one_line() -> None:
    program = "import sys; from gleaner.control.cli.main import main; sys.exit(main())"
    words = (sys.executable, "-c", program, "setup", *NODE)
    for before, path, said in (
        (("/usr/bin/setpriv", "--reuid", "65534", "--clear-groups"), os.environ["PATH"], "run it as root"),
        ((), "/nowhere", "there is no scontrol here: install Slurm's programs"),
    ):
        done = subprocess.run([*before, *words], capture_output=True, text=True, check=False, env={"PATH": path})
        assert said in done.stderr
        assert done.stderr.startswith("glean: ")
        assert (done.returncode, done.stdout, done.stderr.count("\n")) == (1, "", 1)
