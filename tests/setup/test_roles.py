"""Control, a node and a client below a folder: complete, the same the second time, survived and taken back."""

import json
import os
import shutil
from pathlib import Path

import pytest
from tests.cli.test_setup import refusal, root, setup
from tests.effort import IS_WHOLE
from tests.setup.test_steps import Killed, tree

from gleaner.control.cli import app
from gleaner.control.setup import reading
from gleaner.control.setup.facts import Certificate
from gleaner.control.setup.steps import manifest as manifests
from gleaner.control.setup.steps.answers import ControlAnswers, JoinFile, ServiceAccount, read_join
from gleaner.control.setup.steps.certificates import CERTIFICATE, certificates
from gleaner.control.setup.steps.changes import SetupRefused
from gleaner.control.setup.steps.engine import Installer, plan_all
from gleaner.control.setup.steps.machine import MachineReader
from gleaner.control.setup.steps.roles import SETTINGS, control_steps

__all__ = ["root"]  # a fixture

ACCOUNT = ServiceAccount("us", os.geteuid() or 4200, os.getegid() or 4200)
AS_US = ("--account", ACCOUNT.name, "--uid", str(ACCOUNT.uid), "--gid", str(ACCOUNT.gid))
CONTROL = ("control", "--host", "head.site", *AS_US, "--storage", "/data/gleaner", "--yes")
NODE = ("node", "--url", "https://head.site:8642", *AS_US, "--yes")


@pytest.fixture(autouse=True)
def accounts(root: Path) -> None:
    """The account is there: only root could make it."""
    (root / "etc/passwd").write_text(f"us:x:{ACCOUNT.uid}:{ACCOUNT.gid}::/:/bin/false\n")
    (root / "etc/group").write_text(f"us:x:{ACCOUNT.gid}:\n")


@pytest.fixture
def node_root(root: Path) -> Path:
    """A node that has what its distribution gives."""
    for name in ("runc", "criu"):
        program = root / "usr/sbin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    for folder in ("usr/local/sbin", "usr/local/lib", "usr/local/bin"):
        (root / folder).mkdir(parents=True)
    return root


def lay_slurm_conf(root: Path) -> None:
    (root / "etc/slurm").mkdir()
    (root / "etc/slurm/slurm.conf").write_text("ClusterName=site\nPartitionName=all Nodes=ALL\n")


def test_control_is_set_up_and_taken_back(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lay_slurm_conf(root)
    before = tree(root)
    assert setup(root, *CONTROL, "--dry-run") == 0
    assert tree(root) == before
    assert setup(root, *CONTROL) == 0
    said = capsys.readouterr().err  # and never done silently: without the second, nodes would know of no Epilog
    assert said.index("systemctl restart slurmctld") < said.index("scontrol reconfigure")
    tls = root / "etc/gleaner/tls"
    shown = reading.certificate_file(tls / "cert.pem", tls / "key.pem", ca_file=tls / "ca.pem", host="head.site")
    assert isinstance(shown, Certificate)
    assert "head.site" in shown.names
    assert {(tls / name).stat().st_mode & 0o777 for name in ("key.pem", "ca.key")} == {0o600}
    unit = (root / "etc/systemd/system/gleaner-control.service").read_text()
    assert {"User=us", "ReadWritePaths=/data/gleaner", "StateDirectory=gleaner"} <= set(unit.splitlines())
    assert (root / "data/gleaner").stat().st_mode & 0o777 == 0o700
    made = tree(root)
    assert setup(root, "control", "--yes") == 0
    assert tree(root) == made
    (root / "data/gleaner/checkpoint").touch()
    capsys.readouterr()
    assert setup(root, "control", "--remove", "--yes") == 0
    assert "before you take the nodes back: systemctl restart slurmctld" in capsys.readouterr().err
    assert tree(root).keys() - before.keys() == {"data", "data/gleaner", "data/gleaner/checkpoint"}
    shutil.rmtree(root / "data")
    assert tree(root) == before


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes accounts")
def test_the_account_is_taken_back_where_userdel_takes_its_group_along(root: Path) -> None:
    """Debian and Red Hat have `USERGROUPS_ENAB yes`."""
    (root / "etc/login.defs").write_text("USERGROUPS_ENAB yes\n")
    for table in ("passwd", "group", "shadow"):
        (root / "etc" / table).write_text("")
    assert setup(root, *CONTROL) == 0
    assert "us:x:" in (root / "etc/group").read_text()
    assert setup(root, "control", "--remove", "--yes") == 0
    assert [(root / "etc" / table).read_text() for table in ("passwd", "group", "shadow")] == ["", "", ""]


def test_a_file_beside_slurm_conf_is_read_if_that_includes_it(root: Path) -> None:
    lay_slurm_conf(root)
    conf = root / "etc/slurm/slurm.conf"
    conf.write_text("Include site.conf\n")
    (root / "etc/slurm/site.conf").write_text("Epilog=/site.sh\n")
    assert setup(root, *CONTROL) == 0
    assert "Epilog=" not in conf.read_text()
    assert "DefMemPerCPU=" in conf.read_text()


def test_the_settings_of_control_are_those_that_control_reads(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gleaner.control.settings import Settings

    assert setup(root, *CONTROL, "--port", "9000") == 0
    monkeypatch.setenv("GLEANER_SETTINGS", f"{root}{SETTINGS}")
    found = Settings()
    assert (str(found.storage.folder), found.api.port, found.client.url) == (
        "/data/gleaner", 9000, "https://head.site:9000",
    )  # fmt: skip
    assert str(found.api.certificate) == CERTIFICATE


def test_the_certificate_is_of_each_host_and_the_first_is_in_the_address(root: Path) -> None:
    """`--host` is repeated: names, and addresses of IPv4 and IPv6."""
    tls = root / "etc/gleaner/tls"
    assert setup(root, *CONTROL, "--host", "10.1.2.3", "--host", "FD00::0001") == 0
    for host in ("head.site", "10.1.2.3", "fd00::1"):
        shown = reading.certificate_file(tls / "cert.pem", tls / "key.pem", ca_file=tls / "ca.pem", host=host)
        assert isinstance(shown, Certificate)
    settings = root / SETTINGS.lstrip("/")
    assert 'host = "::"' in settings.read_text()  # else nobody reaches it by its address of IPv6
    made = tree(root)
    assert setup(root, "control", "--yes") == 0  # all of them are known
    assert tree(root) == made
    assert setup(root, "control", "--host", "fd00::1", "--yes") == 0
    assert read_join("it", (root / "etc/gleaner/join.json").read_bytes()).url == "https://[fd00::1]:8642"
    assert 'host = "::"' in settings.read_text()


def test_the_grace_time_stays_as_it_was_asked_for(root: Path) -> None:
    lay_slurm_conf(root)
    conf = root / "etc/slurm/slurm.conf"
    for words in ((*CONTROL, "--grace-time", "300"), ("control", "--yes")):
        assert setup(root, *words) == 0
        assert "GraceTime=300 " in conf.read_text()


def test_the_join_file_sets_up_the_other_machines(root: Path, tmp_path: Path) -> None:
    assert setup(root, *CONTROL) == 0
    file = root / "etc/gleaner/join.json"
    said = read_join("it", file.read_bytes())
    assert (said.url, said.storage, said.account) == ("https://head.site:8642", "/data/gleaner", ACCOUNT)
    assert "PRIVATE" not in file.read_text()
    other = tmp_path / "login"
    (other / "etc").mkdir(parents=True)
    assert setup(other, "client", "--from", str(file), "--yes") == 0
    assert (other / "etc/gleaner/tls/ca.pem").read_text() == said.ca


def test_the_authority_of_a_join_file_must_be_one() -> None:
    def read(ca: str) -> str:
        return read_join("it", JoinFile("https://head:8642", ca, "/data", ACCOUNT).text()).ca

    assert read("") == ""  # the system trusts control's certificate
    with pytest.raises(SetupRefused, match="the ca of it is no certificate in PEM"):
        read("no certificate")


@pytest.mark.slow
def test_a_run_of_control_that_ends_at_any_change_is_completed(root: Path, tmp_path: Path) -> None:
    """The certificates are made anew each time: what was begun must still fit together in the end."""
    lay_slurm_conf(root)
    answers = ControlAnswers("head.site", account=ACCOUNT)
    before = tree(root)
    for number in range(4, 40, 2 if IS_WHOLE else 12):
        machine = MachineReader(str(root))
        steps = control_steps(answers, "/opt/gleaner", machine, "/root")
        said: list[str] = []

        def watch(text: str, said: list[str] = said, number: int = number) -> None:
            said.append(text)
            if len(said) > number:
                raise Killed

        with pytest.raises(Killed):
            Installer(machine, "control", watch).apply(steps, {})
        Installer(machine, "control", lambda _: None).apply(steps, {})
        assert plan_all(steps, machine, manifests.load(machine), "control").plans == ()
        Installer(machine, "control", lambda _: None).take_back(purge=False)
        assert tree(root) == before


def test_a_certificate_that_does_not_fit_is_made_anew(root: Path) -> None:
    machine = MachineReader(str(root))

    def make(*hosts: str) -> list[str]:
        steps = certificates(hosts, ACCOUNT)
        titles = [plan.title for plan in plan_all(steps, machine, manifests.load(machine), "control").plans]
        Installer(machine, "control", lambda _: None).apply(steps, {})
        return [title.partition(":")[0].partition(",")[0] for title in titles]

    assert make("head") == ["make a certificate authority", "make a certificate for head"]
    assert make("head") == []
    assert make("other") == ["make a certificate for other"]
    assert make("other", "10.1.2.3", "fd00::1") == ["make a certificate for other"]
    assert make("10.1.2.3") == make("fd00::1") == []
    (root / "etc/gleaner/tls/ca.key").unlink()  # an admin may keep it elsewhere
    assert make("other") == []


@pytest.mark.slow
def test_a_node_is_set_up_and_taken_back(node_root: Path) -> None:
    before = tree(node_root)
    assert setup(node_root, *NODE, "--dry-run") == 0
    assert tree(node_root) == before
    assert setup(node_root, *NODE) == 0
    made = tree(node_root)
    assert {"usr/local/sbin/gleaner-helper", "usr/local/libexec/gleaner/epilog.sh", "etc/criu/runc.conf"} <= made.keys()
    assert 'runtime = "criu"' in (node_root / "etc/gleaner/agent.toml").read_text()
    assert json.loads((node_root / "etc/gleaner/privileged.json").read_text())["agent_uid"] == ACCOUNT.uid
    assert "etc/docker" not in made
    assert setup(node_root, "node", "--yes") == 0
    assert tree(node_root) == made
    assert setup(node_root, "node", "--remove", "--yes") == 0
    assert tree(node_root) == before


@pytest.mark.slow
def test_the_images_of_a_node_go_with_purge_alone(node_root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = tree(node_root)
    image = node_root / "var/lib/gleaner-root/image"
    for purge in ((), ("--purge",)):
        assert setup(node_root, *NODE) == 0
        image.touch()
        capsys.readouterr()
        assert setup(node_root, "node", "--remove", "--yes", *purge) == 0
        assert ("/var/lib/gleaner-root stays: --purge removes it, too" in capsys.readouterr().err) is not bool(purge)
        if not purge:
            shutil.rmtree(node_root / "var")
    assert tree(node_root) == before


def lay_docker(root: Path, settings: str) -> Path:
    engine = root / "usr/sbin/dockerd"
    engine.write_text("#!/bin/sh\n")
    engine.chmod(0o755)
    file = root / "etc/docker/daemon.json"
    file.parent.mkdir()
    file.write_text(settings)
    return file


@pytest.mark.slow
def test_dockers_settings_are_merged_with_docker_and_left_alone_without(node_root: Path) -> None:
    file = lay_docker(node_root, '{"debug": true}\n')
    assert setup(node_root, *NODE) == 0
    assert file.read_text() == '{"debug": true}\n'
    assert setup(node_root, "node", "--runtime", "docker", "--yes") == 0
    assert json.loads(file.read_text()).keys() == {"debug", "runtimes", "experimental"}
    assert setup(node_root, "node", "--remove", "--yes") == 0
    assert json.loads(file.read_text()) == {"debug": True}


@pytest.mark.slow
def test_what_roots_programs_keep_for_docker_goes_with_purge(node_root: Path) -> None:
    lay_docker(node_root, "{}")
    assert setup(node_root, *NODE, "--runtime", "docker") == 0
    containers = node_root / "var/lib/gleaner-root/containers"
    containers.mkdir(parents=True)  # they make it themselves
    assert setup(node_root, "node", "--remove", "--yes", "--purge") == 0
    assert not containers.parent.exists()


def test_broken_settings_of_docker_are_one_line_and_nothing_is_changed(
    node_root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lay_docker(node_root, "{")
    before = tree(node_root)
    assert setup(node_root, *NODE, "--runtime", "docker") == 1
    assert "daemon.json stays as it is: it is no JSON" in refusal(capsys)
    assert tree(node_root) == before


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((*CONTROL, "--storage", "data"), "must be an absolute path"),
        ((*CONTROL, "--host", "head site"), "no name or address of a machine"),
        ((*CONTROL, "--host", "fe80::1%eth0"), "no name or address of a machine"),
        ((*CONTROL, "--uid", "0"), "cannot be root"),
        ((*CONTROL, "--uid", "1"), "use one everywhere"),
        ((*CONTROL, "--certificate", "/c.pem"), "go together"),
        (NODE, "there is no runc on this node"),
    ],
)
def test_what_will_not_do_is_refused(
    root: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], said: str
) -> None:
    before = tree(root)
    assert setup(root, *arguments) in (1, 2)
    assert said in refusal(capsys)
    assert tree(root) == before


def test_a_machine_without_slurm_is_named_before_control_is_set_up(capsys: pytest.CaptureFixture[str]) -> None:
    if shutil.which("scontrol"):
        pytest.skip("Slurm is here")
    app.run(["setup", "control", "--host", "head", "--dry-run"])
    assert "would be refused: Slurm's programs: " in capsys.readouterr().err
